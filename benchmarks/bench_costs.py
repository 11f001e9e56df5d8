"""What the parts around a fit cost: noise, accounts, sums, rounds, imports.

python -m benchmarks.bench_costs

Other scripts measure most of these in more detail and lend their functions:
`bench_noise`, `bench_secagg`, `bench_training`, `bench_evaluation` and
`bench_temperature`. `bench_exchange` has the messages.
"""

import itertools
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks._harness import (  # isort: skip  (sets the number of threads)
    OURS,
    arguments,
    compare,
    optional,
    print_table,
    process_seconds,
    record,
    write_json,
)

import numpy as np
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    log_loss,
    roc_auc_score,
)

from benchmarks import bench_noise
from benchmarks.bench_evaluation import million, n_repeats
from benchmarks.bench_temperature import local_fits
from skfedcal import ScoreHistogram
from skfedcal.privacy.accounting import calibrate_noise, compose_epsilon
from skfedcal.privacy.events import GaussianEvent
from skfedcal.privacy.samplers import GAUSSIAN_SIGMA, LAPLACE_SCALE

Rows = list[dict[str, Any]]

LOCAL = (100, 1000, 10_000, 100_000)
AREAS = (10_000, 100_000, 1_000_000)
SUMS = ((10, 2560), (30, 2560), (100, 2560), (10, 25_600), (10, 256_000))
LONG_SUMS = ((300, 2560), (1000, 2560), (100, 256_000))
IMPORTS = {
    "skfedcal, lazy": "import skfedcal",
    "skfedcal": "from skfedcal import FedTempCalibrator",
    "scikit-learn": "import sklearn.calibration",
    "netcal": "import netcal.scaling",
    "probmetrics": "import probmetrics.calibrators",
    "torch-uncertainty": "import torch_uncertainty.post_processing",
    "uncertainty-calibration": "import calibration",
    "relplot": "import relplot",
}


def noise(seconds: float) -> Rows:
    """Microseconds for a draw of discrete noise."""
    rows = []
    laws = {"gaussian": GAUSSIAN_SIGMA, "laplace": float(LAPLACE_SCALE)}
    for law, scale in laws.items():
        found = bench_noise.measure(law, scale, 64_000, seconds)
        names = {"os us": OURS, "seeded us": f"{OURS}, seeded", "opendp us": "opendp"}
        for key, name in names.items():
            if key in found:
                ratio = found[key] / found["os us"]
                case = f"discrete {law}"
                row = record("noise, per draw", case, name, found[key], "us")
                rows.append(row | {"ratio": ratio})
    return rows


ROUNDS, DELTA, EPS = 12, 1e-5, 1.0


def accounts(seconds: float) -> Rows:
    """Epsilon of rounds of Gaussian noise, and the noise that an epsilon needs."""
    z = calibrate_noise(EPS, DELTA, n_rounds=ROUNDS).noise_multiplier
    spent: dict[str, Callable[[], float]] = {
        OURS: lambda: compose_epsilon([GaussianEvent(1 / z)] * ROUNDS, DELTA)
    }
    # Another budget in each call: ours remembers the last ones.
    budgets = itertools.count(EPS, 1e-9)
    noise: dict[str, Callable[[], float]] = {
        OURS: lambda: (
            calibrate_noise(next(budgets), DELTA, n_rounds=ROUNDS).noise_multiplier
        )
    }
    kinds = {"PLD": "pld.PLDAccountant", "RDP": "rdp.RdpAccountant"}
    for name, path in kinds.items():
        module, _, kind = path.partition(".")
        dp = optional("dp_accounting")
        found = optional(f"dp_accounting.{module}")
        if dp is None or found is None:
            continue
        make = getattr(found, kind)

        def epsilon(make: Any = make, dp: Any = dp) -> float:
            account = make()
            account.compose(dp.GaussianDpEvent(z), ROUNDS)
            return account.get_epsilon(DELTA)

        def multiplier(make: Any = make, dp: Any = dp) -> float:
            return dp.calibrate_dp_mechanism(
                make,
                lambda z: dp.SelfComposedDpEvent(dp.GaussianDpEvent(z), ROUNDS),
                next(budgets),
                DELTA,
            )

        spent[f"dp-accounting, {name}"] = epsilon
        noise[f"dp-accounting, {name}"] = multiplier
    return [
        *_account(f"eps of {ROUNDS} Gaussian rounds", "eps", spent, seconds),
        *_account(f"noise of {ROUNDS} rounds at eps 1", "noise", noise, seconds),
    ]


