"""Entry points of a privacy officer: audits, ledger files, checkpoints, records."""

import contextlib
import functools
import os
from pathlib import Path

import numpy as np
from entries_estimators import (
    CALIBRATORS,
    QUICK,
    SLOW,
    checked_fit,
    clean_rows,
    harmed,
)
from entries_files import mutated
from fuzz_engine import Broken
from fuzz_values import HOSTILE_SETTINGS

import skfedcal
from skfedcal import FederatedRunner, PrivacyLedger, ScoreHistogram, privacy
from skfedcal.privacy import (
    AuditResult,
    CentralDP,
    GaussianEvent,
    PureEvent,
    audit,
    audit_estimator,
    audit_one_run,
)
from skfedcal.privacy.client_mechanisms import LocalSum
from skfedcal.privacy.mechanisms import LatticeGaussian, LatticeLaplace
from skfedcal.privacy.site_ledger import SiteLedger

# Runs or canaries that a case has the time for.
MANY = 10**4


def _affordable(name, value):
    count = name in ("n_runs", "n_canaries") and isinstance(value, (int, np.integer))
    return 30 if count and value > MANY else value


def _hostile(case, given, chance=0.8):
    """The settings with one of them replaced."""
    if case.chance(chance):
        name = case.pick("param", list(given))
        given[name] = _affordable(name, case.pick("value", HOSTILE_SETTINGS))
    return given


def _check_result(found):
    if not isinstance(found, AuditResult):
        raise Broken(f"an audit gave {type(found).__name__}")
    if not found.lower >= 0 or not found.eps_lower >= 0:
        raise Broken(f"bounds {found.lower} and {found.eps_lower}")
    repr(found), found.table(), found.to_dict()


def two_worlds(case):
    """`audit` of functions that release anything."""
    rng = np.random.default_rng(0)
    release = case.pick(
        "release",
        {
            "noise": lambda x: 1.0 * (x == 1.0) + rng.normal(),
            "array": lambda x: 1.0 * (x == 1.0) + rng.normal(size=3),
            "constant": lambda x: 1.0,
            "nan": lambda x: float("nan"),
            "inf": lambda x: float("inf"),
            "text": lambda x: "x",
            "none": lambda x: None,
            "ragged": lambda x: np.zeros(int(rng.integers(1, 4))),
            "huge": lambda x: 1e308,
            "complex": lambda x: 1j,
            "no function": 3,
        },
    )
    given = _hostile(
        case,
        {"mu": 1.0, "eps": None, "delta": 1e-5,
         "score": None, "threshold": None, "n_runs": 30, "alpha": 0.01},
    )  # fmt: skip
    if given["score"] is len or given["score"] is int:
        given["score"] = lambda out: 0.5  # an error of the caller's own function is his
    _check_result(audit(release, 0.0, 1.0, **given))


def one_run(case):
    """`audit_one_run` of models."""
    model = case.pick("model", (*privacy.__all__, "none"))
    model = getattr(privacy, model, None)
    if isinstance(model, type) and issubclass(model, CentralDP | privacy.LocalDP):
        model = model(1.0)
    if case.chance(0.6):
        model = CentralDP(1.0)
    given = {"n_canaries": 40, "norm": "l2", "alpha": 0.01, "random_state": 0}
    _check_result(audit_one_run(model, **_hostile(case, given)))


def of_estimator(case):
    """`audit_estimator`, mostly without its distinguisher."""
    name = case.pick("estimator", [n for n in CALIBRATORS if n not in SLOW])
    subject = getattr(skfedcal, name)(eps=1.0)
    given = {"clients": None, "privacy": None, "n_runs": 0, "alpha": 0.01,
             "random_state": 0}  # fmt: skip
    kind = case.rng.random()
    if kind < 0.2:
        subject = case.pick("subject", {**HOSTILE_SETTINGS, "no eps": type(subject)()})
    elif kind < 0.3:
        subject, given["privacy"] = ScoreHistogram.fit, CentralDP(1.0)
    elif kind < 0.7:
        rows, labels, _, _ = harmed(case, *clean_rows())
        given["clients"] = [clean_rows()[:2], (rows, labels)]
    given = _hostile(case, given, 0.5)
    if isinstance(given["n_runs"], int) and given["n_runs"] > 1:
        given["n_runs"] = 20
    _check_result(audit_estimator(subject, given.pop("clients"), **given))


@functools.cache
def ledger_text(cls):
    """Text of a ledger with three debits."""
    path = f"/tmp/fuzz-{os.getpid()}-{cls.__name__}.jsonl"
    try:
        ledger = cls(path, budget=(3.0, 1e-4))
        for event in (GaussianEvent(0.1), PureEvent(0.2), GaussianEvent(0.3)):
            ledger.debit(event, label="a")
        return Path(path).read_bytes()
    finally:
        Path(path).unlink(missing_ok=True)


def _edited(case, data):
    """Ledger with lines dropped, doubled, swapped, cut, or fields changed."""
    lines = data.splitlines(keepends=True)
    i = int(case.rng.integers(len(lines)))
    kind = case.pick("edit", ("json", "bytes", "drop", "twice", "swap", "cut", "none"))
    if kind == "json":
        lines[i] = mutated(case, lines[i].decode().strip()) + b"\n"
    elif kind == "drop":
        del lines[i]
    elif kind == "twice":
        lines.insert(i, lines[i])
    elif kind == "swap":
        lines[i], lines[0] = lines[0], lines[i]
    data = bytearray(b"".join(lines))
    if kind == "bytes" and data:
        data[int(case.rng.integers(len(data)))] = int(case.rng.integers(256))
    if kind == "cut":
        data = data[: int(case.rng.integers(len(data)))]
    return bytes(data)


