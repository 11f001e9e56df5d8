"""Entry points: every public estimator, with hostile data and settings."""

import copy
import functools
from dataclasses import fields
from pathlib import Path

import numpy as np
from fuzz_engine import Broken
from fuzz_values import (
    HARMLESS_LABELS,
    HARMLESS_ROWS,
    HOSTILE_IDS,
    HOSTILE_LABELS,
    HOSTILE_ROWS,
    HOSTILE_SETTINGS,
    HOSTILE_WEIGHTS,
    NO_LABELS,
    NO_ROWS,
)
from sklearn.linear_model import LogisticRegression

import skfedcal
from skfedcal import (
    FederatedCalibratedClassifier,
    FederatedRunner,
    FedGaussianHead,
    FedTempCalibrator,
    LogitTransformer,
    privacy,
)

CALIBRATORS = [
    name
    for name in skfedcal.__all__
    if name.startswith("Fed") and name.endswith("Calibrator")
]

HOSTILE_PATHS = ("none", "nan", "-1", "2**64", "bytes", "complex", "list", "object",
                 "type", "array", "mapping")  # fmt: skip

# What keeps a fit short; a case may overrule it.
QUICK = {"FedMLPCalibrator": {"runner": FederatedRunner(n_rounds=1), "epochs": 1}}
SLOW = {"FedMLPCalibrator", "FedOPVectorCalibrator", "FedMatrixCalibrator"}


