"""CalibrationMonitor: calibration over many periods, under one budget.

The monitor is one run of the histogram algorithm with a round for each period: noise is
planned for all periods, the ledger is debited once before the first, and an update
collects the next round from the rows that clients have then.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nan, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import check_choice, check_integer, check_number
from skfedcal._table import text_table
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.evaluation.collect import Statistic
from skfedcal.evaluation.drift import (
    DriftAlarm,
    Recalibration,
    alarm_threshold,
    cell_values,
    find_alarms,
    mean_of_rows,
    recalibration,
)
from skfedcal.evaluation.histogram import ScoreHistogram
from skfedcal.evaluation.inputs import Clients, check_choices
from skfedcal.evaluation.intervals import Estimate, check_level, with_guarantee
from skfedcal.evaluation.period_counts import (
    Period,
    PeriodCounts,
    check_levels,
    quiet_periods,
    read_model,
)
from skfedcal.evaluation.population import warn_one_row
from skfedcal.federation.collecting import Run
from skfedcal.federation.history import RoundRecord
from skfedcal.methods.score_curves.rounds import (
    ClassScoreCounts,
    CountState,
)
from skfedcal.privacy.events import PrivacyReport
from skfedcal.privacy.ledger import PrivacyLedger
from skfedcal.privacy.models import (
    CentralDP,
    DistributedDP,
    SecureAggregation,
    usual_delta,
)

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, ClientRows, InputType, PathLike, PerRow
    from skfedcal.federation.remote import RemoteDataset
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.privacy.models import PrivacyModel

Array = NDArray[Any]

# Metrics that are means of rows, for which there are alarms, and all of them.
MEANS = ("gap", "accuracy", "confidence", "brier", "log_loss")
METRICS = ("ece", "l2_ece", *MEANS)
_SHOWN = ("ece", "gap", "accuracy", "log_loss")


class MetricSeries(NamedTuple):
    """A metric over periods.

    Attributes
    ----------
    period : ndarray of int
        Numbers of the periods, from 0; interrupted ones are left out.
    value, low, high : ndarray of float
        Estimates and their simultaneous intervals.
    """

    period: Array
    value: Array
    low: Array
    high: Array


@dataclass(slots=True)
class _Progress(Run):
    """Run whose next round is stored by the monitor before it is shown."""

    kept: CountState | None = field(default=None)

    def save(self) -> None:
        """Keep what was released for `CalibrationMonitor.update`, which writes it."""
        self.kept = self.state


class CalibrationMonitor(PeriodCounts):
    """Calibration and accuracy over many periods, with one budget for all of them.

    In every period `update` counts the scores of the clients by bucket and outcome,
    with noise. The budget pays for all `periods` together: the ledger is debited once,
    before the first noise is drawn.

    Parameters
    ----------
    eps : float, default=None
        Budget of all periods together; None is exact sums.
    delta : float, default=None
        The delta of (eps, delta)-DP; None is ``min(1e-5, 1 / (10 K))`` for the K
        clients of the first period.
    privacy : privacy model, default=None
        `CentralDP` or `DistributedDP`, in place of `eps` and `delta`.
    periods : int, default=52
        Number of periods, which is fixed in advance.
    kind : {'top', 'binary'}, default='top'
        Score of the most probable class and whether it is right; or the score of the
        positive of two classes.
    levels : sequence of int, default=(2, 6)
        Depths of the buckets that are counted; the last one has the answers.
    space : {'both', 'prob', 'logit'}, default='both'
        Scale on which buckets have equal width; see `ScoreHistogram.fit`.
    max_examples_per_client : int, default=None
        Most rows of a client that count in a period. None is 1 under client-level
        privacy, else all of them.
    watch : sequence of str, default=('gap', 'accuracy')
        Metrics with alarms, out of 'gap' (mean confidence less accuracy), 'accuracy',
        'confidence', 'brier' and 'log_loss'.
    false_alarm_rate : float, default=0.05
        Chance of any alarm, of any of these metrics, in all periods, if nothing
        changes.
    ci : float, default=0.95
        Level of intervals.
    classes : array-like of shape (n_classes,), default=None
        Labels in the order of the columns; None takes them from the first period.
    pos_label : label, default=None
        Label of the positive class, for ``kind='binary'``.
    input_type : {'logits', 'log_proba', 'proba'}, default='logits'
        Type of the scores.
    ledger : PrivacyLedger, default=None
        Ledger that is charged.
    runner : FederatedRunner, default=None
        Engine; all clients take part in every period.
    random_state : int or None, default=None
        None draws noise from the operating system; a seed makes a simulation without a
        privacy guarantee.
    path : str or path-like, default=None
        File that is written in every update, before its result is shown; see `load`.

    Attributes
    ----------
    alarms_ : list of DriftAlarm
        Changes that were found, in order.
    n_periods_ : int
        Periods that are over, interrupted ones included.
    names_ : list of str
        Their names.
    privacy_ : PrivacyReport or None
        Guarantee of all periods together; None before the first update.

    See Also
    --------
    ScoreHistogram : The counts of one release.

    Notes
    -----
    **What is protected.** Data sets are neighbours if the contributions of one client
    (with ``CentralDP(unit='example')`` of one row) are replaced by zeros in *all*
    periods: a client may take part in every one of them. Periods are adaptive: models
    and rows may depend on what earlier periods showed. Gaussian releases with
    parameters ``mu_t`` that are chosen one after the other are mu-GDP with ``mu**2``
    the sum of their squares [1]_, and every period gets ``mu / sqrt(periods)``.
    A client that takes part in one period only has that smaller parameter.

    **Why noise is independent between periods.** Trees and matrix factorisations
    [2]_ correlate the noise of periods and are better for sums over time if a client
    takes part *once*. Here it may take part in all P periods. Let G be the inverse
    covariance of any Gaussian noise in the P sums. A client with the same bounded
    contribution in each needs ``1'G1 <= mu**2``, and by Cauchy and Schwarz the noise of
    the total has the variance ``1'G^-1 1 >= P**2 / mu**2``. Independent noise attains
    it: the mean over all periods has the error of a single release with the whole
    budget. A client in another cell in each period needs ``trace(G) <= mu**2``, so that
    no Gaussian noise has a smaller mean variance in single periods either. Neither a
    tree nor a factorisation can be better; ``python -m benchmarks.monitoring`` has
    figures.
    Nothing secret has to be stored between periods.

    **A period that fails.** A period has one release at most, whatever fails: noise is
    drawn once in it. The server draws noise after all clients have answered, and the
    period is over from that moment on, with a result or without; it is over, too, as
    soon as clients that draw noise themselves (``mode='faithful'``) are asked, and if
    the process is killed while they are. An error before that, such as too few clients,
    has used nothing of the budget: the next `update` asks for the same period. So P
    periods are P releases at most, which is what was paid for.
    A *dishonest* server gains nothing by failures on purpose. Of clients that draw
    noise, every answer is debited to the account of its site, used or not: to average
    the noise of n answers costs the budget of n, and a site whose budget is spent
    refuses. Where the server adds the noise (`CentralDP`), it sees exact sums in any
    case: clients trust it, and it could add none at all. Sites that do not trust it
    demand noise shares (``noise = "shared"`` in their policy).

    **Alarms** compare a period with the weighted mean of those before, by recursive
    residuals (see `skfedcal.evaluation.drift`). They assume that rows of different
    periods are independent; where clients show the same rows again, alarms are rarer
    than stated. After an alarm, or ``update(new_reference=True)``, the comparison
    starts again.

    **Intervals** of `series` hold for all `periods` at once (Bonferroni). Those over
    several periods take the rows of a client to be all alike under client-level
    privacy.

    References
    ----------
    .. [1] Smith and Thakurta, "Fully adaptive composition for Gaussian differential
       privacy", 2022.
    .. [2] Denisov, McMahan, Rush, Smith and Thakurta, "Improved differential privacy
       for SGD via optimal private linear operators on adaptive streams", NeurIPS 2022.

    Examples
    --------
    >>> from skfedcal import CalibrationMonitor, make_federation
    >>> monitor = CalibrationMonitor(eps=3.0, periods=52, max_examples_per_client=1)
    >>> for week in range(3):
    ...     fed = make_federation(n_clients=500, n_samples=2000, random_state=week)
    ...     monitor = monitor.update(fed.clients)
    >>> monitor
    CalibrationMonitor(3 of 52 periods, eps=3 for all of them, no alarm)
    >>> monitor.privacy_.eps, monitor.privacy_.n_rounds, monitor.alarms_
    (3.0, 52, [])
    >>> monitor.estimate("accuracy").se_privacy < 0.1
    True
    """

    def __init__(
        self,
        eps: float | None = None,
        *,
        delta: float | None = None,
        privacy: PrivacyModel | None = None,
        periods: int = 52,
        kind: Literal["top", "binary"] = "top",
        levels: Sequence[int] = (2, 6),
        space: Literal["both", "prob", "logit"] = "both",
        max_examples_per_client: int | None = None,
        watch: Sequence[str] = ("gap", "accuracy"),
        false_alarm_rate: float = 0.05,
        ci: float = 0.95,
        classes: ArrayLike | None = None,
        pos_label: Hashable | None = None,
        input_type: InputType = "logits",
        ledger: PrivacyLedger | None = None,
        runner: FederatedRunner | None = None,
        random_state: int | None = None,
        path: PathLike | None = None,
    ) -> None:
        self.periods = check_integer("periods", periods, 2, 100_000)
        check_choices(kind=kind, space=space)
        check_level(ci)
        check_number("false_alarm_rate", false_alarm_rate, 0, 1, "neither")
        if random_state is not None:
            check_integer("random_state", random_state, 0, 2**63)
        self.kind, self.space, self.ci = kind, space, float(ci)
        self.levels = check_levels(levels)
        self.watch = _checked_watch(watch)
        self.false_alarm_rate = float(false_alarm_rate)
        self.max_examples_per_client = max_examples_per_client
        self.classes, self.pos_label, self.input_type = classes, pos_label, input_type
        self.ledger = PrivacyLedger() if ledger is None else ledger
        self.runner, self.random_state = runner, random_state
        self.privacy = read_model(eps, delta, privacy)
        statistic = self._statistic()  # refuses wrong settings before any row is read
        self._limit = statistic.limit(max_examples_per_client)
        self._labels: list[Hashable] = []
        self._periods: list[Period] = []
        self._run_id, self._salt, self._asking = secrets.token_hex(16), 0, False
        self.privacy_: PrivacyReport | None = None
        self._path: Path | None = None
        self._written, self._busy = "", threading.Lock()
        if path is not None:
            self.save(path)

    def update(
        self,
        clients: ClientRows,
        y: PerRow | None = None,
        *,
        client_ids: ArrayLike | None = None,
        name: str | None = None,
        new_reference: bool = False,
    ) -> Self:
        """Collect one period.

        Parameters
        ----------
        clients : list of (scores, labels) pairs, list of arrays, or array-like
            Rows of this period, in the forms that `ScoreHistogram.fit` takes; or
            `RemoteClients`. Clients need not be the same in every period.
        y : array-like of shape (n_samples,), or list of these, default=None
            Labels; omitted when `clients` is a list of pairs.
        client_ids : array-like of shape (n_samples,), default=None
            Client that owns each row. A client must be one client in every period.
        name : str, default=None
            Name of the period, such as a date; None is its number.
        new_reference : bool, default=False
            The model was recalibrated or replaced: alarms compare with this period and
            later ones only.

        Returns
        -------
        self : CalibrationMonitor

        Raises
        ------
        ValueError
            If all periods are over; further ones are not paid for.
        CheckpointError
            If the file of the monitor was changed by another process.
        """
        with self._held():
            self._end_interrupted()
            index = len(self._periods)
            if index >= self.periods:
                raise ValueError(
                    f"All {self.periods} periods are over, and no further one is paid "
                    "for. Start another CalibrationMonitor."
                )
            name = f"period {index + 1}" if name is None else str(name)
            statistic = self._statistic()
            before = self.privacy, self._labels, self._salt
            data, algorithm = self._read(statistic, clients, y, client_ids)
            state = replace(algorithm.init(data.n_classes), rounds=index)
            run = _Progress(None, "", self._run_id, 0, state, self._records())
            period = Period(name, data.n_clients, bool(new_reference))
            self._asking = True
            self._write()  # a killed process never asks for this period again
            try:
                with quiet_periods(index > 0):
                    found = statistic.run(algorithm, data, period=run)
            except Exception:
                self._asking = False
                faithful = getattr(self.privacy, "mode", "") == "faithful"
                if not self._paid():
                    self.privacy, self._labels, self._salt = before
                elif run.drawn or (faithful and run.asked):
                    # The noise of this period is never drawn a second time.
                    self._periods.append(period)
                self._write()
                raise
            self.privacy_ = found.report
            self._periods.append(
                replace(period, totals=found.state.totals, laws=found.state.laws)
            )
            self._asking = False
            self._write()
        return self

    def estimate(
        self,
        metric: str = "ece",
        periods: int | slice | None = None,
        *,
        ci: float | None = None,
    ) -> Estimate:
        """A metric of one period, or of several together.

        Parameters
        ----------
        metric : str, default='ece'
            'ece', 'l2_ece', 'gap' (mean confidence less accuracy), 'accuracy',
            'confidence', 'brier' or 'log_loss'.
        periods : int, slice or None, default=None
            As in `histogram`.
        ci : float, default=None
            Level of the interval; None is that of the monitor.

        Returns
        -------
        Estimate
        """
        check_choice("metric", metric, METRICS)
        level = self.ci if ci is None else ci
        hist = self.histogram(periods)
        if metric in ("gap", "confidence"):
            return _mean(hist, metric, level)
        out: Estimate = getattr(hist, metric)(ci=level)
        return out

    def series(self, metric: str = "ece", *, accumulated: bool = False) -> MetricSeries:
        """A metric over time, with intervals that hold for all periods at once.

        Parameters
        ----------
        metric : str, default='ece'
            As in `estimate`.
        accumulated : bool, default=False
            Of all periods up to each, in place of each period by itself.

        Returns
        -------
        MetricSeries
            The chance that all intervals hold is at least `ci` (Bonferroni over all
            `periods`).
        """
        level = 1 - (1 - self.ci) / self.periods
        numbers = self._chosen(slice(None)) if self._released() else []
        found = [
            self.estimate(metric, slice(0, i + 1) if accumulated else i, ci=level)
            for i in numbers
        ]
        return MetricSeries(
            np.array(numbers, dtype=np.int64),
            *(
                np.array([getattr(one, part) for one in found], dtype=np.float64)
                for part in ("value", "low", "high")
            ),
        )

    @property
    def alarms_(self) -> list[DriftAlarm]:
        """Changes that were found, in order."""
        threshold = alarm_threshold(
            self.periods, self.false_alarm_rate / max(len(self.watch), 1)
        )
        restarts = [i for i, one in enumerate(self._periods) if one.restart]
        found: list[DriftAlarm] = []
        for metric, points in self._means().items():
            found += find_alarms(
                metric, *points, threshold=threshold, restarts=restarts
            )
        return sorted(found, key=lambda alarm: (alarm.period, alarm.metric))

    def recalibration(self, eps: float | None = 1.0) -> Recalibration:
        """Tell whether a recalibration is worth its budget.

        Parameters
        ----------
        eps : float or None, default=1.0
            Budget of the recalibration, beside that of the monitor; None is an exact
            fit.

        Returns
        -------
        Recalibration
            Worth it if the gain in log loss is, with a confidence of 95 %, more than
            what sampling and noise of its private fit are expected to lose. From the
            periods since the last alarm or new reference, at most eight. A fit with a
            slope and a shift, such as `FedAutoCalibrator`, is meant; with
            ``kind='top'`` only confidence is seen, not a shift between classes. Where
            it is not worth it, a gain may be possible, but the noise hides it.
        """
        starts = [alarm.since for alarm in self.alarms_]
        starts += [i for i, one in enumerate(self._periods) if one.restart]
        first = max([0, self.n_periods_ - 8, *starts])
        hist = self.histogram(slice(first, None))
        strength = inf
        if eps is not None:
            model = CentralDP(eps)
            model.validate()
            strength = model.strength(max(hist.n_clients_, 2))
        return recalibration(hist, eps, strength)

    def summary(self) -> str:
        """Tell in plain English what was found.

        Returns
        -------
        str
        """
        lines = [f"{self!r}", f"  {self._guarantee()}"]
        if not self._released():
            return "\n".join(lines)
        last = self._chosen(slice(None))[-1]
        rows = []
        for metric in _SHOWN:
            pair = (self.estimate(metric, last), self.estimate(metric))
            cells = [f"{one:.4f} [{one.low:.4f}, {one.high:.4f}]" for one in pair]
            rows.append([metric, *cells])
        header = ["metric", f"last ({self._periods[last].name})", "all periods"]
        lines += text_table(header, rows).splitlines()
        lines.append(
            f"  {str(self.histogram(last).estimand_).capitalize()} in a period."
        )
        lines.append(
            f"  alarms: {len(self.alarms_)} (chance of any in {self.periods} periods "
            f"if nothing changes: {self.false_alarm_rate:g})"
        )
        for alarm in self.alarms_:
            lines.append(
                f"    {self.names_[alarm.period]}: {alarm.metric} changed by "
                f"{alarm.change:+.4f} since {self.names_[alarm.since]}"
            )
        lost = [one.name for one in self._periods if one.totals is None]
        if lost:
            lines.append(f"  interrupted, without a result: {', '.join(lost)}")
        return "\n".join([*lines, f"  {self.recalibration()}"])

    def __repr__(self) -> str:
        budget = "exact counts"
        if not isinstance(self.privacy, SecureAggregation):
            budget = f"eps={self.privacy.eps:g} for all of them"
            if self.random_state is not None:
                budget += ", SIMULATED"
        n = len(self.alarms_)
        alarms = "no alarm" if n == 0 else f"{n} alarm{'s' * (n > 1)}"
        return (
            f"CalibrationMonitor({self.n_periods_} of {self.periods} periods, {budget},"
            f" {alarms})"
        )

    def _read(
        self, statistic: Statistic, clients: Any, y: Any, client_ids: Any
    ) -> tuple[FederatedDataset | RemoteDataset, ClassScoreCounts]:
        """Clients of one period, and what is counted of them."""
        given = Clients(
            clients,
            y,
            client_ids,
            np.asarray(self._labels) if self._labels else self.classes,
            self.input_type,
            private=statistic.private,
        )
        common: dict[str, Any] = {"scores": "top"}
        if self.kind == "top":
            data, columns = given.several()
            labels = columns.tolist()
            common["n_classes"] = len(labels)
        else:
            data, positive, ordered = given.binary(self.pos_label)
            labels = ordered if positive else ordered[::-1]
            common = {"scores": "binary", "positive": positive}
        statistic.assumptions = given.assumptions
        if not self._periods and not self._labels:
            self._start(statistic, data, labels)
        elif labels != self._labels:
            raise ValueError(
                f"The classes are {labels}, those of earlier periods {self._labels}."
            )
        private = statistic.private
        return data, ClassScoreCounts(
            self.levels,
            max_examples=self._limit,
            clip=float(self._limit or 1) if private else None,
            norm="l2" if private else "l1",
            salt=self._salt,
            n_rounds=self.periods,
            space=self.space,
            input_type=self.input_type,
            **common,
        )

    def _start(self, statistic: Statistic, data: Any, labels: list[Hashable]) -> None:
        """Fix what all periods have in common."""
        model = self.privacy
        if not all(isinstance(label, (str, int, float)) for label in labels):
            raise TypeError(f"classes={labels!r}: pass strings or numbers.")
        if (
            statistic.limit(self.max_examples_per_client)
            != self.max_examples_per_client
        ):
            warn_one_row("example", stacklevel=5)
        if isinstance(model, CentralDP | DistributedDP):
            n_units = data.n_rows if model.unit == "example" else data.n_clients
            delta = usual_delta(model.delta, n_units, model.unit)
            self.privacy = replace(model, delta=delta)
            if isinstance(model, DistributedDP) and model.n_min is None:
                self.privacy = replace(self.privacy, n_min=data.n_clients)
            statistic.model = self.privacy
        self._salt = statistic.salt()
        self._labels = labels

    def _paid(self) -> bool:
        """Whether clients may have been asked: exact sums cost nothing."""
        debits = (record.get("run_id") for record in self.ledger.records())
        return not self.privacy.private or self._run_id in debits

    def _records(self) -> list[RoundRecord]:
        """Rounds that are over, for the run; it needs their number only."""
        return [
            RoundRecord(i, one.n_clients, 1, 0, 0, nan, nan, {})
            for i, one in enumerate(self._periods)
        ]

    def _means(self) -> dict[str, tuple[list[float], list[float]]]:
        """Values and variances of watched metrics; NaN where there is no result."""
        missing = [nan] * len(self._periods)
        out = {metric: (missing.copy(), missing.copy()) for metric in self.watch}
        pooled: Array = np.zeros(())
        for i, one in enumerate(self._periods):
            pooled = np.zeros(()) if one.restart else pooled
            if one.totals is None:
                continue
            hist = self.histogram(i)
            # Leaf counts of several periods are the sum of theirs: noise has the same
            # ratios between levels in all of them.
            pooled = pooled + hist.counts_
            for metric, (values, variances) in out.items():
                values[i], variances[i] = mean_of_rows(metric, hist, pooled)
        return out

    def _guarantee(self) -> str:
        report = self.privacy_
        if not self.privacy.private:
            return "Exact counts: no differential privacy."
        if report is None:
            return f"{self.privacy!r}: nothing is released yet."
        text = (
            f"eps={report.eps:g}, delta={report.delta:.3g} for all rows of one "
            f"{report.unit} in all {self.periods} periods together, paid once"
        )
        if report.mu is not None:
            from skfedcal.privacy.accounting import gdp_epsilon

            one = gdp_epsilon(report.mu / sqrt(self.periods), report.delta)
            text += f"; eps={one:.2g} for one that is in a single period"
        return text + ("." if report.secure else "; SIMULATED noise, no guarantee.")


def _checked_watch(watch: Sequence[str]) -> tuple[str, ...]:
    if isinstance(watch, str) or not isinstance(watch, Sequence):
        raise TypeError(f"watch={watch!r}: pass a list of metrics out of {MEANS}.")
    for metric in watch:
        check_choice("watch", metric, MEANS)
    return tuple(dict.fromkeys(watch))


def _mean(hist: ScoreHistogram, metric: str, ci: float) -> Estimate:
    """Mean over rows that may be negative, with its interval."""

    @with_guarantee
    def answer(own: ScoreHistogram) -> Estimate:
        values, total = cell_values(metric, own), max(float(own.counts_.sum()), 1.0)
        value = float((own.counts_ * values).sum()) / total
        edges = own.grid.edges
        width = np.maximum(own.grid.centres - edges[:-1], edges[1:] - own.grid.centres)
        return own._estimate(
            value,
            (values - value) / total,
            ci,
            bounds=(-1.0, 1.0) if metric == "gap" else (0.0, 1.0),
            discretisation=float((own._seen() * width).sum()) / total,
        )

    found: Estimate = answer(hist)
    return found
