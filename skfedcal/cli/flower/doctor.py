"""Checks before a deployment; each gives lines of ok, warn or fail."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import metadata
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from skfedcal._numerics import rows_look_like_proba
from skfedcal._version import __version__
from skfedcal.cli.flower.project import load_server, read_app, run_config
from skfedcal.privacy.events import PureEvent

if TYPE_CHECKING:
    from skfedcal.federation import RemoteClients, Roster, Site, SitePolicy, SiteRows

Verdict = Literal["ok", "warn", "fail"]
# Oldest versions that the extra allows, and the first that is not known to work.
FLWR, CRYPTOGRAPHY = ((1, 40), (2,)), ((42,), None)
# What SuperLink and SuperNode listen on by default.
SUPERLINK_PORT, SUPERNODE_PORT = 8000, 9094


class Line(NamedTuple):
    """One finding."""

    verdict: Verdict
    what: str
    text: str


def check_versions() -> Iterator[Line]:
    """Versions of what is installed."""
    found = sys.version_info
    yield _judged(found >= (3, 11), "python", f"{found[0]}.{found[1]}.{found[2]}")
    for name, (least, below) in (("flwr", FLWR), ("cryptography", CRYPTOGRAPHY)):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            text = 'not installed: pip install "skfedcal[flower]"'
            yield Line("fail", name, text)
            continue
        numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:3])
        good = numbers >= least and (below is None or numbers < below)
        wanted = f"{least[0]}.{least[1]}" if len(least) > 1 else f"{least[0]}"
        yield _judged(good, name, version, f"{version}; {wanted} or newer is needed")


def check_app(folder: str) -> Iterator[Line]:
    """The app: its pin, its modules and its run config."""
    try:
        content = read_app(folder)
    except (OSError, ValueError) as error:
        yield Line("fail", "app", str(error))
        return
    pins = [d for d in content["project"]["dependencies"] if d.startswith("skfedcal")]
    same = pins and pins[0].endswith(f"=={__version__}")
    yield Line(
        "ok" if same else "warn",
        "app",
        f"{content['project']['name']}, written for {pins[0] if pins else 'nothing'}; "
        f"this is {__version__}",
    )
    app = content["tool"]["flwr"]["app"]
    for name in ("clientapp", "serverapp"):
        module = str(app["components"].get(name, "")).partition(":")[0]
        path = Path(folder, *module.split(".")).with_suffix(".py")
        yield _judged(bool(module) and path.exists(), name, str(path), f"no {path}")
    yield from check_run_config(app["config"])


def check_run_config(config: Mapping[str, Any]) -> Iterator[Line]:
    """What a run would do, as far as this is known before it starts."""
    import skfedcal

    method = str(config.get("method"))
    yield _judged(
        method in dir(skfedcal), "method", method, f"skfedcal has no {method!r}"
    )
    for name, kind in (("classes", list), ("options", dict)):
        try:
            good = isinstance(json.loads(str(config.get(name))), kind)
        except ValueError:
            good = False
        text = str(config.get(name))
        yield _judged(good, name, text, f"{text!r} is not a JSON {kind.__name__}")
    if not config.get("secure"):
        yield Line("warn", "secure", "false: the server sees the answer of each site")
    else:
        yield Line("ok", "secure", "true: answers are masked")
    if config.get("privacy") == "none":
        yield Line("warn", "privacy", "none: exact sums are released")
    else:
        yield Line("ok", "privacy", f"{config.get('privacy')}, eps {config.get('eps')}")
    if not config.get("ledger") and config.get("privacy") != "none":
        yield Line("warn", "ledger", "none: the privacy spent by runs is not recorded")
    for name in ("out", "ledger", "checkpoint"):
        path = str(config.get(name) or "")
        if path and not Path(path).is_absolute():
            text = f"{path} is relative: it will be in the folder of the SuperLink"
            yield Line("warn", name, text)


def check_environment(environment: Mapping[str, str]) -> Iterator[Line]:
    """What Flower would send or fetch by itself."""
    for name, value, text in (
        (
            "FLWR_TELEMETRY_ENABLED",
            "0",
            "Flower sends usage statistics to its developers",
        ),
        ("FLWR_DISABLE_UPDATE_CHECK", "1", "Flower looks for new versions"),
        (
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION",
            "1",
            "the SuperLink installs what an app asks for, from the internet, unless it "
            "is started with --disable-runtime-dependency-installation",
        ),
    ):
        good = environment.get(name) == value
        text = f"not {value}: {text}"
        yield Line("ok", name, value) if good else Line("warn", name, text)


def check_ports(ports: Sequence[int]) -> Iterator[Line]:
    """Whether a server could listen here."""
    for port in ports:
        with socket.socket() as probe:
            # As servers do: what is left of old connections is no hindrance.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                text = f"{error.strerror}. If it is not your SuperLink or SuperNode,"
                yield Line("warn", f"port {port}", f"{text} pass another --port there")
            else:
                yield Line("ok", f"port {port}", "free")


def check_connections(environment: Mapping[str, str]) -> Iterator[Line]:
    """Where ``flwr run`` would connect to."""
    home = environment.get("FLWR_HOME") or os.path.expanduser("~/.flwr")
    path = Path(home, "config.toml")
    try:
        found = tomllib.loads(path.read_text()).get("superlink", {})
    except OSError:
        yield Line(
            "warn",
            "connections",
            f"no {path}: flwr run does not know the address of the SuperLink",
        )
        return
    except ValueError as error:
        yield Line("fail", "connections", f"{path}: {error}")
        return
    for name, entry in found.items():
        if not isinstance(entry, dict) or "address" not in entry:
            continue
        local = str(entry["address"]).startswith(("127.", "localhost", "[::1]"))
        bad = bool(entry.get("insecure")) and not local
        text = f"{entry['address']}" + (
            ", without TLS" if entry.get("insecure") else ""
        )
        yield Line("fail" if bad else "ok", f"connection {name}", text)


def check_site(path: str) -> Iterator[Line]:
    """A site as its file configures it."""
    from skfedcal.exceptions import LedgerCorruptedError
    from skfedcal.federation import Roster
    from skfedcal.federation.site import site_from_config, whole_config

    try:
        site = site_from_config({"site-config": path})
        config = whole_config({"site-config": path})
    except (ValueError, OSError, LedgerCorruptedError) as error:
        yield Line("fail", "site", str(error))
        return
    yield Line("ok", "site", f"{site.name}: {site.policy}")
    yield from check_policy(site.policy)
    yield from check_rows(str(config["data-path"]), site.policy, config.get("classes"))
    if "roster" not in config:
        text = "none: the server is trusted to pass on the keys of the other sites"
        yield Line("warn", "roster", text)
    else:
        yield _operator_line(Roster.load(str(config["roster"])))
    if "ledger" not in config:
        yield Line(
            "warn",
            "ledger",
            "none: the site does not record the privacy that its answers spend",
        )
    else:
        yield from check_ledger(site)
    if site.ready is None:
        text = "not declared: write ready = true once all lines here are right"
        yield Line("warn", "ready", text)
    for name in ("site-key", "node-key"):
        yield from check_secret_file(str(config.get(name, "")))
    if "flower" in config:
        yield from check_live(config)


def check_ledger(site: Site) -> Iterator[Line]:
    """Whether the ledger of a site covers anything under the budget of its file."""
    from skfedcal.exceptions import BudgetExceededError, LedgerCorruptedError

    ledger = site.ledger
    if ledger is None or ledger.budget is None:
        return
    eps, delta = ledger.budget
    try:
        # The smallest debit: what refuses it refuses everything.
        ledger.check_debit(PureEvent(0.0), label="doctor")
        text = f"eps {ledger.spent():.4g} of {eps:g} spent at delta {delta:g}"
        yield Line("ok", "ledger", f"{len(ledger)} debits, {text}")
    except BudgetExceededError as error:
        yield Line("fail", "ledger", str(error))
    except (ValueError, LedgerCorruptedError) as error:
        yield Line("fail", "ledger", f"no request can be paid: {error}")


def check_live(config: Mapping[str, Any]) -> Iterator[Line]:
    """Whether ``skfedcal site`` could start."""
    from skfedcal.federation.live import fleet_node

    try:
        fleet_node(config).close()
    except (ValueError, OSError, ImportError) as error:
        yield Line("fail", "live site", str(error))
    else:
        tls = "TLS" if "root-certificates" in config else "without TLS"
        yield Line("ok", "live site", f"{config['flower']}, {tls}")


def check_policy(policy: SitePolicy) -> Iterator[Line]:
    """What a policy leaves open, and unknown names in it."""
    from skfedcal.methods.registry import replacement_of

    for word in policy.methods or ():
        new = replacement_of(word)
        if new is not None:
            text = f"{word!r} is read until 0.2; write {new!r} instead"
            yield Line("warn", "methods", text)
    if policy.methods is None:
        yield Line("warn", "methods", "all algorithms are answered")
    if policy.noise == "none":
        text = "none: exact sums are answered, and no budget covers them"
        yield Line("warn", "noise", text)
    if policy.classes is None:
        text = (
            "none: a request may name any classes; rows of other classes count as zero"
        )
        yield Line("warn", "classes", text)
    for name in ("allow_plain", "allow_seeded_noise"):
        if getattr(policy, name):
            yield Line("warn", name, "true: safe in simulations only")


def check_rows(path: str, policy: SitePolicy, classes: Any = None) -> Iterator[Line]:
    """Rows of a site that would send zeros, which nobody but the site is told."""
    from skfedcal.clients.arrays import usable_rows
    from skfedcal.federation import SiteRows

    try:
        rows = SiteRows.load(path)
    except (ValueError, OSError) as error:
        yield Line("fail", "rows", f"{path} cannot be read: {error}")
        return
    width = rows.scores.shape[1]
    yield _judged(
        len(rows) > 0,
        "rows",
        f"{len(rows)} rows of {width} columns",
        f"{path} is empty",
    )
    yield from check_labels(rows, policy, classes)
    known = policy.classes
    if known is not None and rows.kind != "features":
        yield _judged(
            width in (len(known), len(known) - 1),
            "columns",
            f"{width} for {len(known)} classes",
            f"{width} columns of scores for {len(known)} classes: all rows would count "
            "as zero",
        )
    if rows.kind == "features":
        usable = np.isfinite(rows.scores).all(axis=1)
    else:
        kind = "proba" if rows.kind == "proba" else "logits"
        n_classes = width if known is None else len(known)
        usable = usable_rows(rows.scores, n_classes, input_type=kind)
    n_bad = int((~usable).sum())
    yield _judged(
        not n_bad,
        rows.kind,
        "all rows can be read",
        f"{n_bad} rows are not {rows.kind}, the first is row "
        f"{int(np.argmin(usable)) if n_bad else 0}: they would count as zero",
    )
    if rows.kind == "logits" and len(rows) and rows_look_like_proba(rows.scores):
        yield Line(
            "fail",
            "logits",
            "all rows are non-negative and sum to 1: they are probabilities. Store "
            "them as 'proba'",
        )


def check_labels(
    rows: SiteRows, policy: SitePolicy, classes: Any = None
) -> Iterator[Line]:
    """Whether labels are those of the policy, and of the type that its file has."""
    labels, known = rows.labels, policy.classes
    width = rows.scores.shape[1]
    if known is None:
        n_labels = len(set(labels.tolist()))
        if rows.kind != "features" and n_labels not in (width, width + 1):
            text = (
                f"{width} columns of scores, and {n_labels} different labels: name the "
                "classes in the file of the site, so that this can be checked"
            )
            too_many = n_labels > width + 1
            yield Line("fail" if too_many else "warn", "columns", text)
        return
    # A text with commas does not tell numbers from strings.
    typed = classes if isinstance(classes, list) else []
    wanted = {isinstance(label, str) for label in typed}
    as_text = labels.dtype.kind == "U"
    if len(labels) and wanted and wanted != {as_text}:
        here, there = ("texts", "numbers") if as_text else ("numbers", "texts")
        yield Line(
            "fail",
            "labels",
            f"the labels of the file are {here}, the classes of the site are {there}: "
            "no row would count",
        )
        return
    named = np.array([_name(label) for label in labels.tolist()], dtype=object)
    odd = sorted(set(named) - set(known))
    found = f"{len(labels)} rows of {len(known)} classes"
    text = ""
    if odd:
        text = (
            f"the file has the label {odd[0]!r}, which is not one of the classes: "
            f"{int(np.isin(named, odd).sum())} rows would count as zero"
        )
    yield _judged(not odd, "classes", found, text)


def _name(label: Any) -> str:
    """Label as the policy writes it: 1.0 and True are the class 1."""
    whole = not isinstance(label, str) and label == label and abs(label) < 2**53
    return str(int(label)) if whole and label == int(label) else str(label)


def check_secret_file(path: str) -> Iterator[Line]:
    """Whether others may read a file with a secret."""
    if path and os.name == "posix" and Path(path).exists():
        mode = Path(path).stat().st_mode & 0o777
        text = f"other users can read {path}; run chmod 600"
        yield _judged(not mode & 0o077, "permissions", f"{path}: {mode:o}", text)


def check_roster(path: str, folder: str | None) -> Iterator[Line]:
    """The roster, and whether it has the sites that a run waits for."""
    from skfedcal.cli.flower.project import fingerprint
    from skfedcal.federation import Roster

    try:
        roster = Roster.load(path)
    except (ValueError, OSError) as error:
        yield Line("fail", "roster", str(error))
        return
    yield Line("ok", "roster", f"{len(roster.sites)} sites, {fingerprint(roster)}")
    yield _operator_line(roster)
    config = {} if folder is None else run_config(folder)
    wanted = [n.strip() for n in str(config.get("sites", "")).split(",") if n.strip()]
    missing = sorted(set(wanted) - set(roster.sites))
    if missing:
        yield Line("fail", "roster", f"has no {', '.join(missing)}")


def _operator_line(roster: Roster) -> Line:
    from skfedcal.cli.flower.project import NO_OPERATOR

    if roster.operator is None:
        return Line("warn", "operator", NO_OPERATOR)
    text = f"answers only what {roster.operator.hex()[:16]} signed"
    return Line("ok", "operator", text)


def _judged(good: bool, what: str, text: str, otherwise: str | None = None) -> Line:
    return Line("ok" if good else "fail", what, text if good else otherwise or text)


_SOON = timedelta(days=30)


def check_certificates(ca: str, cert: str, key: str) -> Iterator[Line]:
    """Whether files fit together, for how long, and for which hosts.

    ca, cert, key: PEM files of the authority, of the SuperLink, and of its private key;
        empty is not checked.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not (ca or cert or key):
        text = "no certificate was passed; without one, stay on one machine"
        yield Line("warn", "TLS", text)
        return
    read: dict[str, Any] = {}
    for name, path, load in (
        ("ca", ca, x509.load_pem_x509_certificate),
        ("certificate", cert, x509.load_pem_x509_certificate),
        ("key", key, lambda data: load_pem_private_key(data, None)),
    ):
        if not path:
            continue
        try:
            read[name] = load(Path(path).read_bytes())
        except (OSError, ValueError, TypeError) as error:
            yield Line("fail", name, f"{path}: {error}")
    for name in ("ca", "certificate"):
        if name in read:
            yield _dates(name, read[name])
    if "certificate" in read:
        yield _hosts(read["certificate"])
    if {"ca", "certificate"} <= set(read):
        yield _issued(read["ca"], read["certificate"])
    if {"key", "certificate"} <= set(read):
        fits = read["key"].public_key() == read["certificate"].public_key()
        text = (
            "belongs to the certificate"
            if fits
            else "does not belong to the certificate"
        )
        yield Line("ok" if fits else "fail", "key", text)
    yield from check_secret_file(key)


