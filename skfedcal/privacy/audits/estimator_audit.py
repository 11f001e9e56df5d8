"""Audit of any estimator: its whole fit, with worst-case clients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from skfedcal.clients.arrays import read_array
from skfedcal.privacy.audits.audit_result import AuditCheck, AuditResult
from skfedcal.privacy.audits.books import check_debits, check_measured_debit
from skfedcal.privacy.audits.checks import (
    NoiseTally,
    check_claim,
    check_lattice,
    check_secret,
    check_sensitivity,
    check_strength,
    differences,
    is_additive,
    strength,
)
from skfedcal.privacy.audits.errors import Claim, eps_of, power
from skfedcal.privacy.audits.tap import Neighbour, Tape, residuals, tapped
from skfedcal.privacy.audits.two_worlds import check_runs, check_seed, judge
from skfedcal.privacy.entropy import SeededEntropy
from skfedcal.privacy.events import PrivacyReport, event_from_dict
from skfedcal.privacy.ledger import PrivacyLedger
from skfedcal.privacy.models import NO_ROWS_KNOWN, PrivacyModel, check_model

Pair = tuple[NDArray[Any], NDArray[Any]]

# Logits of this size are as certain as any, and squares of their sums are finite.
_LARGE = 1e6
# Rows of a canary: more than any default bound lets through.
_N_ROWS = 240


@dataclass(frozen=True, slots=True)
class Canary:
    """A client that is audited.

    name: What is special about it.
    logits, labels: Its rows.
    """

    name: str
    logits: NDArray[Any]
    labels: NDArray[Any]

    @property
    def pair(self) -> Pair:
        return self.logits, self.labels


def canaries(n_classes: int, unit: str = "client") -> list[Canary]:
    """Worst-case clients, or worst-case rows, for any calibrator.

    n_classes: Number of columns.
    unit ('client', 'example'): What is hidden; an example is a client of one row.
    """
    n_rows = _N_ROWS if unit == "client" else 1
    turn = np.arange(n_rows) % n_classes
    certain = np.full((n_rows, n_classes), -_LARGE)
    certain[:, 0] = _LARGE
    full = np.where(np.arange(n_classes) == turn[:, None], 4.0, 0.0)
    found = [
        Canary("certain and wrong", certain, np.full(n_rows, 1)),
        Canary("opposite direction", -certain / _LARGE, np.full(n_rows, 0)),
        Canary("all in one bin", np.zeros((n_rows, n_classes)), np.zeros_like(turn)),
        Canary("every class full", full, turn),
    ]
    if unit == "client":
        nothing = np.empty((0, n_classes)), np.empty(0, dtype=np.int64)
        found.append(Canary("empty client", *nothing))
    return found


def ordinary_clients(
    n_classes: int = 4, n_clients: int = 8, n_rows: int = 6
) -> list[Pair]:
    """Clients among which the canary hides, for audits without data."""
    rng = np.random.default_rng(0)
    out = []
    for _ in range(n_clients):
        logits = 2 * rng.normal(size=(n_rows, n_classes))
        labels = (logits / 1.5 + rng.gumbel(size=logits.shape)).argmax(axis=1)
        out.append((logits, labels))
    return out


def altered_rows(
    pairs: list[Pair], n_classes: int, unit: str, *, keep_empty: bool = False
) -> list[Pair]:
    """Rows of other sign, size and label.

    If clients are hidden there are fewer rows too, and none of the last client unless
    `keep_empty` says that who has no rows stays as it is.
    """
    out = [(-1.7 * logits, (labels + 1) % n_classes) for logits, labels in pairs]
    if unit == "client":
        fewer = [max(1, len(labels) // 2) for _, labels in out]
        if not keep_empty:
            fewer[-1] = 0
        out = [(z[:n], y[:n]) for (z, y), n in zip(out, fewer, strict=True)]
    return out


@dataclass
class Subject:
    """An estimator or a function, its clients, and where the canary is.

    fit_once: ``fit_once(clients, privacy=..., random_state=...)`` returns what was
        fitted.
    others (list of (logits, labels)): Clients among which the canary hides.
    n_classes: Columns of their logits.
    seed: Of all fits.
    """

    fit_once: Callable[..., Any]
    model: PrivacyModel
    others: list[Pair]
    n_classes: int
    seed: int | None

    @classmethod
    def of(
        cls,
        subject: Any,
        clients: Sequence[Pair] | None,
        privacy: PrivacyModel | None,
        seed: int | None,
    ) -> Self:
        """Read the arguments of the user."""
        estimator = hasattr(subject, "get_params")
        if estimator and privacy is not None:
            raise ValueError(
                f"{type(subject).__name__} has a privacy of its own; pass `privacy` "
                "with a function only."
            )
        if estimator and not hasattr(subject, "_privacy_model"):
            raise TypeError(
                f"{type(subject).__name__} has no privacy to audit. Pass a calibrator "
                "of this library; for a meta-estimator, pass the calibrator inside "
                "it."
            )
        if not estimator and not callable(subject):
            raise TypeError(
                f"{subject!r} is neither an estimator nor a function of clients."
            )
        check_model(privacy)
        model = subject._privacy_model() if estimator else privacy
        if model is None or not model.private:
            raise ValueError(
                "There is no claim to audit. Pass an estimator with eps=... or "
                "privacy=CentralDP(...), or a function and `privacy`."
            )
        model.validate()
        if clients is None:
            classes = getattr(subject, "classes", None)
            clients = ordinary_clients(4 if classes is None else len(classes))
        others = _read_clients(clients)
        n_classes = others[0][0].shape[1]
        fit_once = _refitted(subject, n_classes) if estimator else subject
        return cls(fit_once, model, others, n_classes, seed)

    def fit(
        self,
        pairs: list[Pair],
        key: tuple[int, ...],
        *,
        neighbour: Neighbour = "none",
        assumed: Neighbour = "zero",
        blind: bool = False,
        secret: bool = False,
        ledger: PrivacyLedger | None = None,
    ) -> tuple[Any, Tape]:
        """Whole fit with recorded messages and releases; the canary is the last unit.

        `key` names the seed of this fit; `secret` takes noise from the operating
        system whatever the seed is.
        """
        n_units = len(pairs)
        if self.model.unit == "example":
            n_units = sum(len(labels) for _, labels in pairs)
        tape = Tape(n_units - 1, neighbour, assumed, blind)
        if ledger is not None:
            tape.ledger = ledger
        state = None
        # Two blind fits are compared: weights to start from must not differ.
        if blind or (self.seed is not None and not secret):
            words = SeededEntropy(self.seed or 0, *key).uint64(1)
            state = int(words[0] >> np.uint64(33))
        fitted = self.fit_once(
            pairs, privacy=tapped(self.model, tape), random_state=state
        )
        if not tape.rounds:
            raise ValueError(
                f"{self.fit_once!r} made no release through the `privacy` it was "
                "given, so it cannot be audited."
            )
        return fitted, tape


def _read_clients(clients: Any) -> list[Pair]:
    """Pairs of arrays; the fits check their values."""
    pairs = list(clients) if isinstance(clients, list | tuple) else []
    if len(pairs) < 2 or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
    ):
        raise ValueError(
            "An audit needs at least two clients; pass a list of (logits, labels)."
        )
    others = []
    for i, (rows, labels) in enumerate(pairs):
        logits = read_array(rows, f"The logits of client {i}", np.float64)
        codes = read_array(labels, f"The labels of client {i}")
        if logits.ndim != 2 or codes.shape != logits.shape[:1]:
            raise ValueError(
                f"Client {i} has logits of shape {logits.shape} and labels of shape "
                f"{codes.shape}; pass a matrix, and one label for each row."
            )
        columns = np.arange(logits.shape[1])
        if codes.dtype.kind not in "iuf" or not np.isin(codes, columns).all():
            raise ValueError(
                f"The labels of client {i} must be column numbers from 0 to "
                f"{len(columns) - 1}."
            )
        others.append((logits, codes.astype(np.int64)))
    if len({rows.shape[1] for rows, _ in others}) > 1:
        raise ValueError("All clients must have the same number of logit columns.")
    return others


def report_of(fitted: Any) -> PrivacyReport:
    """The guarantee that a fit reports."""
    if isinstance(fitted, list | tuple) and fitted:  # such as one number per class
        fitted = fitted[0]
    report = getattr(fitted, "privacy_", getattr(fitted, "privacy", None))
    if not isinstance(report, PrivacyReport):
        raise TypeError(
            f"{type(fitted).__name__} has no PrivacyReport as `privacy_` or `privacy`."
        )
    return report


def state_of(fitted: Any) -> Any:
    """All that a fit leaves behind."""
    if isinstance(fitted, list | tuple):
        return [state_of(part) for part in fitted]
    if isinstance(fitted, float) and hasattr(fitted, "to_dict"):
        return {"value": fitted.to_dict(), "privacy": fitted.privacy}  # type: ignore[attr-defined]
    if not hasattr(fitted, "get_params"):
        return fitted
    params = fitted.get_params(deep=False)
    return {name: v for name, v in vars(fitted).items() if name not in params}


def _refitted(estimator: Any, n_classes: int) -> Callable[..., Any]:
    """Fit a clone with another privacy; no ledger of the user is debited."""
    from skfedcal._sklearn_compat import copy_to_fit

    own = copy_to_fit(estimator)
    params = {
        "eps": None,
        "delta": None,
        "ledger": None,
        "classes": np.arange(n_classes),
        "input_type": "logits",
        "runner": _plain(own.runner),
    }
    known = own.get_params(deep=False)
    own.set_params(**{name: v for name, v in params.items() if name in known})

    def fit_once(clients: list[Pair], *, privacy: Any, random_state: Any) -> Any:
        fitted = copy_to_fit(own).set_params(privacy=privacy, random_state=random_state)
        return fitted.fit(clients)

    return fit_once


def _plain(runner: Any) -> Any:
    """Same rounds, asked for in this process and in order."""
    if runner is None:
        return None
    if runner.cohort != "full":
        raise ValueError(
            f"cohort={runner.cohort!r}: an audit needs rounds in which all clients "
            "take part. Pass FederatedRunner(cohort='full')."
        )
    return runner.set_params(
        backend=None, n_jobs=None, checkpoint=None, resume=False, secure=False
    )


# What stands for a client in a neighbouring data set.
_NEIGHBOURS: dict[str, Neighbour] = {"replace": "negative", "any two values": "other"}
# Shares of alpha: two worlds, and each of four checks of the noise, which need less.
_WORLDS, _NOISE = 0.8, 0.2 / 4


def audit_estimator(
    estimator: Any,
    clients: Sequence[Pair] | None = None,
    *,
    privacy: PrivacyModel | None = None,
    n_runs: int = 1500,
    alpha: float = 0.01,
    random_state: int | None = None,
) -> AuditResult:
    """Audit the privacy of a calibrator, by whole fits with a worst-case client.

    Five canaries (certain and wrong, the opposite direction, all rows in one bin, every
    class full, no rows) take part in a fit, one at a time, and the integers that they
    send are checked: their norm against the bound, and the bound against the noise. The
    one that shows most is then present in `n_runs` fits and absent in as many; the
    auditor knows what all clients send and takes the likelihood ratio over all rounds,
    or, under local privacy, observes the report of the canary. The noise of these fits
    must have the size that is stated and a shape that hides, lie on the lattice, and be
    fresh in every number, round and fit. The fit is repeated with another canary, which
    must not change what others send, and on other data with the same releases: nothing
    that it leaves behind may differ. What is reported must be what was asked for.

    Two fits pay from one ledger of the audit: it must hold a debit for each, of the
    size that is reported, and its total must cover both. What the measured noise costs,
    with the bound of a unit, must be within what was debited; this has a twentieth of
    `alpha`.

    Nothing is debited from the ledger of the estimator.

    Parameters
    ----------
    estimator : calibrator or callable
        An estimator with `eps` or `privacy` set; it is not changed. Or a function that
        takes ``(clients, *, privacy, random_state)``, such as `ScoreHistogram.fit`, and
        returns an object with a `PrivacyReport`, or a private metric such as
        `federated_roc_auc_score`, whose estimates have one.
    clients : list of (logits, labels), default=None
        Clients among which the canary hides; labels are column numbers. None makes
        eight clients of six rows and four classes, or as many as ``estimator.classes``
        has.
    privacy : privacy model, default=None
        The claim, where `estimator` is a function.
    n_runs : int, default=1500
        Fits with the canary, and as many without; 0 leaves out the distinguisher.
    alpha : float, default=0.01
        Chance that an honest estimator fails.
    random_state : int, default=None
        Seed of all fits, for an audit that can be repeated; None audits noise from the
        operating system.

    Returns
    -------
    AuditResult

    Examples
    --------
    >>> from skfedcal import FedBinCalibrator
    >>> from skfedcal.privacy import audit_estimator
    >>> audit_estimator(FedBinCalibrator(eps=1.0), n_runs=0).passed
    True
    """
    whole = isinstance(n_runs, int) and n_runs == 0
    alpha = check_runs(20 if whole else n_runs, alpha)
    check_seed(random_state)
    auditor = _Auditor.of(estimator, clients, privacy, random_state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return auditor.run(n_runs, alpha)


class _Auditor(Subject):
    """What is audited, and the steps of it."""

    def run(self, n_runs: int, alpha: float) -> AuditResult:
        found = canaries(self.n_classes, self.model.unit)
        probe, _ = self.fit([*self.others, found[0].pair], (4,))
        report = report_of(probe)
        claim = Claim(report.eps, report.delta, report.mu)
        assumed = _NEIGHBOURS.get(report.adjacency, "zero")
        tapes = {}
        for i, canary in enumerate(found):
            pairs = [*self.others, canary.pair]
            _, tapes[canary.name] = self.fit(pairs, (0, i), assumed=assumed)
        worst = max(found, key=lambda canary: _weight(tapes[canary.name], claim))
        if not any(part.sent for part in tapes[worst.name].rounds):
            raise ValueError(
                "The canary took part in no round, so there is nothing to audit. "
                "Pass `clients` that have rows."
            )
        checks = [
            self._check_secret(worst, claim),
            self._check_apart(worst, found),
            self._check_door(worst, report),
            self._check_ledger(worst, claim),
        ]
        if all(is_additive(part) for tape in tapes.values() for part in tape.rounds):
            checks = [
                check_sensitivity(tapes),
                check_strength(tapes, claim),
                check_lattice(list(tapes.values())),
                *checks,
            ]
        checks.insert(0, check_claim(report, self.model))
        tried = (
            f"{report.unit} unit, {report.adjacency}, {report.trust}",
            f"canaries: {', '.join(canary.name for canary in found)}",
            f"{_kind(claim)} over {report.n_rounds} round(s) of whole fits",
        )
        result = AuditResult(claim, tuple(checks), alpha=alpha, tried=tried)
        if n_runs == 0:
            return result
        result = self._distinguish(result, worst, assumed, n_runs)
        reach = _reach(tapes[worst.name], claim)
        level = _WORLDS * alpha
        return replace(result, power=power(claim, result.errors[0], level, reach))

    def _distinguish(
        self, result: AuditResult, canary: Canary, assumed: Neighbour, n_runs: int
    ) -> AuditResult:
        claim = result.claim
        level, noise = _WORLDS * result.alpha, _NOISE * result.alpha
        pairs = [*self.others, canary.pair]
        reach = 2.0 if assumed == "negative" else 1.0
        tally, scores = NoiseTally(claim, reach=reach), np.empty((2, n_runs))
        for run in range(n_runs):
            for side, kind in enumerate((assumed, "none")):
                _, tape = self.fit(
                    pairs, (1, side, run), neighbour=kind, assumed=assumed
                )
                tally.add(tape, swapped=side == 0)
                scores[side, run] = _score(tape, claim)
        fixed = 0.0, "fixed"
        errors, check, lower = judge(scores[0], scores[1], claim, level, fixed)
        checks = [*result.checks, check]
        if tally.n_draws:
            looks = tally.check_scale, tally.check_shape, tally.check_fresh
            checks += [look(noise) for look in looks]
            (record,) = tape.ledger.records()
            event = event_from_dict(record["event"])
            checks.append(check_measured_debit(tally, event, claim, noise))
        return replace(
            result,
            checks=tuple(checks),
            errors=errors,
            lower=lower,
            eps_lower=eps_of(claim, lower),
            n_runs=n_runs,
            tried=(*result.tried, f"distinguisher: {canary.name}"),
            level=_WORLDS,
        )

    def _check_secret(self, canary: Canary, claim: Claim) -> AuditCheck:
        """Whether two fits without a seed have different noise."""
        pairs = [*self.others, canary.pair]
        first, one = self.fit(pairs, (2,), secret=True)
        _, two = self.fit(pairs, (2,), secret=True)
        return check_secret(one, two, report_of(first).secure, claim)

    def _check_ledger(self, canary: Canary, claim: Claim) -> AuditCheck:
        """Whether two fits that pay from one ledger are debited what they report."""
        ledger = PrivacyLedger()
        pairs = [*self.others, canary.pair]
        fits = [self.fit(pairs, (5, i), ledger=ledger)[0] for i in range(2)]
        return check_debits(ledger, [report_of(fitted) for fitted in fits], claim)

    def _check_apart(self, canary: Canary, found: Sequence[Canary]) -> AuditCheck:
        """Whether others send the same, whoever the canary is."""
        sums = []
        for one in (canary, next(c for c in reversed(found) if c is not canary)):
            _, tape = self.fit([*self.others, one.pair], (3,), blind=True)
            sums.append([part.others for part in tape.rounds])
        apart = not differences(sums[0], sums[1])
        return AuditCheck(
            "clients apart",
            apart,
            "others send the same" if apart else "what others send depends on a client",
            "the same",
        )

    def _check_door(self, canary: Canary, report: PrivacyReport) -> AuditCheck:
        """Whether a fit on other data leaves the same behind, for the same releases."""
        found, nothing = self._left_behind(canary), "nothing"
        if found and NO_ROWS_KNOWN in report.assumptions:
            found = self._left_behind(canary, keep_empty=True)
            nothing = "who has no rows, which is assumed to be public"
        return AuditCheck(
            "nothing else released",
            not found,
            f"{', '.join(found[:3])} depend on private rows" if found else nothing,
            "nothing",
        )

    def _left_behind(self, canary: Canary, *, keep_empty: bool = False) -> list[str]:
        """Names of what differs on other data."""
        pairs = [*self.others, canary.pair]
        unit = self.model.unit
        other = altered_rows(pairs, self.n_classes, unit, keep_empty=keep_empty)
        left = []
        for data in (pairs, other):
            fitted, tape = self.fit(data, (3,), blind=True)
            codes = [dict(part.codec.blocks) for part in tape.rounds]
            left.append({"fitted": state_of(fitted), "bounds": codes})
        return differences(left[0], left[1])


def _weight(tape: Tape, claim: Claim) -> float:
    """How much of a canary there is to see."""
    if all(is_additive(part) for part in tape.rounds):
        return strength(tape, claim)
    sent = [value for part in tape.rounds for value in part.sent.values()]
    return float(sum(np.abs(value).sum() for value in sent))


def _score(tape: Tape, claim: Claim) -> float:
    """Likelihood ratio of present against absent, in standard deviations.

    Over Gaussian noise the mean is half the strength of the canary below 0 or above it.
    Over Laplace noise 0 is the median where the canary is present: there the claimed
    curve is touched. Of a report it is asked whether it names the cell of the canary
    and not that of its neighbour, in all rounds; every oracle is as tight as its eps.
    """
    if tape.rounds[0].reports:
        return _named(tape)
    ratio = square = 0.0
    for part in tape.rounds:
        for name in part.sent:
            gap = (part.sent[name] - part.swapped[name]).astype(float)
            sd = part.released.noise[name] / part.step(name)
            ratio += float(residuals(part, name, swapped=True) @ gap) / sd**2
            square += float(gap @ gap) / sd**2
    # Both are sums of integers over a scale, up to rounding.
    middle = square / 2 if claim.mu is not None else square * (1 - 1e-9)
    return (ratio - middle) / square**0.5 if square > 0 else 0.0


def _named(tape: Tape) -> float:
    """Half, if all reports of the canary speak for its own cell; else below 0."""
    found = [
        int(report @ (part.sent[name] - part.swapped[name]))
        for part in tape.rounds
        for name, report in part.reports.items()
    ]
    return min(found) - 0.5


def _reach(tape: Tape, claim: Claim) -> float:
    """Share of the claim that the canary can show; NaN where that is not known.

    Over Laplace noise only a single number touches the claimed curve; of reports it
    depends on the oracle.
    """
    if not all(is_additive(part) for part in tape.rounds):
        return nan
    gaps = [p.sent[name] - p.swapped[name] for p in tape.rounds for name in p.sent]
    if claim.mu is None and sum(np.count_nonzero(gap) for gap in gaps) != 1:
        return nan
    return min(1.0, strength(tape, claim) / claim.size)


def _kind(claim: Claim) -> str:
    """Name of the curve that is audited."""
    return "mu-GDP" if claim.mu is not None else "pure eps"