@functools.cache
def clean_rows(n_classes=3):
    """Logits, labels and client ids of 24 rows at 3 clients."""
    rng = np.random.default_rng(n_classes)
    logits = rng.normal(size=(24, n_classes)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    labels[:n_classes] = np.arange(n_classes)
    return logits, labels, np.arange(24) % 3


def harmed(case, logits, labels, ids):
    """The rows with one thing wrong, and whether the answer must stay the same."""
    kind = case.rng.random()
    if kind < 0.15:
        return case.pick("rows", HARMLESS_ROWS)(logits, case.rng), labels, ids, True
    if kind < 0.25:
        return logits, case.pick("labels", HARMLESS_LABELS)(labels, case.rng), ids, True
    if kind < 0.6:
        return case.pick("rows", HOSTILE_ROWS)(logits, case.rng), labels, ids, False
    if kind < 0.8:
        spoilt = case.pick("labels", HOSTILE_LABELS)(labels, case.rng)
        return logits, spoilt, ids, False
    if kind < 0.9:
        return logits, labels, case.pick("ids", HOSTILE_IDS)(ids, case.rng), False
    return logits, labels, ids, False


def call_form(case, logits, labels, ids):
    """Arguments of `fit` in one of its forms; clients with one of them spoilt."""
    form = case.pick("form", ("rows", "ids", "pairs", "names", "lists", "odd"))
    logits, labels, ids, same = harmed(case, logits, labels, ids)
    if form == "rows":
        return (logits, labels), {}, same
    if form == "ids":
        return (logits, labels), {"client_ids": ids}, same
    other = clean_rows()[:2]
    if form == "pairs":
        return ([other, (logits, labels)],), {}, False
    if form == "names":
        return ({"a": other, "b": (logits, labels)},), {}, False
    if form == "lists":
        return ([other[0], logits], [other[1], labels]), {}, False
    return _odd_form(case, logits, labels, ids), {}, False


def _odd_form(case, logits, labels, ids):
    """Forms that are none."""
    return case.pick(
        "odd",
        {
            "no clients": ([],),
            "no names": ({},),
            "pair": ((logits, labels),),
            "triples": ([(logits, labels, ids)],),
            "no labels": ([logits, logits],),
            "unhashable": ([(logits, labels)] * 2, None),
            "empty clients": ([(clean_rows()[0][:0], clean_rows()[1][:0])] * 3,),
            "nested": ([[(logits, labels)]],),
            "generator": ((pair for pair in [(logits, labels)]),),
            "text": ("clients.npz",),
            "number names": ({1: (logits, labels), "1": (logits, labels)},),
            "nan name": ({float("nan"): (logits, labels)},),
            "none": (None, None),
            "lists of other length": ([logits], [labels, labels]),
        },
    )


def settings(case, cls, base):
    """Parameters of an estimator, one of them hostile in half of the cases."""
    params = dict(base)
    if case.chance(0.1) and "privacy" in cls._get_param_names():
        model = case.pick(
            "model", ("CentralDP", "DistributedDP", "LocalDP", "SourceDP")
        )
        made = getattr(privacy, model)
        field = case.pick("field", [item.name for item in fields(made)])
        given = {"eps": 1.0, field: case.pick("value", HOSTILE_SETTINGS)}
        params["privacy"] = made(**given)
    elif case.chance(0.3):
        params["eps"] = 1.0
    if case.chance(0.5):
        names = sorted(set(cls._get_param_names()) - {"estimator", "calibrator"})
        name = case.pick("param", names)
        if not (name == "n_jobs" or (name == "runner" and "epochs" in base)):
            params[name] = case.pick("value", HOSTILE_SETTINGS)
    return params


def checked_fit(case, estimator, args, kwargs):
    """Fit; after an error the estimator must be as it was."""
    case.watch(*args, *kwargs.values())
    before = dict(vars(estimator))
    try:
        return estimator.fit(*args, **kwargs)
    except Exception:
        after = vars(estimator)
        if set(after) != set(before) or any(after[k] is not before[k] for k in before):
            raise Broken("half-fitted after an error") from None
        raise


def check_proba(proba, n_classes, n_rows=None, slack=None):
    """Rows of probabilities: finite, from 0 to 1, with sum 1."""
    if not isinstance(proba, np.ndarray) or proba.dtype.kind != "f":
        raise Broken(f"probabilities are {type(proba).__name__}")
    if proba.ndim != 2 or proba.shape[1] != n_classes:
        raise Broken(f"probabilities of shape {proba.shape}, {n_classes} classes")
    if n_rows is not None and len(proba) != n_rows:
        raise Broken(f"{len(proba)} rows of probabilities for {n_rows} rows")
    if not np.isfinite(proba).all() or (proba < 0).any() or (proba > 1).any():
        raise Broken("probabilities that are none")
    if slack is None:
        slack = 8 * n_classes * np.finfo(proba.dtype).eps
    if np.abs(proba.sum(axis=1, dtype=float) - 1).max(initial=0) > slack:
        raise Broken("probabilities that do not sum to 1")


def check_refused(case, rows="rows", labels="labels"):
    """Raise where rows that hold no scores, or labels that are none, got an answer."""
    if any(note.startswith("odd=") for note in case.notes):
        return  # not all of these forms have the spoilt rows in them
    for name, kinds in ((rows, NO_ROWS), (labels, NO_LABELS)):
        for kind in kinds:
            if f"{name}={kind}" in case.notes:
                raise Broken(f"an answer for {name} that are none ({kind})")


def check_same(estimator, clean, args, kwargs):
    """The same map as from a plain copy of the same rows."""
    rows = clean_rows()[0]
    try:
        plain = copy.deepcopy(clean).fit(*args, **kwargs)
    except Exception as error:
        raise Broken(f"refuses plain rows only: {type(error).__name__}") from None
    mine, theirs = estimator.predict_proba(rows), plain.predict_proba(rows)
    if mine.shape != theirs.shape or not np.allclose(mine, theirs, atol=1e-7):
        raise Broken("another answer than for a plain copy")


def calibrator(name, case):
    """Fit and predict."""
    cls = getattr(skfedcal, name)
    params = settings(case, cls, QUICK.get(name, {}))
    estimator = cls(**params)
    logits, labels, ids = clean_rows()
    if case.chance(0.3):
        args, kwargs, same = (logits, labels), {"client_ids": ids}, False
    else:
        args, kwargs, same = call_form(case, logits, labels, ids)
    if case.chance(0.1):
        kwargs["sample_weight"] = case.pick("weights", HOSTILE_WEIGHTS)(
            labels, case.rng
        )
        same = False
    plain = cls(**{**QUICK.get(name, {}), **params})
    checked_fit(case, estimator, args, kwargs)
    check_refused(case)
    n_classes = len(estimator.classes_)
    check_proba(estimator.predict_proba(logits[:, : estimator.n_features_in_]),
                n_classes, len(logits))  # fmt: skip
    if same and "eps" not in params and estimator.get_params()["privacy"] is None:
        ids = {"client_ids": ids} if kwargs else {}
        if len({"random_state", "eps", "clip"} & set(params)) == 0:
            check_same(estimator, plain, (logits, labels), ids)


@functools.cache
def fitted(name):
    """A fitted estimator, made once."""
    cls = getattr(skfedcal, name)
    logits, labels, ids = clean_rows()
    return cls(**QUICK.get(name, {})).fit(logits, labels, client_ids=ids)


def predictor(name, case):
    """Predict hostile rows with a good map."""
    estimator = fitted(name)
    logits, labels, _ = clean_rows()
    verb = case.pick("verb", ("predict_proba", "predict", "predict_log_proba", "score"))
    if not hasattr(estimator, verb):
        verb = "predict_proba"
    harmless = case.chance(0.3)
    choices = HARMLESS_ROWS if harmless else HOSTILE_ROWS
    rows = case.pick("rows", choices)(logits, case.rng)
    case.watch(rows)
    if verb == "score":
        if case.chance(0.3):
            labels = case.pick("labels", HOSTILE_LABELS)(labels, case.rng)
        score = estimator.score(rows, labels)
        if not 0 <= score <= 1:
            raise Broken(f"accuracy {score}")
        return
    found = getattr(estimator, verb)(rows)
    check_refused(case)
    if hasattr(rows, "detach") != hasattr(found, "detach"):
        raise Broken(f"{type(found).__name__} for {type(rows).__name__}")
    if hasattr(found, "detach"):
        found = found.numpy()
    if verb == "predict_proba":
        check_proba(found, len(estimator.classes_))
    elif verb == "predict_log_proba":
        check_proba(np.exp(found), len(estimator.classes_), slack=1e-5)
    elif not np.isin(found, estimator.classes_).all():
        raise Broken("labels that are no classes")
    plain = getattr(estimator, verb)(logits)
    # A sum along the other axis of memory may differ in the last bits.
    if harmless and not np.allclose(found, plain, rtol=1e-12, atol=0):
        raise Broken(f"another {verb} than for a plain copy")


def head(case):
    """FedGaussianHead, on features."""
    params = settings(case, FedGaussianHead, {})
    if case.chance(0.9):
        params.setdefault("max_norm", 10.0) if "eps" in params else None
    estimator = FedGaussianHead(**params)
    logits, labels, ids = clean_rows()
    args, kwargs, _ = call_form(case, logits, labels, ids)
    checked_fit(case, estimator, args, kwargs)
    check_refused(case)
    rows = logits[:, : estimator.n_features_in_]
    if case.chance(0.5):
        rows = case.pick("predict", HOSTILE_ROWS)(rows, case.rng)
    check_proba(estimator.predict_proba(rows), len(estimator.classes_))
    check_refused(case, "predict")


# Rows that scikit-learn refuses with errors that are not its own.
THEIRS = {
    "rows=huge ints",
    "rows=list of huge",
    "rows=frame twice",
    "rows=needs grad",
}


def composed(case):
    """A classifier with a calibrator behind it."""
    cls = case.pick("cls", (FederatedCalibratedClassifier, LogitTransformer))
    params = settings(case, cls, {"cv": 2})
    params.pop("eps", None)
    inner = case.pick(
        "estimator",
        {
            "logistic": LogisticRegression(max_iter=50),
            "none": None,
            "calibrator": FedTempCalibrator(),
            "type": LogisticRegression,
            "text": "logistic",
        },
    )
    estimator = cls(inner, **params)
    logits, labels, ids = clean_rows()
    logits, labels, ids, _ = harmed(case, logits, labels, ids)
    if THEIRS & set(case.notes):
        case.outcome = "left to the classifier of the caller"
        return
    kwargs = {"client_ids": ids} if cls is FederatedCalibratedClassifier else {}
    checked_fit(case, estimator, (logits, labels), kwargs)
    rows = clean_rows()[0]
    if cls is FederatedCalibratedClassifier:
        check_proba(estimator.predict_proba(rows), len(estimator.classes_))
    elif not np.isfinite(estimator.transform(rows)).all():
        raise Broken("logits that are not finite")


def saved_to(case):
    """`save` to a path that may be none: a whole file, or none and the old one left."""
    estimator = fitted(case.pick("name", CALIBRATORS))
    good = case.path("saved.json")
    Path(good).write_text("old")
    path = case.pick(
        "path",
        {
            **{key: HOSTILE_SETTINGS[key] for key in HOSTILE_PATHS},
            "good": good,
            "folder": case.folder,
            "no folder": case.path("none/saved.json"),
            "under a file": case.path("saved.json/x"),
            "zero byte": case.path("a\0b"),
            "too long": case.path("x" * 300),
        },
    )
    try:
        estimator.save(path)
    except Exception:
        if Path(good).read_text() != "old":
            raise Broken("the old file was changed by an error") from None
        raise
    again = skfedcal.load(path)
    rows = clean_rows()[0]
    if not np.array_equal(again.predict_proba(rows), estimator.predict_proba(rows)):
        raise Broken("another map from the file")


def unfitted(case):
    """Predict before fit."""
    cls = getattr(skfedcal, case.pick("cls", [*CALIBRATORS, "FedGaussianHead"]))
    verb = case.pick("verb", ("predict_proba", "predict", "score", "save"))
    if verb == "save" and not hasattr(cls, "save"):
        verb = "predict"
    logits, labels, _ = clean_rows()
    path = case.path("unfitted.json")
    args = {"score": (logits, labels), "save": (path,)}.get(verb, (logits,))
    getattr(cls(), verb)(*args)
    raise Broken(f"{verb} of an estimator that was not fitted")


ENTRIES = [
    *(
        (f"{name}.fit", 1 if name in SLOW else 3, functools.partial(calibrator, name))
        for name in CALIBRATORS
    ),
    *((f"{name}.predict", 4, functools.partial(predictor, name))
      for name in CALIBRATORS),
    ("FedGaussianHead", 4, head),
    ("compose", 1, composed),
    ("unfitted", 1, unfitted),
    ("save", 1, saved_to),
]  # fmt: skip
