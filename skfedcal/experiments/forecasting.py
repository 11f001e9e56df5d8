"""forecast: what evaluation and calibration will give, before anything is spent.

- Widths of intervals: the answers of `federated_report` to expected counts.
- Chances of a gain: real fits to a synthetic federation with the same signal.
- One line of advice.
- How many clients, or which eps, a fit or an evaluation needs.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from math import ceil, exp, inf, isfinite, log2, sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skfedcal._params import check_integer, check_number
from skfedcal._table import text_table
from skfedcal.clients.forms import make_dataset
from skfedcal.clients.synthetic import make_federation
from skfedcal.evaluation.collect import Statistic
from skfedcal.evaluation.intervals import Estimate, check_level, quantile
from skfedcal.evaluation.multiclass import Tables, table_algorithm
from skfedcal.evaluation.noise import NoiseModel, table_law
from skfedcal.evaluation.report import report_of
from skfedcal.experiments.comparison.engine import named_methods
from skfedcal.federation.history import RoundHistory
from skfedcal.methods.auto.estimator import FedAutoCalibrator
from skfedcal.methods.shape.noisy_rounds import MAP_SIGNAL
from skfedcal.methods.temperature.posterior import MIN_SIGNAL
from skfedcal.privacy.accounting import gdp_epsilon
from skfedcal.privacy.events import PrivacyReport
from skfedcal.privacy.models import (
    CentralDP,
    LocalDP,
    SecureAggregation,
    SourceDP,
    check_model,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skfedcal.clients.dataset import FederatedDataset
    from skfedcal.evaluation.rounds import Part
    from skfedcal.privacy.models import PrivacyModel

METHODS = ("FedAuto", "FedTemp", "FedBiasTemp", "FedShape")

# The stated model: log T has the mean and spread of the optima of 21 public files, and
# some classes are favoured.
LOG_MEAN, LOG_SD, CLASS_BIAS = 0.4, 0.3, 0.3
# Correlation of the rows of a client. With clients of 80 rows, as of insteval, it gives
# the design effect that was measured there, about 3.
CORRELATION = 0.025

# Rows of a simulated federation, and of the pool whose counts are expected. Fits with
# more rows have a smaller sampling error, which is not what limits them.
_ROWS, _POOL, _LEAST_ROWS, _NUMBERS = 1500, 4000, 300, 40_000
# Rows of a client up to which their number is kept: it matters for clipping.
_USUAL_ROWS = 20
# Signal, number of units times mu, that has no visible noise any more.
_MOST_SIGNAL = 2000.0
# Width from which on an interval of a number between 0 and 1 says little.
_WIDE = 0.2
# Bins of calibration errors.
_N_BINS = 15


@dataclass(frozen=True)
class ExpectedGain:
    """What one calibrator is expected to give.

    Attributes
    ----------
    choice : str
        The calibrator; with FedAuto, what it chooses.
    chance : float
        Share of simulated fits that lower the log loss of new rows.
    share : float
        Mean decrease of the log loss over the largest that is possible; below 0 if a
        fit does more harm than good on average.
    worst : float
        The same of the worst fit.
    asked : bool
        Whether clients are asked at all; else nothing is spent, and the input is
        returned.

    Examples
    --------
    >>> from skfedcal import forecast
    >>> found = forecast(3, 500, eps=1.0, methods=["FedTemp"], n_fits=1)
    >>> found.calibrators["FedTemp"].asked
    False
    """

    choice: str
    chance: float
    share: float
    worst: float
    asked: bool

    def to_dict(self) -> dict[str, str | float | bool | None]:
        """Plain values, for JSON; None for a share of no gain."""
        return {
            name: None if value != value else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True, repr=False)
class Forecast:
    """Result of `forecast`; printing it gives the tables and the advice.

    Attributes
    ----------
    n_clients, rows_per_client, n_classes : int
        The question.
    privacy : PrivacyModel
        Its privacy model.
    signal : float
        Clients (or rows, with ``unit='example'``) times mu, from which private fits
        decide what to ask for; infinite without noise.
    metrics : dict of str to Estimate
        Entries of `federated_report` with the intervals that such a release would have;
        values are those of the synthetic model.
    calibrators : dict of str to ExpectedGain
        By name; empty for models of privacy that no calibrator is simulated for.
    advice : str
        What to do, in one line.

    Examples
    --------
    >>> from skfedcal import forecast
    >>> print(forecast(3, 500, eps=1.0).advice)
    3 clients are too few to hide one of them at this eps: nobody is asked, and \
