"""Server app: fits or evaluates what the run config names, and writes the result.

It runs beside the SuperLink and reaches the sites through it. With ``secure = true`` it
receives masked answers, and learns their sum.
"""

import json
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import skfedcal
from skfedcal.federation import FlowerTransport, Operator, RemoteClients

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run."""
    config: dict[str, Any] = dict(context.run_config)
    names = [name.strip() for name in config["sites"].split(",") if name.strip()]
    transport = FlowerTransport(
        grid,
        min_nodes=config["min-nodes"],
        sites=names or None,
        timeout=float(config["timeout"]),
        wait=float(config["wait"]),
    )
    print(f"asking {', '.join(map(str, transport.ids()))}", flush=True)
    sites = RemoteClients(
        transport, n_rows=config["n-rows"] or None, operator=operator(config)
    )
    print(f"{write(ask(sites, config), config)}", flush=True)


def write(result, config):
    """Write files of a result; return what they say."""
    out = Path(config["out"])
    if hasattr(result, "calibrator"):
        result.calibrator.save(out)  # for skfedcal.load
        result.save(out.with_suffix(".result.json"))  # for skfedcal verify
        text = f"{result.calibrator.privacy_!r}\n{result}"
    elif hasattr(result, "to_json"):
        out.write_text(result.to_json())  # for ScoreHistogram.from_json
        text = f"{result!r}\n{answers(result)}\n{result.privacy_!r}"
    else:
        out.write_text(json.dumps(plain(result)))
        text = f"{config['method']}: {result!r}"
    out.with_suffix(".txt").write_text(text + "\n")
    return f"{text}\nwritten to {out.resolve()}"


def ask(sites, config):
    """Fit or evaluate; also what ``skfedcal flower check`` tries."""
    method = getattr(skfedcal, config["method"])
    options = {
        "classes": json.loads(config["classes"]),
        "input_type": config["input-type"],
        "privacy": privacy(config),
        "ledger": ledger(config),
        "runner": runner(config),
        **json.loads(config["options"]),
    }
    if hasattr(method, "predict_proba"):
        share = float(config["gain-share"])
        return skfedcal.fit_sites(method(**options), sites, share=share)
    if hasattr(method, "to_json"):
        return method.fit(sites, **options)
    return method(sites, **options)


def runner(config):
    """Who must answer, whether answers are masked, and what is kept."""
    return skfedcal.FederatedRunner(
        n_rounds=config["rounds"] or None,
        secure=config["secure"],
        min_clients=config["min-nodes"],
        checkpoint=config["checkpoint"] or None,
        resume=config["resume"],
    )


def operator(config):
    """Who signs what sites are asked."""
    if not config["operator-key"]:
        return None
    return Operator.load(config["operator-key"], config["roster"])


def privacy(config):
    """Who adds the noise, and what it hides."""
    eps, unit = float(config["eps"]), config["unit"]
    delta = float(config["delta"]) or None
    models = {
        "none": lambda: skfedcal.SecureAggregation(),
        "central": lambda: skfedcal.CentralDP(eps, delta, unit=unit),
        "distributed": lambda: skfedcal.DistributedDP(
            eps,
            delta,
            n_min=config["min-nodes"],
            max_colluders=config["max-colluders"],
            unit=unit,
            mode="faithful",
        ),
        "source": lambda: skfedcal.SourceDP(eps, mode="faithful"),
        "local": lambda: skfedcal.LocalDP(eps, mode="faithful"),
    }
    if config["privacy"] not in models:
        raise ValueError(f"privacy={config['privacy']!r}: pass one of {list(models)}.")
    by_row = unit == "example" and config["privacy"] in ("central", "distributed")
    if by_row and not config["n-rows"]:
        raise ValueError(
            "unit='example' needs n-rows, the public number of rows of all sites; "
            "unit='client' does not, and is for dozens of sites."
        )
    return models[config["privacy"]]()


def ledger(config):
    """Account of the server, debited before a release."""
    if not config["ledger"]:
        return None
    budget = float(config["ledger-eps"]), float(config["ledger-delta"])
    return skfedcal.PrivacyLedger(config["ledger"], budget=budget)


def answers(histogram):
    """What is mostly asked of a histogram of scores, with its error."""
    names = ["brier", "log_loss", "ece"]
    if histogram.kind == "binary":
        names += ["roc_auc", "accuracy", "precision", "recall", "f1"]
    return "\n".join(f"{name}: {getattr(histogram, name)()!r}" for name in names)


def plain(result):
    """Numbers of an answer, for JSON."""
    if isinstance(result, skfedcal.Estimate):
        parts = ("value", "low", "high", "se_sampling", "se_privacy", "discretisation")
        return {name: getattr(result, name) for name in parts}
    if isinstance(result, tuple):
        return [plain(part) for part in result]
    return result.tolist() if hasattr(result, "tolist") else result
