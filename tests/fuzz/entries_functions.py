"""Entry points: metrics, federated metrics, histograms, planning, data makers."""

import functools
import inspect

import numpy as np
from entries_estimators import call_form, check_refused, clean_rows
from fuzz_engine import Broken
from fuzz_values import (
    HARMLESS_ROWS,
    HOSTILE_LABELS,
    HOSTILE_ROWS,
    HOSTILE_SETTINGS,
    HOSTILE_WEIGHTS,
)

import skfedcal
from skfedcal import (
    CalibrationMonitor,
    CentralDP,
    ClasswiseResiduals,
    DirichletPartitioner,
    DistributedDP,
    FederatedDataset,
    GroupPartitioner,
    IIDPartitioner,
    LocalDP,
    ScoreHistogram,
    SourceDP,
    evaluation,
    forecast,
    make_federation,
    metrics,
    privacy,
)
from skfedcal.datasets import (
    corrupt,
    covariate_shift,
    feature_shift,
    label_shift,
    make_shift,
    split_clients,
)

PRIVACY = {
    "none": None,
    "central": CentralDP(1.0),
    "rows": CentralDP(1.0, unit="example"),
    "distributed": DistributedDP(1.0),
    "local": LocalDP(1.0),
    "source": SourceDP(1.0),
}

# More than this a caller may want and a case has no time for.
LARGE = 10**6


def hostile_call(case, function, args=(), keep=(), **given):
    """Call with one keyword hostile, in half of the cases."""
    names = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.name not in keep
    ]
    if names and case.chance(0.5):
        name = case.pick("param", sorted(names))
        given[name] = case.pick("value", HOSTILE_SETTINGS)
        if name == "n_samples" and isinstance(given[name], int):
            # What a larger machine has the memory for is no wrong request.
            given[name] = min(given[name], LARGE)
    case.watch(*args, *given.values())
    return function(*args, **given)


METRICS = [
    "brier_score",
    "calibration_error",
    "classwise_calibration_error",
    "expected_calibration_error",
    "negative_log_likelihood",
]


def _softmax(logits):
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def metric(name, case):
    """A metric of labels and probabilities."""
    logits, labels, _ = clean_rows(2 if name == "calibration_error" else 3)
    proba = _softmax(logits)
    plain, kind, given = (labels, proba), case.rng.random(), {}
    y, p = plain
    if kind < 0.4:
        p = case.pick("proba", HOSTILE_ROWS)(p, case.rng)
    elif kind < 0.6:
        y = case.pick("labels", HOSTILE_LABELS)(y, case.rng)
    elif kind < 0.8:
        p = case.pick("proba", HARMLESS_ROWS)(p, case.rng)
    else:
        given["sample_weight"] = case.pick("weights", HOSTILE_WEIGHTS)(y, case.rng)
    function = getattr(metrics, name)
    found = hostile_call(case, function, (y, p), **given)
    check_refused(case, "proba")
    if np.ndim(found) == 0 and not 0 <= found < np.inf:
        raise Broken(f"{name} is {found}")
    if not np.isfinite(found).all():
        raise Broken(f"{name} is {found}")
    if 0.6 <= kind < 0.8 and not case.notes[1:]:
        same = function(*plain)
        if not np.allclose(found, same, rtol=1e-9):
            raise Broken("another value than for a plain copy")


def uncertainty(case):
    """Metrics of probabilities alone."""
    proba = _softmax(clean_rows()[0])
    name = case.pick(
        "name", ("predictive_entropy", "variation_ratio", "calibration_floor")
    )
    given = {"n_repeats": 2, "random_state": 0} if name == "calibration_floor" else {}
    rows = case.pick("proba", HOSTILE_ROWS)(proba, case.rng)
    found = hostile_call(case, getattr(metrics, name), (rows,), ("n_repeats",), **given)
    check_refused(case, "proba")
    values = found.mean if name == "calibration_floor" else found
    if not np.isfinite(values).all():
        raise Broken(f"{name} is {values}")


FEDERATED = sorted(n for n in skfedcal.__all__ if n.startswith("federated_"))