def _account(
    case: str, what: str, calls: dict[str, Callable[[], float]], seconds: float
) -> Rows:
    """Compare accounts, of which PLD should give our answer; RDP is looser."""
    found = {name: call() for name, call in calls.items()}
    tight = found.get("dp-accounting, PLD", found[OURS])
    if not abs(tight / found[OURS] - 1) <= 1e-3:
        raise AssertionError(f"{case}: accounts differ, {found}")
    extra = {name: {"note": f"{what} {value:.4f}"} for name, value in found.items()}
    return compare("accountant", case, calls, seconds=seconds, extra=extra)


def local(counts: tuple[int, ...]) -> Rows:
    """Local temperatures of all clients, next to loops of scipy."""
    rows = []
    for n_clients in counts:
        found = local_fits(n_clients, n_loop=50)
        if not found["max |d log T|"] <= 1e-4:
            raise AssertionError(f"local temperatures differ at {n_clients} clients")
        case = f"{n_clients} clients, 20 x 10"
        loops = [key.removesuffix(" loop s") for key in found if key.endswith("loop s")]
        names = {"ours s": OURS}
        names |= {f"{name} loop s": f"loop of scipy {name}" for name in loops}
        for key, name in names.items():
            row = record("local temperatures", case, name, found[key], "s")
            rows.append(row | {"ratio": found[key] / found["ours s"]})
    return rows


def areas(counts: tuple[int, ...]) -> Rows:
    """Score histogram of one row per client, and the area from it."""
    rows: Rows = []
    for n_clients in counts:
        question, case = "score histogram and AUC", f"{n_clients} clients"
        found = million(n_clients)
        names = {
            row["privacy"]: f"{OURS}, {row['privacy'].split('(')[0]}" for row in found
        } | {"None": OURS}
        exact = next(row["seconds"] for row in found if row["privacy"] == "None")
        for row in found:
            name, seconds = names[row["privacy"]], row["seconds"]
            rows.append(
                record(question, case, name, seconds, "s", ratio=seconds / exact)
            )
        scores, labels = _scores(n_clients)
        times = []
        for _ in range(n_repeats(n_clients)):
            start = time.process_time()
            roc_auc_score(labels, scores)
            times.append(time.process_time() - start)
        seconds = min(times)
        name = "scikit-learn, all scores"
        rows.append(record(question, case, name, seconds, "s", ratio=seconds / exact))
    return rows