def ledger_file(case):
    """A damaged ledger: refused as it is, or read, and then it takes a debit."""
    cls = case.pick("cls", {"PrivacyLedger": PrivacyLedger, "SiteLedger": SiteLedger})
    whole = ledger_text(cls)
    path = case.path("damaged.jsonl")
    data = _edited(case, whole)
    Path(path).write_bytes(data)
    given = {"budget": (3.0, 1e-4)}
    if case.chance(0.3):
        name = case.pick("param", ("budget", "require_secure", "head"))
        given[name] = case.pick("value", HOSTILE_SETTINGS)
    try:
        ledger = cls(path, **given)
        kept = len(ledger.records())
        # An old copy, and one whose last line is torn, are read; any other is not.
        torn = not data.endswith(b"}\n") or b"\0" in data
        if not torn and data != whole and not whole.startswith(data):
            raise Broken("an edited ledger was read")
    except Broken:
        raise
    except Exception:
        if Path(path).read_bytes() != data:
            raise Broken("a refused ledger was changed") from None
        raise
    event = case.pick("event", {**HOSTILE_SETTINGS, "good": PureEvent(0.1)})
    try:
        ledger.debit(event, label=case.pick("label", ("a", "", "x" * 10**4)))
    except Exception:
        if len(cls(path).records()) != kept:
            raise Broken("a record of a debit that failed") from None
        raise
    if len(cls(path).records()) != kept + 1:
        raise Broken("a debit without a record")


def checkpoint_file(case):
    """A damaged checkpoint is refused, and stays; another fit's too."""
    path = case.path("checkpoint.npz")
    Path(path).unlink(missing_ok=True)
    logits, labels, ids = clean_rows()
    name = case.pick("estimator", ("FedTempCalibrator", "FedBinCalibrator"))
    cls = getattr(skfedcal, name)
    given = {"eps": 1.0, "classes": [0, 1, 2], "random_state": 0}
    first = cls(**given, runner=FederatedRunner(checkpoint=path))
    first.fit(logits, labels, client_ids=ids)
    written = Path(path).exists()
    data = bytearray(Path(path).read_bytes() if written else b"nothing")
    edit = case.pick("edit", ("bytes", "cut", "none", "text"))
    if edit == "bytes":
        for _ in range(int(case.rng.integers(1, 6))):
            data[int(case.rng.integers(len(data)))] = int(case.rng.integers(256))
    elif edit == "cut":
        data = data[: int(case.rng.integers(len(data)))]
    elif edit == "text":
        data = bytearray(b"no checkpoint")
    Path(path).write_bytes(bytes(data))
    again = cls(**given, runner=FederatedRunner(checkpoint=path, resume=True))
    try:
        checked_fit(case, again, (logits, labels), {"client_ids": ids})
    except Exception:
        if Path(path).read_bytes() != bytes(data):
            raise Broken("a refused checkpoint was changed") from None
        raise
    if not np.array_equal(first.predict_proba(logits), again.predict_proba(logits)):
        raise Broken("another answer from the checkpoint")


@contextlib.contextmanager
def listening(heard):
    """Call `heard` before every release of noisy sums."""
    kinds = (LatticeGaussian, LatticeLaplace, LocalSum)
    plain = {kind: kind.release for kind in kinds}

    def watched(kind):
        def release(self, *args, **kwargs):
            heard()
            return plain[kind](self, *args, **kwargs)

        return release

    for kind in kinds:
        kind.release = watched(kind)
    try:
        yield
    finally:
        for kind in kinds:
            kind.release = plain[kind]


def paid(case):
    """A private fit: every release finds its record on the disk already."""
    path = case.path("ledger.jsonl")
    for name in os.listdir(case.folder):
        if "ledger.jsonl" in name:
            os.unlink(case.path(name))
    logits, labels, ids = clean_rows()
    logits, labels, ids, _ = harmed(case, logits, labels, ids)
    name = case.pick("estimator", [*CALIBRATORS, "ScoreHistogram"])
    model = case.pick("model", ("CentralDP", "DistributedDP", "LocalDP", "SourceDP"))
    eps = case.pick("eps", (1.0, 1.0, 30.0))  # the last is above the budget
    seen, asked = [], True
    given = {"privacy": getattr(privacy, model)(eps),
             "ledger": PrivacyLedger(path, budget=(3.0, 1e-3))}  # fmt: skip
    with listening(lambda: seen.append(_records(path))):
        if name == "ScoreHistogram":
            ScoreHistogram.fit(logits, labels, client_ids=ids, height=2, **given)
        else:
            given |= {**QUICK.get(name, {}), "classes": [0, 1, 2]}
            estimator = getattr(skfedcal, name)(**given)
            with _counted(seen):
                checked_fit(case, estimator, (logits, labels), {"client_ids": ids})
            asked = estimator.n_rounds_ > 0  # too few clients are not asked
    if bool(_records(path)) != asked or eps > 3:
        raise Broken("a private answer without a record, or above the budget")
    _check_seen(seen)


@contextlib.contextmanager
def _counted(seen):
    try:
        yield
    except Exception:
        _check_seen(seen)
        raise


def _check_seen(seen):
    if not all(seen):
        raise Broken("noisy sums were released before the debit was on the disk")


def _records(path):
    if not os.path.exists(path):
        return 0
    return sum('"event"' in line for line in Path(path).read_text().splitlines())


ENTRIES = [
    ("audit", 2, two_worlds),
    ("audit_one_run", 1, one_run),
    ("audit_estimator", 1, of_estimator),
    ("ledger files", 3, ledger_file),
    ("checkpoint files", 2, checkpoint_file),
    ("ledger of a fit", 3, paid),
]