def _dates(name: str, certificate: Any) -> Line:
    now, end = datetime.now(UTC), certificate.not_valid_after_utc
    text = f"valid until {end:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        begin = certificate.not_valid_before_utc
        return Line("fail", name, f"not valid before {begin:%Y-%m-%d}")
    if now > end:
        return Line("fail", name, f"expired on {end:%Y-%m-%d}")
    return Line("warn" if end - now < _SOON else "ok", name, text)


def _hosts(certificate: Any) -> Line:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except x509.ExtensionNotFound:
        text = "has no subjectAltName: no SuperNode will accept it"
        return Line("fail", "certificate", text)
    hosts = [str(getattr(name, "value", name)) for name in names]
    return Line("ok", "certificate", f"for {', '.join(hosts)}")


def _issued(ca: Any, certificate: Any) -> Line:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return Line("fail", "certificate", "was not issued by the authority")
    return Line("ok", "certificate", "was issued by the authority")


def check_sites(sites: RemoteClients) -> Iterator[Line]:
    """What connected sites say about themselves: version, arithmetic, readiness."""
    transport: Any = sites.transport
    for name, greeting in sorted(transport.greetings.items()):
        version = str(greeting.get("version"))[:50]
        declared = {"yes": "declared ready", "no": "declared not ready"}
        state = declared.get(str(greeting.get("ready")), "readiness not declared")
        used = str(greeting.get("arithmetic", "numpy"))[:20]
        text = f"skfedcal {version} on {used}, {state}"
        same = version == __version__
        if not same:
            text += f"; this is {__version__}"
        ready = state == "declared ready" and same
        verdict: Verdict = "ok" if ready else "warn"
        yield Line("fail" if "not ready" in state else verdict, f"site {name}", text)


