"""The experiment behind ``skfedcal demo``: data, model, runs and verdict.

- A small net trained by federated averaging, as the demo's model to calibrate.
- A base model and a federation made of scikit-learn's digits.
- The runs of the demo as a comparison, for its report.
- Calibrate the digits with and without privacy, and score the result.
- Summary in sentences of the results of the demo, good or bad.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skfedcal._numerics import label_losses, softmax
from skfedcal._version import __version__

# Clients per round, passes over a client's rows, rows per step, and step size.
COHORT, EPOCHS, BATCH, LEARNING_RATE = 8, 4, 20, 0.1


@dataclass(frozen=True, slots=True)
class Net:
    """One hidden layer."""

    weights: tuple[np.ndarray, ...]

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Scores of each class."""
        hidden, offset, last, bias = self.weights
        return np.maximum(features @ hidden + offset, 0) @ last + bias

    def step(self, features: np.ndarray, labels: np.ndarray) -> Net:
        """One step down the gradient of the mean log loss."""
        hidden, offset, last, bias = self.weights
        active = np.maximum(features @ hidden + offset, 0)
        scores = active @ last + bias
        error = np.exp(scores - scores.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(labels)), labels] -= 1
        error *= LEARNING_RATE / len(labels)
        back = (error @ last.T) * (active > 0)
        return Net(
            (
                hidden - features.T @ back,
                offset - back.sum(axis=0),
                last - active.T @ error,
                bias - error.sum(axis=0),
            )
        )


def train_federated(
    features: np.ndarray,
    labels: np.ndarray,
    client_ids: np.ndarray,
    *,
    n_hidden: int,
    n_rounds: int,
    rng: np.random.Generator,
) -> Net:
    """Average the nets that the clients of each round train on their own rows."""
    n_features, n_classes = features.shape[1], int(labels.max()) + 1
    first = rng.standard_normal((n_features, n_hidden)) * np.sqrt(2 / n_features)
    last = rng.standard_normal((n_hidden, n_classes)) * np.sqrt(1 / n_hidden)
    net = Net((first, np.zeros(n_hidden), last, np.zeros(n_classes)))
    clients = [np.flatnonzero(client_ids == name) for name in np.unique(client_ids)]
    for _ in range(n_rounds):
        chosen = rng.choice(len(clients), min(COHORT, len(clients)), replace=False)
        trained = [_train_local(net, features, labels, clients[i], rng) for i in chosen]
        sizes = [len(clients[i]) for i in chosen]
        layers = zip(*(local.weights for local in trained), strict=True)
        net = Net(tuple(np.average(layer, axis=0, weights=sizes) for layer in layers))
    return net


def _train_local(
    net: Net,
    features: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    rng: np.random.Generator,
) -> Net:
    for _ in range(EPOCHS):
        order = rng.permutation(rows)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            net = net.step(features[batch], labels[batch])
    return net


# Standard deviation of the noise on pixels in [0, 1]; with clean digits the base model
# is right too often to have much to calibrate.
PIXEL_NOISE = 0.2

# Seed of the digits and the base model if the user gives none: both are public.
PUBLIC_SEED = 0


@dataclass(frozen=True, slots=True)
class DemoSize:
    """Size of the demo."""

    n_train: int = 200
    n_calibration: int = 600
    n_clients: int = 100
    alpha: float = 0.1
    n_trainers: int = 40
    n_hidden: int = 64
    n_rounds: int = 150


@dataclass(frozen=True, slots=True)
class DigitsFederation:
    """Logits of the base model, for the clients and for the test."""

    logits: np.ndarray
    labels: np.ndarray
    client_ids: np.ndarray
    test_logits: np.ndarray
    test_labels: np.ndarray