def federated(name, case):
    """A federated metric."""
    n_classes = 3 if case.chance(0.3) else 2
    args, kwargs, _ = call_form(case, *clean_rows(n_classes))
    kwargs["privacy"] = case.pick("privacy", PRIVACY)
    if name == "federated_roc_auc_score" and n_classes == 3:
        kwargs["multi_class"] = "ovr" if case.chance(0.5) else "ovo"
    if name[10:] in ("precision_score", "recall_score", "f1_score") and n_classes == 3:
        kwargs["average"] = "macro"
    if name == "federated_compare_scores":
        args = (args[0], args[0], *args[1:])
        names = ("accuracy", "brier", "log_loss", "roc_auc")
        kwargs["metric"] = case.pick("metric", names[: 6 - n_classes])
    elif name == "federated_gain":
        args = (_calibrator(n_classes), *args)
        kwargs["metric"] = case.pick("metric", ("accuracy", "brier", "log_loss"))
        kwargs["held_back"] = case.chance(0.5)
    elif kwargs["privacy"] is not None and case.chance(0.8):
        kwargs["height"] = 1
    found = hostile_call(case, getattr(skfedcal, name), args, **kwargs)
    check_refused(case)
    check_answer(getattr(found, "difference", found), name)


@functools.cache
def _calibrator(n_classes):
    logits, labels, _ = clean_rows(n_classes)
    return skfedcal.FedTempCalibrator().fit(logits, labels)


# Answers that are no share of anything; the unbiased square of an error may be below 0.
UNBOUNDED = {"log_loss", "federated_log_loss", "l2_ece", "confusion",
             "federated_brier_score_loss", "federated_confusion_matrix",
             "federated_balanced_accuracy_score", "federated_compare_scores",
             "federated_calibration_error", "federated_gain"}  # fmt: skip


def check_answer(found, name=""):
    """Numbers with their intervals, and curves; nan stands for what is not defined."""
    if isinstance(found, evaluation.ClassificationReport):
        for entry, value in found.entries.items():
            check_answer(value, "log_loss" if entry in ("log loss", "brier") else name)
        return
    if isinstance(found, dict):
        for column, value in found.items():
            check_answer(value, "log_loss" if column == "support" else name)
        return
    if isinstance(found, (tuple, list)) and not isinstance(found, evaluation.Estimate):
        for part in found:
            check_answer(part, name)
        return
    if isinstance(found, evaluation.Estimate):
        low, value, high = found.low, float(found), found.high
        if not (low <= high or np.isnan([low, high]).any()):
            raise Broken(f"interval from {low} to {high}")
        if np.isinf(value) or (not np.isnan(value) and np.isnan([low, high]).any()):
            raise Broken(f"{value} with the interval from {low} to {high}")
        share = np.isnan(value) or -1e-9 <= value <= 1 + 1e-9
        if name not in UNBOUNDED and not share:
            raise Broken(f"a share of {value}")


@functools.cache
def histogram(private=False):
    """A fitted histogram, made once."""
    model = CentralDP(1.0, unit="example") if private else None
    return ScoreHistogram.fit(
        *clean_rows(2)[:2], client_ids=clean_rows(2)[2], height=4, privacy=model,
        random_state=0,
    )  # fmt: skip


ANSWERS = (
    "roc_auc", "roc_curve", "pr_curve", "average_precision", "brier", "log_loss",
    "reliability", "equi_depth", "ece", "l2_ece", "accuracy", "precision", "recall",
    "f1", "confusion",
)  # fmt: skip


def histogram_fit(case):
    """Fit a histogram or residuals and ask one thing."""
    cls = case.pick("cls", (ScoreHistogram, ClasswiseResiduals))
    args, kwargs, _ = call_form(case, *clean_rows(2))
    kwargs["privacy"] = case.pick("privacy", PRIVACY)
    if cls is ScoreHistogram and kwargs["privacy"] is not None:
        kwargs["height"] = case.pick("height", (1, "auto"))
    found = hostile_call(case, cls.fit, args, **kwargs)
    if cls is ScoreHistogram:
        found.roc_curve()
        ScoreHistogram.from_json(found.to_json())
    else:
        check_answer(found.cwece())
    check_refused(case)


def monitoring(case):
    """Start a monitor, update it and ask one thing."""
    given = {"eps": case.pick("eps", (None, 1.0)), "periods": 3, "random_state": 0}
    keep = ("path", "ledger", "runner", "privacy")
    monitor = hostile_call(case, CalibrationMonitor, keep=keep, **given)
    args, kwargs, _ = call_form(case, *clean_rows(2))
    monitor.update(*args, **kwargs)
    check_refused(case)
    case.pick("answer", (repr, CalibrationMonitor.summary))(monitor)
    name = case.pick("name", ("estimate", "series", "histogram", "recalibration"))
    getattr(monitor, name)(case.pick("argument", HOSTILE_SETTINGS))


