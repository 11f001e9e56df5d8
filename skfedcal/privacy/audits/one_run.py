"""Many canaries in one release."""

from __future__ import annotations

from math import exp
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import check_choice
from skfedcal.contract import BlockSpec
from skfedcal.privacy.audits.audit_result import AuditCheck, AuditResult
from skfedcal.privacy.audits.checks import (
    NoiseTally,
    check_lattice,
    check_sensitivity,
    laplace_scale,
)
from skfedcal.privacy.audits.errors import Claim, Floats, eps_of, lower_bound, power
from skfedcal.privacy.audits.tap import RoundTape, Tape, tapped
from skfedcal.privacy.audits.two_worlds import check_runs, check_seed, count_errors
from skfedcal.privacy.codec import add_up
from skfedcal.privacy.entropy import ClientStreams, Entropy, OSEntropy, SeededEntropy
from skfedcal.privacy.ledger import PrivacyLedger
from skfedcal.privacy.models import (
    LocalDP,
    PrivacyModel,
    ReleasePlan,
    check_model,
)

_BLOCK = "cells"
# Shares of alpha: cells as runs, and each of the other two tests.
_SHARP, _REST = 0.9, 0.05


def audit_one_run(
    privacy: PrivacyModel,
    *,
    n_canaries: int = 2560,
    norm: Literal["l2", "l1"] = "l2",
    alpha: float = 0.01,
    random_state: int | None = None,
) -> AuditResult:
    """Audit a privacy model with one release and many canaries.

    Every canary is a client that fills its bound in a cell of its own; a coin says
    whether it is there. The auditor guesses from each cell whether it is. Two tests are
    made of the guesses. "any mechanism" bounds the number of right ones, among the
    clearest tenth, by the theorem of [1]_; it assumes nothing, and sees gross faults
    only. "many canaries" takes cells for runs of their own, which needs noise that is
    independent between cells: a fast and sharp test of the library's own mechanisms,
    not a proof for an unknown mechanism.

    Parameters
    ----------
    privacy : privacy model
        Such as ``CentralDP(eps=1)``; `unit` is the client.
    n_canaries : int, default=2560
        Cells, and canaries.
    norm : {'l2', 'l1'}, default='l2'
        Which bound a client has: Gaussian or Laplace noise.
    alpha : float, default=0.01
        Chance that an honest mechanism fails.
    random_state : int, default=None
        Seed of coins and noise; None uses the operating system.

    Returns
    -------
    AuditResult

    References
    ----------
    .. [1] Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run",
       NeurIPS 2023, theorem 5.2.

    Examples
    --------
    >>> from skfedcal.privacy import CentralDP, audit_one_run
    >>> audit_one_run(CentralDP(1.0), random_state=0).passed
    True
    """
    alpha = check_runs(n_canaries, alpha, "n_canaries")
    check_seed(random_state)
    _check_model(privacy, norm)
    entropy: Entropy = OSEntropy()
    if random_state is not None:
        entropy = SeededEntropy(random_state)
    here = entropy.child(1).bits(n_canaries)
    tape, claim = _release(privacy, here, norm, entropy)
    part = tape.rounds[0]
    cells = np.ravel(part.released[_BLOCK]) / part.step(_BLOCK)
    own = part.codec.blocks[_BLOCK].largest
    threshold = own / 2 if claim.mu is not None else float(own)
    errors = (count_errors(cells[~here], cells[here], threshold),)
    p_value = errors[0].p_value(claim)
    lower = lower_bound(errors, claim, _SHARP * alpha)
    tally = NoiseTally(claim)
    tally.add(tape, swapped=False)
    kind = "eps" if claim.mu is None else "mu"
    checks = (
        check_sensitivity({"canary": tape}),
        check_lattice([tape]),
        AuditCheck(
            "many canaries",
            p_value >= _SHARP * alpha,
            f"{kind} >= {lower:.4f} (p {p_value:.2g})",
            f"{kind} <= {claim.size:.4f}",
        ),
        _check_any(cells, here, claim, _REST * alpha),
        tally.check_scale(_REST * alpha),
    )
    return AuditResult(
        claim=claim,
        checks=checks,
        errors=errors,
        lower=lower,
        eps_lower=eps_of(claim, lower),
        alpha=alpha,
        power=power(claim, errors[0], _SHARP * alpha, _reach(part, own, claim)),
        n_runs=1,
        tried=(f"one release, {n_canaries} canaries in cells of their own",),
        level=_SHARP,
    )