def check_run(
    sites: RemoteClients, folder: str, config: Mapping[str, Any]
) -> Iterator[Line]:
    """Whether sites would answer the run of an app, by their policies and budgets."""
    from skfedcal.federation.messages import PreflightEnd

    transport: Any = sites.transport
    names = [str(name) for name in transport.ids()]
    module = load_server(folder)
    yield from check_plan(len(names), module.privacy(config), config)
    transport.preflight = "only"
    try:
        module.ask(sites, config)
    except PreflightEnd as end:
        for name in names:
            fault = end.faults.get(name, "")
            text = fault or "would answer the first request"
            yield Line("fail" if fault else "ok", f"run at {name}", text)
        n_left = len(names) - len(end.faults)
        yield _judged(
            n_left >= end.least,
            "run",
            f"{n_left} of {len(names)} sites would answer, {end.least} must",
        )
    else:
        yield Line(
            "fail",
            "run",
            "would ask no site: noise that hides one unit of so few leaves less than "
            "what is known beforehand. Hide rows (unit = 'example'), or use a larger "
            "eps",
        )


def check_plan(n_sites: int, model: Any, config: Mapping[str, Any]) -> Iterator[Line]:
    """What so many sites, rows and eps will give, before anything is spent."""
    from skfedcal.compose.site_results import fix_delta, plan_comparison
    from skfedcal.evaluation.gain import noise_of_gain
    from skfedcal.experiments.forecasting import METHODS, forecast
    from skfedcal.federation.reading import SHARES

    method, share = str(config["method"]), float(config.get("gain-share", 0))
    name = method.removesuffix("Calibrator")
    if not method.endswith("Calibrator") or not config["n-rows"]:
        yield Line("warn", "expected gain", "not known without n-rows and a calibrator")
        return
    n_rows = int(config["n-rows"])
    by_row = model.private and model.unit == "example"
    n_units = n_rows * SHARES["held"] if by_row else n_sites
    model = fix_delta(model, n_rows if by_row else n_sites)
    bound, why = plan_comparison(model, n_units, share)
    fit = model
    if model.private and not why:
        fit = replace(model, eps=model.eps * (1 - share))
    found = forecast(
        n_sites,
        max(round(n_rows / n_sites), 1),
        n_classes=len(json.loads(config["classes"])),
        privacy=fit,
        methods=[name] if name in METHODS else ["FedAuto"],
        n_fits=10,
    )
    for one in found.calibrators.values():
        text = (
            f"{one.choice}: a gain in {one.chance:.0%} of simulated fits, "
            f"{one.share:.0%} of what is possible"
        )
        yield Line("ok" if one.chance > 0.5 else "warn", "expected gain", text)
    good = not found.calibrators or any(one.asked for one in found.calibrators.values())
    yield Line("ok" if good else "warn", "advice", found.advice)
    if why:
        yield Line("warn", "comparison", f"none: {why}")
    elif model.private:
        mu = model.strength(max(round(n_units), 1)) * sqrt(1 - (1 - share) ** 2)
        noise = noise_of_gain(n_units, mu, bound)
        text = (
            f"noise gives the difference of log losses a standard error of about "
            f"{noise:.2g} (losses cut at {bound:g})"
        )
        yield Line("ok", "comparison", text)
    else:
        yield Line("ok", "comparison", "exact, on a fifth of the rows")
