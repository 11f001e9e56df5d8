"""Audit of any calibrator: its whole fit, with worst-case clients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np

from skfedcal.privacy._client_models import NO_ROWS_KNOWN
from skfedcal.privacy._events import event_from_dict
from skfedcal.privacy._ledger import PrivacyLedger
from skfedcal.privacy._models import PrivacyModel
from skfedcal.privacy._report import PrivacyReport
from skfedcal.privacy.audits._books import check_debits, check_measured_debit
from skfedcal.privacy.audits._canaries import Canary, Pair, canaries, disguised
from skfedcal.privacy.audits._checks import (
    check_claim,
    check_lattice,
    check_secret,
    check_sensitivity,
    check_strength,
    differences,
    strength,
)
from skfedcal.privacy.audits._errors import Claim, eps_of, power
from skfedcal.privacy.audits._laws import is_additive
from skfedcal.privacy.audits._noise import NoiseTally
from skfedcal.privacy.audits._result import AuditCheck, AuditResult
from skfedcal.privacy.audits._subject import Subject, report_of, state_of
from skfedcal.privacy.audits._tap import Neighbour, Tape, residuals
from skfedcal.privacy.audits._two_worlds import check_runs, check_seed, judge

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
    class full, no rows) are put to the door, one at a time, and what they send is
    checked in integers: its norm against the bound, and the bound against the noise.
    The one that shows most is then present in `n_runs` fits and absent in as many; the
    auditor knows what everybody sends and takes the likelihood ratio over all rounds,
    or, under local privacy, hears the report of the canary. The noise of these fits
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
                "The canary was not asked for anything, so that there is nothing to "
                "audit. Pass `clients` that have rows."
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
            "nothing past the door",
            not found,
            f"{', '.join(found[:3])} depend on private rows" if found else nothing,
            "nothing",
        )

    def _left_behind(self, canary: Canary, *, keep_empty: bool = False) -> list[str]:
        """Names of what differs on other data."""
        pairs = [*self.others, canary.pair]
        unit = self.model.unit
        other = disguised(pairs, self.n_classes, unit, keep_empty=keep_empty)
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