def one_run_p_value(
    n_canaries: int, n_guesses: int, n_right: int, eps: float, delta: float
) -> float:
    """Chance of so many right guesses in one run, at most, for any mechanism."""
    from scipy.stats import binom

    q = 1 / (1 + exp(-eps))
    beyond = float(binom.sf(n_right - 1, n_guesses, q))
    if delta == 0 or n_right == 0:
        return min(1.0, beyond)
    below = np.cumsum(binom.pmf(np.arange(n_right - 1, -1, -1), n_guesses, q))
    steepest = float(np.max(below / np.arange(1, n_right + 1)))
    return min(1.0, beyond + 2 * n_canaries * delta * steepest)


def _check_any(
    cells: Floats, here: NDArray[np.bool_], claim: Claim, alpha: float
) -> AuditCheck:
    """Guesses of the clearest cells, by a bound that needs no independence."""
    half = max(1, len(cells) // 20)
    order = np.argsort(cells, kind="stable")
    n_right = int((~here[order[:half]]).sum() + here[order[-half:]].sum())
    p_value = one_run_p_value(len(cells), 2 * half, n_right, claim.eps, claim.delta)
    return AuditCheck(
        "any mechanism",
        p_value >= alpha,
        f"{n_right} of {2 * half} guesses right (p {p_value:.2g})",
        f"p >= {alpha:.2g}",
    )


def _check_model(privacy: PrivacyModel, norm: str) -> None:
    """Raise for a privacy model that cannot release cells."""
    check_model(privacy)
    if privacy is None:
        raise TypeError("privacy=None gives no guarantee; pass CentralDP(eps=...).")
    check_choice("norm", norm, ("l2", "l1"))
    privacy.validate()
    if not privacy.private or privacy.unit != "client":
        raise ValueError(
            f"{privacy!r} does not protect clients as a whole (unit='client'); pass "
            "CentralDP(eps=...)."
        )
    if isinstance(privacy, LocalDP):
        raise ValueError(
            f"{privacy!r} adds no noise to sums: clients report. Audit an estimator "
            "with it by audit_estimator."
        )


def _reach(part: RoundTape, own: int, claim: Claim) -> float:
    """Share of the claim that one canary shows: half where clients are replaced."""
    sd = part.released.noise[_BLOCK] / part.step(_BLOCK)
    shown = own / (sd if claim.mu is not None else laplace_scale(sd))
    return min(1.0, shown / claim.size)


def _release(
    privacy: PrivacyModel, here: np.ndarray, norm: Literal["l2", "l1"], entropy: Entropy
) -> tuple[Tape, Claim]:
    """One release of cells, through the codec and the mechanism of the model."""
    n = len(here)
    plan = ReleasePlan(n, 1, 1, 1.0, n, norm=norm)
    tape = Tape(canary=n - 1)
    mechanism = tapped(privacy, tape).mechanism(
        plan, entropy=entropy.child(0), ledger=PrivacyLedger(), split="split", label=""
    )
    kind: Literal["count", "real"] = "count" if norm == "l1" else "real"
    codec = mechanism.codec({_BLOCK: BlockSpec((n,), kind, clip=1.0, norm=norm)})
    mechanism.open("audit", n_participations=1)
    total = codec.zeros()
    # A row per canary: in parts, as there are as many cells.
    for rows in np.array_split(np.arange(n), max(1, n // 256)):
        sent = np.zeros((len(rows), n), dtype=np.int64)
        sent[np.arange(len(rows)), rows] = here[rows]
        total[_BLOCK] += add_up(codec.encode({_BLOCK: sent})[_BLOCK])
    randomizer = mechanism.randomizer(codec, 0)
    if randomizer is not None:
        source = mechanism.site_entropy
        streams = ClientStreams(
            OSEntropy() if source is None else source.child(0), np.arange(n)
        )
        for name, share in randomizer.shares(codec, streams).items():
            total[name] += share
    mechanism.release(total, codec, 0, n)
    report = mechanism.report()
    return tape, Claim(report.eps, report.delta, report.mu)