def digit_views(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return nine views of each image: moved by up to one pixel, with fresh noise.

    Parameters
    ----------
    images : ndarray of shape (n, 8, 8)
        Pixels in [0, 1].
    rng : Generator
        Source of the noise.

    Returns
    -------
    views : ndarray of shape (n, 9, 64)
        Views of one image are neighbours.
    """
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    moved = [padded[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
    views = np.stack(moved, axis=1).reshape(len(images), 9, -1)
    return views + PIXEL_NOISE * rng.standard_normal(views.shape)


def make_digits_federation(size: DemoSize, seed: int) -> DigitsFederation:
    """Train the base model and compute its logits for the digits of clients and test.

    A digit is used in one place only, and all its views belong to one client. A test
    digit is shown once, so that test rows are independent, which the finite-sample
    floor assumes.
    """
    from sklearn.datasets import load_digits

    from skfedcal.clients import DirichletPartitioner

    rng = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(labels))
    views = digit_views(images[order].reshape(-1, 8, 8) / 16, rng)
    train, clients, test = np.split(
        np.arange(len(labels)), [size.n_train, size.n_train + size.n_calibration]
    )
    labels = labels[order]
    # Few classes per client in training: the net favours some of them.
    trainers = DirichletPartitioner(
        size.n_trainers, size.alpha, min_size=0, random_state=seed
    )
    net = train_federated(
        views[train].reshape(-1, 64),
        np.repeat(labels[train], 9),
        np.repeat(trainers.assign(labels[train]), 9),
        n_hidden=size.n_hidden,
        n_rounds=size.n_rounds,
        rng=rng,
    )
    partitioner = DirichletPartitioner(size.n_clients, size.alpha, random_state=seed)
    shown = rng.integers(9, size=len(test))
    return DigitsFederation(
        logits=net.logits(views[clients].reshape(-1, 64)),
        labels=np.repeat(labels[clients], 9),
        client_ids=np.repeat(partitioner.assign(labels[clients]), 9),
        test_logits=net.logits(views[test, shown]),
        test_labels=labels[test],
    )


N_BINS = 15


class DemoReport:
    """Collects what the demo fits.

    Parameters
    ----------
    data : DigitsFederation
        Logits of clients and test.
    base : ndarray of shape (n_test, 10)
        Probabilities of the net as it is.
    seed : int
        Seed of the floor.
    seeded : bool
        Whether the user gave it, so that noise is seeded too.
    """

    def __init__(
        self, data: DigitsFederation, base: np.ndarray, seed: int, seeded: bool
    ) -> None:
        self.data, self.base, self.seed, self.seeded = data, base, seed, seeded
        self.runs: list[dict[str, Any]] = []
        self._keep("base", "-", None, base)
        self._keep("central", "-", None, self._central())

    def add(
        self, method: str, eps: float | None, calibrator: Any, proba: np.ndarray
    ) -> None:
        """Keep one fit."""
        self._keep(method, "none" if eps is None else f"{eps:g}", calibrator, proba)

    def comparison(self) -> Any:
        """Return what `compare` would."""
        from skfedcal.experiments import Comparison

        command = (
            f"skfedcal demo --seed {self.seed}" if self.seeded else "skfedcal demo"
        )
        methods = dict.fromkeys(run["method"] for run in self.runs[2:])
        settings = {
            "version": __version__,
            "methods": list(methods),
            "eps": [None, 1.0],
            "seeds": [self.seed],
            "vary": {},
            "n_classes": self.base.shape[1],
            "clients dealt": True,
            "beta": DemoSize().alpha,
            "test given": True,
            "oracle": "FedBiasTemp",
            "n_bins": N_BINS,
            "file": "the digits of scikit-learn",
            "command": command,
        }
        return Comparison(self.runs, settings)

    def _central(self) -> np.ndarray:
        from skfedcal import FedBiasTempCalibrator

        oracle = FedBiasTempCalibrator(classes=np.arange(10))
        oracle.fit(self.data.logits, self.data.labels)
        proba: np.ndarray = oracle.predict_proba(self.data.test_logits)
        return proba

    def _keep(self, method: str, eps: str, calibrator: Any, proba: np.ndarray) -> None:
        from skfedcal.experiments.comparison.cells import cost, measure

        labels = self.data.test_labels
        scores = measure(labels, proba, self.base, seed=self.seed, n_bins=N_BINS)
        self.runs.append(
            {
                "method": method,
                "eps": eps,
                "seed": self.seed,
                **scores,
                **cost(calibrator),
                "n_clients": len(np.unique(self.data.client_ids)),
                "n_rows": len(self.data.labels),
                "n_test": len(labels),
            }
        )


# Short name, class and eps of each fit.
FITS = (
    ("FedTemp", "FedTempCalibrator", None),
    ("FedBBQ", "FedBBQCalibrator", None),
    ("FedBiasTemp", "FedBiasTempCalibrator", None),
    ("FedTemp", "FedTempCalibrator", 1.0),
    ("FedBiasTemp", "FedBiasTempCalibrator", 1.0),
)

# It is public that all digits are equally frequent.
OPTIONS = {"FedBiasTempCalibrator": {"class_prior": "uniform"}}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Scores of one method on the test digits, and what it cost.

    Errors and accuracy are fractions; `floor` is the cwECE that a perfectly calibrated
    model would show on as many rows. `eps` is None without differential privacy.
    """

    method: str
    eps: float | None
    delta: float | None
    classwise_ece: float
    floor: float
    floor_sd: float
    ece: float
    nll: float
    accuracy: float
    confidence: float
    n_rounds: int
    bytes_up: int
    bytes_down: int
    guarantee: str
    losses: np.ndarray = field(repr=False)
    gaps: np.ndarray = field(repr=False)
    hits: np.ndarray = field(repr=False)

    @property
    def name(self) -> str:
        """Method and budget, as in the text."""
        return self.method if self.eps is None else f"{self.method} (eps={self.eps:g})"

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON values, without those of single rows."""
        hidden = ("guarantee", "losses", "gaps", "hits")
        names = [name for name in self.__slots__ if name not in hidden]
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Outcomes, the first without calibration, and what all fits spent together.

    `comparison` is the same as a `Comparison`, with the central oracle, for the report.
    """

    outcomes: list[Outcome]
    n_test: int
    n_clients: int
    simulated: bool
    total_eps: float
    total_delta: float
    comparison: Any = None


def run_experiment(
    progress: Callable[[str], None],
    detail: Callable[[str], None],
    *,
    seed: int | None = None,
    size: DemoSize | None = None,
) -> DemoResult:
    """Train, calibrate and score.

    Parameters
    ----------
    progress : callable
        Told what is being done.
    detail : callable
        Told the guarantee of each private fit.
    seed : int, default=None
        Seed of everything. None takes the noise of private fits from the operating
        system, and a fixed seed for digits and base model.
    size : DemoSize, default=None
        Smaller for tests.
    """
    from skfedcal.privacy import PrivacyLedger

    size = DemoSize() if size is None else size
    public_seed = PUBLIC_SEED if seed is None else seed
    progress(
        f"training a small net on {size.n_train} noisy digits at {size.n_trainers} "
        "clients, by federated averaging"
    )
    data = make_digits_federation(size, public_seed)
    base = softmax(data.test_logits)
    outcomes = [score("base", base, data.test_labels, public_seed)]
    ledger = PrivacyLedger()
    report = DemoReport(data, base, public_seed, seed is not None)
    for method, estimator, eps in FITS:
        budget = "no noise" if eps is None else f"eps={eps:g}"
        progress(
            f"calibrating with {method}, {budget}: {size.n_clients} clients, "
            f"{len(data.labels)} rows"
        )
        calibrator = _fit(estimator, eps, data, ledger, seed)
        proba = calibrator.predict_proba(data.test_logits)
        report.add(method, eps, calibrator, proba)
        outcomes.append(_outcome(method, eps, calibrator, proba, data, public_seed))
        if eps is not None:
            detail(outcomes[-1].guarantee)
    delta = max(outcome.delta or 0.0 for outcome in outcomes)
    return DemoResult(
        outcomes=outcomes,
        n_test=len(data.test_labels),
        n_clients=size.n_clients,
        simulated=seed is not None,
        total_eps=ledger.spent(delta),
        total_delta=delta,
        comparison=report.comparison(),
    )


def _fit(
    estimator: str,
    eps: float | None,
    data: DigitsFederation,
    ledger: Any,
    seed: int | None,
) -> Any:
    import skfedcal

    calibrator = getattr(skfedcal, estimator)(
        eps=eps,
        ledger=None if eps is None else ledger,
        classes=np.arange(10),
        random_state=seed,
        **OPTIONS.get(estimator, {}),
    )
    return calibrator.fit(data.logits, data.labels, client_ids=data.client_ids)


def _outcome(
    method: str,
    eps: float | None,
    calibrator: Any,
    proba: np.ndarray,
    data: DigitsFederation,
    seed: int,
) -> Outcome:
    return score(
        method,
        proba,
        data.test_labels,
        seed,
        eps=eps,
        delta=None if eps is None else calibrator.privacy_.delta,
        guarantee=repr(calibrator.privacy_),
        n_rounds=calibrator.n_rounds_,
        bytes_up=sum(record.bytes_up for record in calibrator.history_),
        bytes_down=sum(record.bytes_down for record in calibrator.history_),
    )


def score(
    method: str, proba: np.ndarray, labels: np.ndarray, seed: int, **cost: Any
) -> Outcome:
    """Score probabilities; `cost` is the cost of the fit."""
    from skfedcal import metrics

    columns = np.arange(proba.shape[1])
    floor = metrics.calibration_floor(proba, random_state=seed)
    confidence, hits = proba.max(axis=1), proba.argmax(axis=1) == labels
    costs = {
        "eps": None,
        "delta": None,
        "n_rounds": 0,
        "bytes_up": 0,
        "bytes_down": 0,
        "guarantee": "not fitted",
    }
    return Outcome(
        method=method,
        classwise_ece=float(
            metrics.classwise_calibration_error(labels, proba, labels=columns)
        ),
        floor=float(floor.mean),
        floor_sd=float(floor.std),
        ece=metrics.expected_calibration_error(labels, proba, labels=columns),
        nll=metrics.negative_log_likelihood(
            labels, proba, labels=columns, min_prob="replace"
        ),
        accuracy=float(hits.mean()),
        confidence=float(confidence.mean()),
        losses=label_losses(proba, labels, float(np.finfo(proba.dtype).eps)),
        gaps=confidence - hits,
        hits=hits,
        **{**costs, **cost},
    )


# A difference counts when it is larger than this many standard errors.
N_ERRORS = 2.0


def sign_of_mean(values: np.ndarray) -> int:
    """Return the sign of the mean, or 0 if it could be noise."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    mean = values.mean()
    return int(np.sign(mean)) if abs(mean) > N_ERRORS * error else 0


def verdict(result: DemoResult) -> list[str]:
    """Return the sentences."""
    base, *fits = result.outcomes
    return [
        _confidence(base, result.n_test),
        *_log_loss(base, fits),
        _accuracy(base, fits),
        _floor(result.outcomes),
        _privacy(result),
    ]


def _confidence(base: Outcome, n_test: int) -> str:
    meaning = {
        1: "it is over-confident.",
        -1: "it is under-confident.",
        0: "the difference could be noise.",
    }
    return (
        f"As it is (base), the net is {100 * base.confidence:.1f} % sure on average "
        f"and right on {100 * base.accuracy:.1f} % of {n_test} test digits: "
        + meaning[sign_of_mean(base.gaps)]
    )


def _log_loss(base: Outcome, fits: Sequence[Outcome]) -> list[str]:
    """Compare NLL row by row with the uncalibrated net, and private with exact fits."""
    signs = {fit.name: sign_of_mean(base.losses - fit.losses) for fit in fits}
    parts = []
    for sign, text in (
        (1, "clearly lower"),
        (-1, "clearly higher"),
        (0, "not clearly different"),
    ):
        names = [f"{f.name} {f.nll:.3f}" for f in fits if signs[f.name] == sign]
        if names:
            parts.append(f"{text} for {', '.join(names)}")
    lines = [f"NLL, {base.nll:.3f} for base, is {'; '.join(parts)}."]
    exact = {fit.method: fit for fit in fits if fit.eps is None}
    for fit in fits:
        twin = exact.get(fit.method)
        if fit.eps is None or twin is None or signs[twin.name] != 1:
            continue
        share = (base.nll - fit.nll) / (base.nll - twin.nll)
        if signs[fit.name] != 1:
            kept = "no clear part"
        elif share > 0.995:
            kept = "all"
        else:
            kept = f"{100 * share:.0f} %"
        lines.append(f"{fit.name} keeps {kept} of the gain of {twin.name}.")
    return lines


def _accuracy(base: Outcome, fits: Sequence[Outcome]) -> str:
    """Summarise which methods improve or worsen accuracy."""
    signs = {f.name: sign_of_mean(1.0 * f.hits - base.hits) for f in fits}
    parts = [
        f"clearly {text} for "
        + ", ".join(
            f"{f.name} ({100 * f.accuracy:.1f} %)"
            for f in fits
            if signs[f.name] == sign
        )
        for sign, text in ((1, "higher"), (-1, "lower"))
        if sign in signs.values()
    ]
    start = f"Accuracy, {100 * base.accuracy:.1f} % for base, is "
    return start + ("; ".join(parts) or "clearly changed by none") + "."


def _floor(outcomes: Sequence[Outcome]) -> str:
    """Tell which cwECE could be that of a perfect model."""
    at: list[str] = []
    above: list[str] = []
    for outcome in outcomes:
        limit = outcome.floor + N_ERRORS * outcome.floor_sd
        (at if outcome.classwise_ece <= limit else above).append(outcome.name)
    parts = [
        f"{text} for {', '.join(names)}"
        for text, names in (
            ("is at its floor, within two deviations,", at),
            ("is more than two deviations above its floor", above),
        )
        if names
    ]
    return f"cwECE {'; it '.join(parts)}."


def _privacy(result: DemoResult) -> str:
    n_private = sum(outcome.eps is not None for outcome in result.outcomes)
    if result.simulated:
        return "Seeded run: the noise can be repeated, so this is a simulation."
    return (
        f"The {n_private} private fits together cost each client eps = "
        f"{result.total_eps:.3g} at delta = {result.total_delta:g}; the fits without "
        "eps show the server exact sums."
    )