def histogram_answer(case):
    """Ask a good histogram with hostile arguments."""
    hist = histogram(case.chance(0.5))
    name = case.pick("answer", ANSWERS)
    verb = getattr(hist, name)
    args, taken = (), inspect.signature(verb).parameters
    named = {}
    if "n_buckets" in taken:
        value = case.pick("n_buckets", HOSTILE_SETTINGS)
        if taken["n_buckets"].kind is inspect.Parameter.KEYWORD_ONLY:
            named["n_buckets"] = value
        else:
            args = (value,)
    elif "threshold" in taken and case.chance(0.5):
        args = (case.pick("threshold", HOSTILE_SETTINGS),)
    check_answer(hostile_call(case, verb, args, **named), name)


def forecasting(case):
    """`forecast` of anything; one fit of one method keeps it short."""
    args = [case.pick("clients", (3, 50)), case.pick("rows", (1, 7))]
    if case.chance(0.3):
        args[case.pick("place", (0, 1))] = case.pick("number", HOSTILE_SETTINGS)
    given = {"n_fits": 1, "methods": ["FedTemp"]}
    given["privacy"] = case.pick("privacy", PRIVACY)
    found = hostile_call(case, forecast, tuple(args), ("n_fits", "n_classes"), **given)
    if not found.advice or not found.to_dict()["widths"]:
        raise Broken("a forecast without advice or widths")


def histogram_merge(case):
    """Merge with anything."""
    other = case.pick("other", {**HOSTILE_SETTINGS, "histogram": histogram(False)})
    histogram(case.chance(0.5)).merge(other)


def planning(case):
    """`plan`, `expected_error` and the bounds."""
    names = ("plan", "expected_error", "auc_bound", "auc_certificate",
             "auc_discretisation", "calibration_bound", "rates_bound",
             "threshold_uncertainty")  # fmt: skip
    name = case.pick("name", names)
    if name in ("plan", "expected_error"):
        names = ("roc_auc", "f1", "calibration", "cwece", None, 1, "x")
        first = case.pick("metric", names)
        second = {"plan": 0.05, "expected_error": 1000}[name]
        given = {"privacy": case.pick("privacy", PRIVACY)}
        given |= {"n_examples": 1000} if name == "plan" else {}
        args = [first, second]
    else:
        args, given = [case.pick("first", HOSTILE_SETTINGS)], {}
        if name in ("auc_bound", "threshold_uncertainty"):
            args.append(8)
        if name in ("auc_bound", "calibration_bound", "rates_bound",
                    "threshold_uncertainty") and case.chance(0.7):  # fmt: skip
            args[0] = 1000
            given = {"trust": case.pick("trust", ("exact", "distributed", "local"))}
            given["eps"] = 1.0
    if case.chance(0.4):
        args[-1] = case.pick("last", HOSTILE_SETTINGS)
    found = hostile_call(case, getattr(evaluation, name), tuple(args), **given)
    numbers = found if isinstance(found, tuple) else (found,)
    for number in numbers:
        if isinstance(number, float) and not 0 <= number < np.inf:
            raise Broken(f"{name} is {number}")


def accounting(case):
    """Conversions and calibration of noise."""
    name = case.pick(
        "name",
        ("gdp_delta", "gdp_epsilon", "gdp_mu", "zcdp_delta", "zcdp_epsilon",
         "zcdp_rho", "calibrate_noise", "GaussianEvent", "PureEvent",
         "SampledGaussianEvent", "CentralDP", "DistributedDP", "LocalDP", "SourceDP",
         "compose_epsilon"),
    )  # fmt: skip
    function = getattr(privacy, name)
    n_args = 1 if name in ("GaussianEvent", "PureEvent") or "DP" in name else 2
    args = [0.5] * n_args
    args[int(case.rng.integers(n_args))] = case.pick("value", HOSTILE_SETTINGS)
    given = {}
    fields = [p.name for p in inspect.signature(function).parameters.values()][n_args:]
    if fields and case.chance(0.5):
        given[case.pick("param", fields)] = case.pick("value", HOSTILE_SETTINGS)
    found = function(*args, **given)
    if isinstance(found, float) and not found >= 0:
        raise Broken(f"{name} is {found}")
    if name == "calibrate_noise" and not 0 < found.noise_multiplier < np.inf:
        raise Broken(f"noise of {found.noise_multiplier}")