unit='example' (CentralDP(eps, unit='example')) would work with 1500 rows.
    """

    n_clients: int
    rows_per_client: int
    n_classes: int
    privacy: PrivacyModel
    signal: float
    metrics: dict[str, Estimate]
    calibrators: dict[str, ExpectedGain]
    advice: str

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        widths = {name: found.high - found.low for name, found in self.metrics.items()}
        return {
            "n_clients": self.n_clients,
            "rows_per_client": self.rows_per_client,
            "n_classes": self.n_classes,
            "privacy": repr(self.privacy),
            "signal": self.signal if isfinite(self.signal) else None,
            "widths": widths,
            "calibrators": {n: one.to_dict() for n, one in self.calibrators.items()},
            "advice": self.advice,
        }

    def __str__(self) -> str:
        signal = f", signal {self.signal:.3g}" if isfinite(self.signal) else ""
        head = (
            f"{self.n_clients:,} clients of {self.rows_per_client:,} rows, "
            f"{self.n_classes} classes, {self.privacy!r}{signal}"
        )
        rows = [
            [name, f"{found:.3f}", f"{found.high - found.low:.3f}",
             f"{found.se_sampling:.4f}", f"{found.se_privacy:.4f}"]
            for name, found in self.metrics.items()
        ]  # fmt: skip
        parts = [head, text_table(_EVALUATION, rows)]
        if self.calibrators:
            fits = [
                [name, one.choice, f"{one.chance:.0%}", f"{one.share:.0%}",
                 f"{one.worst:.0%}"]
                for name, one in self.calibrators.items()
            ]  # fmt: skip
            parts.append(text_table(_CALIBRATION, fits, n_left=2))
        return "\n\n".join([*parts, self.advice])

    __repr__ = __str__


_EVALUATION = ["evaluation", "e.g.", "width of 95 %", "se sampling", "se privacy"]
_CALIBRATION = ["calibrator", "", "chance of gain", "share of gain", "worst fit"]


def forecast(
    n_clients: int,
    rows_per_client: int,
    *,
    n_classes: int = 2,
    eps: float | None = None,
    privacy: PrivacyModel | None = None,
    methods: Sequence[str] = METHODS,
    temperature: float | None = None,
    class_bias: float = CLASS_BIAS,
    n_fits: int = 20,
    ci: float = 0.95,
) -> Forecast:
    """Say what evaluation and calibration will give, before anything is spent.

    Nothing is asked of any client: only public numbers are used. For evaluation, the
    counts that are expected of a synthetic model are answered with the noise of the
    privacy model. For calibration, the estimators are fitted to synthetic clients.

    Parameters
    ----------
    n_clients : int
        Number of clients.
    rows_per_client : int
        Rows of a usual client.
    n_classes : int, default=2
        Number of classes.
    eps : float, default=None
        Short for ``privacy=CentralDP(eps)``; None is exact sums.
    privacy : PrivacyModel, default=None
        Privacy model, with its unit.
    methods : sequence of str, default=('FedAuto', 'FedTemp', 'FedBiasTemp', 'FedShape')
        Calibrators, by the names of `compare`.
    temperature : float, default=None
        How overconfident the model is, as of `make_federation`. None is not known: in
        each fit log T is drawn with the mean .4 and the standard deviation .3, which
        the best temperatures of 21 public files of neural networks have.
    class_bias : float, default=0.3
        How much it favours classes, as of `make_federation`.
    n_fits : int, default=20
        Simulated fits of each calibrator; a chance of 50 % is then known to 11 %.
    ci : float, default=0.95
        Level of the intervals.

    Returns
    -------
    Forecast

    Notes
    -----
    A fit with many rows is simulated with about 1500 of them, and with the eps that
    gives their clients the same ``K mu``; with all rows the share is not smaller.
    Exact sums have intervals for clients as the population, with a correlation of 0.025
    between rows of a client, as was measured on one file.

    Examples
    --------
    >>> from skfedcal import forecast
    >>> found = forecast(100, 50, n_classes=10, eps=1.0, methods=["FedTemp"])
    >>> found.calibrators["FedTemp"].chance
    1.0
    >>> width = found.metrics["accuracy"].high - found.metrics["accuracy"].low
    >>> f"{width:.1f}"
    '0.9'
    """
    check_integer("n_clients", n_clients, 1, 10**9)
    check_integer("rows_per_client", rows_per_client, 1, 10**9)
    check_integer("n_classes", n_classes, 2, 1000)
    check_integer("n_fits", n_fits, 1, 1000)
    if temperature is not None:
        temperature = check_number("temperature", temperature, 0, inf, "neither")
    check_number("class_bias", class_bias, 0, inf, "left")
    check_level(ci)
    check_model(privacy)
    if eps is not None and privacy is not None:
        raise ValueError("eps and privacy are both given; leave one of them out.")
    model: Any = privacy or (SecureAggregation() if eps is None else CentralDP(eps))
    model.validate()
    question = _Question(
        int(n_clients), int(rows_per_client), int(n_classes), model, temperature,
        float(class_bias),
    )  # fmt: skip
    metrics = question.metrics(ci)
    names = named_methods(methods)
    gains: dict[str, ExpectedGain] = {}
    if not isinstance(model, LocalDP | SourceDP):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fits that expect no gain
            gains = question.gains(names, n_fits)
    return Forecast(
        question.n_clients, question.rows, question.n_classes, model, question.signal,
        metrics, gains, question.advice(metrics, gains),
    )  # fmt: skip


@dataclass(frozen=True)
class _Question:
    """Numbers of one forecast."""

    n_clients: int
    rows: int
    n_classes: int
    model: Any
    temperature: float | None = None
    class_bias: float = CLASS_BIAS

    @property
    def by_row(self) -> bool:
        """Whether single rows are protected."""
        return self.model.private and self.model.unit == "example"

    @property
    def n_units(self) -> int:
        return self.n_clients * (self.rows if self.by_row else 1)

    @cached_property
    def signal(self) -> float:
        """Number of units times mu."""
        return float(self.n_units * self.model.strength(self.n_units))

    def _tables(self, ci: float) -> tuple[Tables, float]:
        """Counts that are expected, and the level of their intervals."""
        several = self.n_classes > 2
        parts: tuple[Part, ...] = ("confusion", "binary")
        if several:
            parts = ("margins", "scores", "top")
        statistic = Statistic(self.model, None, None, None, "forecast")
        limit = statistic.limit(None)
        algorithm = table_algorithm(
            parts, self.n_classes, statistic, max_examples=None if limit is None else 1
        )
        counted = float(self.n_clients * (limit or self.rows))
        level = ci
        if not self.model.private and self.n_clients > 1:
            counted /= 1 + (self.rows - 1) * CORRELATION
            level = _normal_level(ci, self.n_clients - 1)
        size = self._size(_POOL)
        pool = self._federation(1, size, seed=0).clients
        data, _ = make_dataset(
            FedAutoCalibrator(), pool, None, classes=None, input_type=None
        )
        return _expected(algorithm, data, counted, self.model, self.n_clients), level

    def metrics(self, ci: float) -> dict[str, Estimate]:
        """Answers to the counts that are expected."""
        tables, level = self._tables(ci)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is undefined has a width of 1
            report = report_of(tables, _N_BINS, True, level)
        found = dict(report.entries)
        macro = found["macro avg"]
        assert isinstance(macro, dict)
        out = {k: v for k, v in found.items() if isinstance(v, Estimate)}
        return out | {f"macro {name}": one for name, one in macro.items()}

    def metric(self, name: Literal["accuracy", "ece"]) -> Estimate:
        """As the same of `metrics` with 95 % intervals, without the others."""
        tables, level = self._tables(0.95)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if name == "accuracy":
                return tables.predictions().accuracy(level)
            scores = tables.top() if self.n_classes > 2 else tables.binary()
            return scores.ece(_N_BINS, debias=True, ci=level)

    def half_width(self, name: Literal["accuracy", "ece"]) -> float:
        """Half the 95 % interval of a metric."""
        found = self.metric(name)
        return (found.high - found.low) / 2

    def _size(self, most: int) -> int:
        """Rows to simulate; fewer of many classes."""
        return max(_LEAST_ROWS, min(most, _NUMBERS // self.n_classes))

    def _federation(
        self, n_clients: int, n_rows: int, seed: int, log_t: float = LOG_MEAN
    ) -> Any:
        return make_federation(
            n_clients,
            n_rows,
            self.n_classes,
            temperature=exp(log_t) if self.temperature is None else self.temperature,
            class_bias=self.class_bias,
            noise=0.0,
            alpha=None,
            n_test=self._size(_ROWS),
            random_state=seed,
        )

    def gains(self, methods: dict[str, Any], n_fits: int) -> dict[str, ExpectedGain]:
        """Fit calibrators to synthetic clients with the same signal."""
        from scipy.special import ndtri

        size = self._size(_ROWS)
        rows = min(self.rows, max(size // self.n_clients, _USUAL_ROWS))
        n_clients = min(self.n_clients, max(size // rows, 1))
        n_units = n_clients * (rows if self.by_row else 1)
        settings = {"privacy": self._scaled(n_units), "classes": range(self.n_classes)}
        choices = {
            name: _choice(one.set_params(**settings), n_units, self.n_classes)
            for name, one in methods.items()
        }
        found: dict[str, list[float]] = {name: [] for name in methods}
        most, asked = [], dict.fromkeys(methods, True)
        # In the middle of parts of equal probability: less chance than of drawn ones.
        drawn = LOG_MEAN + LOG_SD * ndtri((np.arange(n_fits) + 0.5) / n_fits)
        for seed, log_t in enumerate(drawn):
            fed = self._federation(n_clients, n_clients * rows, seed, float(log_t))
            true = (fed.test_logits - fed.class_bias) / fed.temperature
            before = _loss(fed.test_logits, fed.test_labels)
            most.append(before - _loss(true, fed.test_labels))
            done: dict[str, tuple[float, bool]] = {}
            for name, one in methods.items():
                if choices[name] not in done:  # FedAuto chooses one of the others
                    one.set_params(random_state=seed).fit(fed.clients)
                    after = one.predict_proba(fed.test_logits)
                    gain = before - _loss(np.log(after), fed.test_labels)
                    spent = bool(one.history_)  # else the input is returned
                    done[choices[name]] = gain if spent else 0.0, spent
                gain, asked[name] = done[choices[name]]
                found[name].append(gain)
        total = float(np.mean(most))
        scale = 1 / total if total > 0 else np.nan
        return {
            name: ExpectedGain(
                choices[name] if asked[name] else "asks nobody",
                float(np.mean(np.array(gains) > 0)),
                float(np.mean(gains)) * scale,
                float(np.min(gains)) * scale,
                asked[name],
            )
            for name, gains in found.items()
        }

    def _scaled(self, n_units: int) -> Any:
        """Privacy model whose noise has the same signal with fewer units."""
        if not self.model.private:
            return SecureAggregation()
        mu = min(self.signal, _MOST_SIGNAL) / n_units
        delta = 1e-5
        return CentralDP(gdp_epsilon(mu, delta), delta=delta, unit=self.model.unit)

    def advice(
        self, metrics: dict[str, Estimate], gains: dict[str, ExpectedGain]
    ) -> str:
        """One line: what to do."""
        units = "rows" if self.by_row else "clients"
        accuracy = metrics["accuracy"]
        width = accuracy.high - accuracy.low
        seen = f"accuracy is known to +-{width / 2:.3f}"
        if width > _WIDE:
            seen = f"the interval of accuracy is {width:.2f} wide, too wide to use"
        if not self.model.private:
            return f"Exact sums: let FedAutoCalibrator choose; {seen}."
        if isinstance(self.model, LocalDP | SourceDP):
            return f"{type(self.model).__name__} is for score histograms; {seen}."
        mu = self.signal / self.n_units
        if self.signal >= MIN_SIGNAL:
            use = "FedAutoCalibrator"
            if self.signal < MAP_SIGNAL:
                more = ceil(MAP_SIGNAL / mu)
                use += f" (a temperature; biases and shape from {more:,} {units} on)"
            best = gains.get("FedAuto")
            share = "" if best is None else f" for {best.share:.0%} of the gain"
            return f"Use {use}{share}; {seen}."
        text = (
            f"{self.n_units} {units} are too few to hide one of them at this eps: "
            "nobody is asked, and "
        )
        other = replace(self, model=CentralDP(self.model.eps, unit="example"))
        if not self.by_row and other.signal >= MIN_SIGNAL:
            return (
                f"{text}unit='example' (CentralDP(eps, unit='example')) would work "
                f"with {other.n_units} rows."
            )
        return f"{text}{ceil(MIN_SIGNAL / mu):,} {units} would be needed."


# Metrics whose intervals are planned.
_PLANNED: tuple[Literal["accuracy"], Literal["ece"]] = ("accuracy", "ece")
# Half the width of the 95 % intervals that `clients_needed` plans for.
HALF_WIDTH = 0.05
# Evaluation is planned for these budgets, and up to so many classes: that is quick.
_EPS_STEPS, _MOST_CLASSES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0), 50
SMALLEST_EPS = _EPS_STEPS[0]
# Clients whose errors are scaled to other numbers; their usual delta is 1e-5.
_MANY_CLIENTS = 10_000


def clients_needed(
    rows_per_client: int, n_classes: int, privacy: CentralDP
) -> dict[str, int]:
    """Clients from which on a fit asks for more, or an evaluation says something.

    "temperature": A private temperature is fitted, "shape": class biases and shape too.
    "accuracy", "ece": `federated_report` has 95 % intervals of +-`HALF_WIDTH` on
    synthetic clients; left out for more than 50 classes.
    """
    ask = partial(_Question, rows=rows_per_client, n_classes=n_classes, model=privacy)
    question = ask(_MANY_CLIENTS)
    each = rows_per_client if question.by_row else 1
    found = {
        "temperature": ceil(_units_for(MIN_SIGNAL, privacy) / each),
        "shape": ceil(_units_for(MAP_SIGNAL, privacy) / each),
    }
    if n_classes > _MOST_CLASSES:
        return found
    target = HALF_WIDTH / quantile(0.95)
    for name in _PLANNED:
        # Errors of sampling fall with the root of the number of clients, errors of
        # noise with the number: solve a / K + b / K**2 = 1 for K.
        metric = question.metric(name)
        a = _MANY_CLIENTS * (metric.se_sampling / target) ** 2
        b = (_MANY_CLIENTS * metric.se_privacy / target) ** 2
        found[name] = max(ceil(a / 2 + sqrt(a * a / 4 + b)), 1)
    # The interval of the ECE is wider than its standard errors say.
    for _ in range(8):
        excess = ask(found["ece"]).half_width("ece") / HALF_WIDTH
        if excess <= 1:
            break
        found["ece"] = ceil(found["ece"] * max(excess, 1.03))
    return found


def _units_for(signal: float, privacy: CentralDP) -> int:
    """Units that give a signal; the usual delta falls with their number."""
    units = 1
    for _ in range(4):
        units = ceil(signal / privacy.strength(units))
    return units


def eps_needed(
    n_clients: int, rows_per_client: int, n_classes: int, privacy: CentralDP
) -> dict[str, float | None]:
    """Smallest eps for what `clients_needed` plans.

    That of accuracy and ECE is one of a few steps; None: no eps up to 50.

    privacy: Its delta and unit count, its eps does not.
    """
    units = n_clients * (rows_per_client if privacy.unit == "example" else 1)
    delta = privacy._delta(units, quiet=True)
    found: dict[str, float | None] = {
        "temperature": gdp_epsilon(MIN_SIGNAL / units, delta),
        "shape": gdp_epsilon(MAP_SIGNAL / units, delta),
    }
    if n_classes > _MOST_CLASSES:
        return found

    def wide(eps: float, name: Literal["accuracy", "ece"]) -> bool:
        model = replace(privacy, eps=eps)
        question = _Question(n_clients, rows_per_client, n_classes, model)
        return question.half_width(name) > HALF_WIDTH

    for name in _PLANNED:
        place = bisect_left(_EPS_STEPS, True, key=lambda eps: not wide(eps, name))
        found[name] = _EPS_STEPS[place] if place < len(_EPS_STEPS) else None
    return found


def _expected(
    algorithm: Any, data: FederatedDataset, n_rows: float, model: Any, n_clients: int
) -> Tables:
    """Tables with the counts that are expected of this number of rows."""
    n_parts = len(algorithm.parts) if algorithm.by_round else 1
    counts, laws = {}, {}
    for i in range(n_parts):
        broadcast = {"round": np.asarray(i)}
        spec = algorithm.spec(broadcast)
        # One client has all rows of the pool, so it is not bounded.
        found = replace(algorithm, max_examples=None).query(broadcast, data)
        weights = {part: block.weight ** (1 / 3) for part, block in spec.items()}
        for part, block in spec.items():
            sums = found[part].dense()[0] * (n_rows / data.n_rows)
            share = weights[part] / sum(weights.values())
            counts[part] = np.asarray(sums, dtype=np.float64)
            depth = ceil(log2(block.shape[1]))
            law = table_law(
                model, depth, block.shape, (block.clip or 1.0) / share,
                n_rows / n_parts, n_clients,
            )  # fmt: skip
            laws[part] = NoiseModel((law,))
    private = bool(model.private)
    report = PrivacyReport(eps=float(model.eps)) if private else PrivacyReport()
    return Tables(
        algorithm, counts, laws, np.arange(algorithm.n_classes), n_clients, report,
        RoundHistory(),
    )  # fmt: skip


def _normal_level(ci: float, freedom: float) -> float:
    """Level at which a normal interval is as wide as one of Student's t."""
    from scipy.special import ndtr

    return min(2 * float(ndtr(quantile(ci, freedom))) - 1, 1 - 1e-9)


def _loss(logits: NDArray[Any], labels: NDArray[Any]) -> float:
    from scipy.special import log_softmax

    rows = log_softmax(np.asarray(logits, dtype=np.float64), axis=1)
    return -float(rows[np.arange(len(labels)), labels].mean())


def _choice(estimator: Any, n_units: int, n_classes: int) -> str:
    """Calibrator that is fitted, as it would be written."""
    if isinstance(estimator, FedAutoCalibrator):
        found = estimator.explain(n_units, n_classes)[0]
        return "held-back rows decide" if found.startswith("one of") else found
    return f"{type(estimator).__name__}()"