def _scores(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    scores = rng.random(n_rows)
    return scores, (rng.random(n_rows) < scores).astype(int)


def histogram_metrics(seconds: float) -> Rows:
    """Metrics of a histogram of a million scores, next to those of the scores."""
    scores, labels = _scores(1_000_000)
    hist = ScoreHistogram.fit(scores, labels, input_type="proba", classes=[0, 1])
    peers = {
        "roc_auc": roc_auc_score,
        "average_precision": average_precision_score,
        "brier": brier_score_loss,
        "log_loss": log_loss,
    }
    rows: Rows = []
    for name, score in peers.items():
        ours: Any = getattr(hist, name)
        off = abs(ours() - score(labels, scores))
        if not off <= ours().discretisation:
            raise AssertionError(f"{name} is off by {off:.1e}, beyond its certificate")
        calls = {
            OURS: ours,
            "scikit-learn, all scores": partial(score, labels, scores),
        }
        extra = {OURS: {"note": f"off by {off:.0e}"}}
        what = "metrics of a histogram"
        # No factor: ours starts from counts, scikit-learn from the scores.
        rows += [
            row | {"ratio": None}
            for row in compare(what, name, calls, seconds=seconds, extra=extra)
        ]
    return rows


def sums(cases: tuple[tuple[int, int], ...]) -> Rows:
    """Masked sums, checked: CPU time of all parties together, next to a plain sum."""
    if optional("cryptography") is None:
        return []
    from benchmarks import bench_secagg

    rng = np.random.default_rng(0)
    bench_secagg.masked(5, 10, {}, rng)
    rows = []
    for n_clients, size in cases:
        n_runs = 1 if n_clients > 100 else 3
        runs = [bench_secagg.masked(n_clients, size, {}, rng) for _ in range(n_runs)]
        case = f"{n_clients} clients, {size} counts"
        masked, plain = ([1e3 * run[i] for run in runs] for i in (0, 1))
        row = record("secure aggregation", case, OURS, min(masked), "ms", ratio=1.0)
        if n_runs > 1:
            row["spread"] = statistics.median(masked) / min(masked) - 1
        rows += [
            row | {"note": f"{min(masked) / n_clients:.2g} ms per client"},
            record("secure aggregation", case, "numpy, plain sum", min(plain), "ms"),
        ]
    return rows


def fedavg(seconds: float, quick: bool) -> Rows:
    """One round of federated averaging: as `cohort_size='auto'` trains, and a loop."""
    if optional("torch") is None:
        return []
    from benchmarks import bench_training

    rows: Rows = []
    small = ("MLP 64",) if quick else ("logistic", "MLP 64", "MLP 512", "CNN 8-16")
    cases = [(module, alpha) for module in small for alpha in (None, 0.1)]
    cases += [(module, None) for module in bench_training.LARGE]
    for module, alpha in cases:
        found = bench_training.measure(module, 100, alpha, seconds)
        # Where clients are trained together by default; in deeper networks, which are
        # trained one by one, rounding to float32 grows with the layers.
        together = found["auto"] == "cohort"
        if together and not found["largest difference"] <= 1e-4:
            raise AssertionError(f"{module}: clients together learn something else")
        large = module in bench_training.LARGE
        case = f"20 clients, {module}" if large else f"100 clients, {module}, digits"
        case += "" if alpha is None else f" by Dirichlet({alpha})"
        chosen = found["auto"]
        other = "one by one" if chosen == "cohort" else "cohort"
        for name, key in (
            (OURS, chosen),
            (f"{OURS}, {other}", other),
            ("torch, loop over clients", "torch loop"),
        ):
            value, ratio = (
                found[f"{key} ms"],
                found[f"{key} ms"] / found[f"{chosen} ms"],
            )
            row = record("FedAvg round", case, name, value, "ms", ratio=ratio)
            rows.append(row | {"note": chosen if name == OURS else ""})
    return rows


def imports() -> Rows:
    """CPU seconds of a fresh interpreter that imports one module, less an empty one."""
    rows = []
    empty = min(process_seconds(["-c", "pass"]) for _ in range(4))
    for name, code in IMPORTS.items():
        try:
            # The first may find files that are not in memory yet.
            used = min(process_seconds(["-c", code]) for _ in range(4)) - empty
        except subprocess.CalledProcessError:
            print(f"skipped {name}: not installed")
            continue
        rows.append(record("import", "CPU seconds", name, used, "s") | {"note": code})
    own = next(row["value"] for row in rows if row["library"] == OURS)
    return [row | {"ratio": row["value"] / own} for row in rows]


def questions(seconds: float, quick: bool = True) -> Rows:
    """All rows; the long form has ten million clients, larger sums and modules."""
    return [
        *noise(seconds),
        *accounts(seconds),
        *local(LOCAL),
        *areas(AREAS if quick else (*AREAS, 10_000_000)),
        *histogram_metrics(seconds),
        *sums(SUMS if quick else (*SUMS, *LONG_SUMS)),
        *fedavg(seconds, quick),
        *imports(),
    ]


def main() -> None:
    """Print and write the table."""
    options = arguments("costs", __doc__).parse_args()
    rows = questions(options.seconds, quick=False)
    print_table(rows)
    write_json(options.out, rows)


if __name__ == "__main__":
    main()