def dataset(case):
    """A dataset by hand."""
    rows, labels, _ = clean_rows()
    args = {"rows": rows, "labels": labels, "offsets": np.array([0, 12, 24]),
            "names": ["a", "b"], "n_classes": 3}  # fmt: skip
    name = case.pick("field", [*args, "weights", "order"])
    choices = HOSTILE_ROWS if name == "rows" else HOSTILE_LABELS
    if name in ("names", "n_classes", "offsets"):
        args[name] = case.pick("value", HOSTILE_SETTINGS)
    else:
        args[name] = case.pick("value", choices)(
            rows if name == "rows" else labels, case.rng
        )
    case.watch(*args.values())
    FederatedDataset(**args)


def synthetic(case):
    """Makers of federations and shifts."""
    function = case.pick("function", (make_federation, make_shift))
    given = {"n_clients": 3, "n_samples": 30, "n_classes": 3, "n_test": 5}
    if function is make_shift:
        given["n_train"] = 60
    names = list(inspect.signature(function).parameters)
    for _ in range(int(case.rng.integers(1, 3))):
        value = case.pick("value", HOSTILE_SETTINGS)
        # What would fit into the memory of a larger machine is no wrong request.
        if not (isinstance(value, int) and LARGE < value < 2**40):
            given[case.pick("param", names)] = value
    made = function(**given)
    arrays = [value for value in vars(made).values() if isinstance(value, np.ndarray)]
    arrays += [made[key] for key in made if isinstance(made[key], np.ndarray)]
    if any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in arrays):
        raise Broken("rows that are not finite")


def partition(case):
    """Partitioners."""
    _, labels, ids = clean_rows()
    cls = case.pick("cls", (IIDPartitioner, DirichletPartitioner, GroupPartitioner))
    given = {"n_clients": 3}
    given |= {"alpha": 0.5} if cls is DirichletPartitioner else {}
    given |= {"groups": ids} if cls is GroupPartitioner else {}
    if case.chance(0.6):
        names = list(inspect.signature(cls).parameters)
        given[case.pick("param", names)] = case.pick("value", HOSTILE_SETTINGS)
    if case.chance(0.5):
        labels = case.pick("labels", HOSTILE_LABELS)(labels, case.rng)
    case.watch(labels, *given.values())
    assigned = cls(**given).assign(labels)
    if len(assigned) != len(labels):
        raise Broken(f"{len(assigned)} owners of {len(labels)} rows")
    if not len(assigned):
        return
    n_clients = given["n_clients"]
    top = np.inf if n_clients is None else int(n_clients)
    if assigned.dtype.kind != "i" or not (0 <= assigned.min() <= assigned.max() < top):
        raise Broken(f"clients {assigned.min()} to {assigned.max()} of {n_clients}")


def shifting(case):
    """Shifted copies of rows, and images that are spoilt."""
    rows, labels, _ = clean_rows()
    function = case.pick(
        "function",
        (covariate_shift, feature_shift, label_shift, corrupt, split_clients),
    )
    if function is corrupt:
        images = np.full((2, 8, 8, 3), 7, dtype=np.uint8)
        images = case.pick("images", HOSTILE_ROWS)(images[:, :, 0, 0], case.rng)
        kind = case.pick("kind", ("gaussian_noise", "jpeg_compression", None, 3, "x"))
        return corrupt(images, kind, case.pick("severity", HOSTILE_SETTINGS))
    if function is split_clients:
        clients = case.pick("clients", {**HOSTILE_SETTINGS, "good": [(rows, labels)]})
        return split_clients(clients, case.pick("fractions", HOSTILE_SETTINGS))
    if case.chance(0.5):
        rows = case.pick("rows", HOSTILE_ROWS)(rows, case.rng)
    else:
        labels = case.pick("labels", HOSTILE_LABELS)(labels, case.rng)
    args = (rows, "noise") if function is feature_shift else (rows, labels)
    return hostile_call(case, function, args, random_state=0)


ENTRIES = [
    *((f"metrics.{name}", 4, functools.partial(metric, name)) for name in METRICS),
    ("metrics.uncertainty", 3, uncertainty),
    *((name, 2, functools.partial(federated, name)) for name in FEDERATED),
    ("ScoreHistogram.fit", 4, histogram_fit),
    ("ScoreHistogram answers", 6, histogram_answer),
    ("ScoreHistogram.merge", 1, histogram_merge),
    ("CalibrationMonitor", 4, monitoring),
    ("planning", 3, planning),
    ("forecast", 2, forecasting),
    ("accounting", 4, accounting),
    ("FederatedDataset", 2, dataset),
    ("make_federation", 2, synthetic),
    ("partitioners", 4, partition),
    ("datasets", 4, shifting),
]
