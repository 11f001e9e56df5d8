"""Checks of single fits and of the noise of many fits."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from hashlib import sha256
from math import asinh, exp, inf, isnan, log, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.privacy.audits.audit_result import AuditCheck
from skfedcal.privacy.audits.errors import Claim, Errors, combined_p_value
from skfedcal.privacy.audits.tap import RoundTape, Tape, residuals
from skfedcal.privacy.events import PrivacyReport


def is_additive(tape: RoundTape) -> bool:
    """Whether noise is added to the exact sum, on a lattice."""
    laws = tape.released.laws
    return bool(laws) and all(law.kind == "additive" for law in laws.values())


def laplace_scale(sd: float) -> float:
    """Scale of the discrete Laplace law with this standard deviation."""
    return 1 / (2 * asinh(sqrt(0.5) / sd))


def log_repeats(sd: float, claim: Claim) -> float:
    """Logarithm of the chance that two draws of integer noise are equal."""
    if claim.mu is not None:
        return log(min(1.0, 1 / (2 * sqrt(pi) * sd)))
    q = exp(-1 / laplace_scale(sd))
    return log((1 - q) * (1 + q * q) / (1 + q) ** 3)


Floats = NDArray[np.float64]

# Chance below which noise that comes back is no accident.
UNLIKELY = 1e-9
# Where the claimed curve is looked at, in standard deviations from the middle: noise
# that is cut off shows far out, noise that is too peaked near the middle.
_PLACES = np.linspace(-4.0, 4.0, 33)


@dataclass
class NoiseTally:
    """Sums over the noise of many fits, in standard deviations.

    claim: Gaussian noise if it has a `mu`.
    reach: Bounds of a unit that neighbouring data sets differ by: 2 for 'replace'.
    """

    claim: Claim
    least_sd: float = inf
    reach: float = 1.0
    _sizes: dict[tuple[int, str], tuple[float, float]] = field(default_factory=dict)
    _squares: dict[tuple[int, str], Floats] = field(default_factory=dict)
    _counts: dict[tuple[int, str], int] = field(default_factory=dict)
    _products: dict[str, list[float]] = field(default_factory=dict)
    _passed: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((2, len(_PLACES)), dtype=np.int64)
    )
    _n_passed: list[int] = field(default_factory=lambda: [0, 0])
    _seen: set[bytes] = field(default_factory=set)
    _n_blocks: int = 0
    _repeats: float = -inf
    _last: list[Floats] = field(default_factory=list)

    @property
    def n_draws(self) -> int:
        """Numbers with noise that were looked at."""
        return sum(n * self._squares[key].size for key, n in self._counts.items())

    def add(self, tape: Tape, swapped: bool) -> None:
        """Count the noise of one fit; `swapped`: without the canary."""
        if not all(is_additive(part) for part in tape.rounds):
            return
        found = []
        for i, part in enumerate(tape.rounds):
            for name in sorted(part.sent):
                sd = part.released.noise[name] / part.step(name)
                noise = residuals(part, name, swapped) / sd
                self.least_sd = min(self.least_sd, sd)
                self._sizes[i, name] = (self.reach * part.largest(name), sd)
                self._remember(noise, noise.size * log_repeats(sd, self.claim))
                self._add_block((i, name), noise, self._shift(part, name, sd), swapped)
                found.append(noise)
        pairs = [(a, b) for i, a in enumerate(found) for b in found[:i]]
        self._multiply("rounds", pairs)
        self._multiply("runs", list(zip(found, self._last, strict=False)))
        self._last = found

    def _remember(self, noise: Floats, chance: float) -> None:
        """Keep blocks that are long enough never to come back."""
        if chance < 2 * log(UNLIKELY):
            self._seen.add(sha256(noise.tobytes()).digest())
            self._n_blocks += 1
            self._repeats = max(self._repeats, chance)

    def _shift(self, part: RoundTape, name: str, sd: float) -> float:
        """Distance at which a single number touches the claim, or less."""
        if self.claim.mu is not None:
            return self.claim.mu
        return part.codec.blocks[name].largest / sd

    def _add_block(
        self, key: tuple[int, str], noise: Floats, shift: float, swapped: bool
    ) -> None:
        self._squares[key] = self._squares.get(key, 0.0) + noise**2
        self._counts[key] = self._counts.get(key, 0) + 1
        # One world without a client that moves this number by its bound, one with it.
        places = shift / 2 + _PLACES
        if swapped:
            self._passed[0] += (noise[:, None] >= places).sum(axis=0)
        else:
            self._passed[1] += (noise[:, None] + shift < places).sum(axis=0)
        self._n_passed[0 if swapped else 1] += noise.size
        half = noise.size // 2
        self._multiply("next cells", [(noise[:-1], noise[1:])])
        self._multiply("halves", [(noise[:half], noise[half:])])

    def _multiply(self, kind: str, pairs: list[tuple[Floats, Floats]]) -> None:
        total = self._products.setdefault(kind, [0.0, 0.0])
        for a, b in pairs:
            n = min(a.size, b.size)
            total[0] += float(a[:n] @ b[:n])
            total[1] += n

    def check_scale(self, alpha: float) -> AuditCheck:
        """Whether there is as much noise as stated: in all, and in each number."""
        n_cells = sum(squares.size for squares in self._squares.values())
        whole = sum(float(squares.sum()) for squares in self._squares.values())
        found = whole / max(self.n_draws, 1)
        allowed = self._least(max(self.n_draws, 1), alpha / 2)
        passed = found >= allowed
        where = "in all"
        for key, squares in self._squares.items():
            n = self._counts[key]
            least = self._least(n, alpha / (2 * n_cells))
            smallest = float(squares.min(initial=np.inf)) / n
            # A number without any noise is seen in a few runs, whatever its law.
            bare = smallest == 0 and n * self._longest_silence() < log(alpha / n_cells)
            if passed and (smallest < least or bare):
                passed, found, allowed = False, smallest, least
                where = f"in one number of {key[1]}, round {key[0]}"
        return AuditCheck(
            "noise scale",
            passed,
            f"{sqrt(found):.4f} x the stated sd {where} ({self.n_draws} draws)",
            f">= {sqrt(allowed):.4f}",
        )

    def least_cost(self, alpha: float) -> float:
        """Bound `mu` (or `eps`) of the release from below, by the measured noise."""
        from skfedcal.privacy.audits.books import block_cost, upper_variance

        total, mu = 0.0, self.claim.mu
        for key, (reach, sd) in self._sizes.items():
            n = self._counts[key] * self._squares[key].size
            mean = float(self._squares[key].sum()) / n
            most = upper_variance(mean, n, sd, mu, alpha / len(self._sizes))
            total += block_cost(reach, sd * sqrt(most), mu)
        return sqrt(total) if mu is not None else total

    def _least(self, n: int, alpha: float) -> float:
        """Bound from below on a mean of `n` squares.

        For Gaussian noise by the chi-square law. For Laplace noise, and sums of it, by
        the bound ``exp(-n t^2 / (2 k))`` on the lower tail of a mean of squares with
        fourth moment k, at most ``6 + 1 / variance``.
        """
        from scipy.stats import chi2

        if self.claim.mu is not None:
            return float(chi2.ppf(alpha, n)) / n
        kurtosis = 6 + 1 / self.least_sd**2
        return max(0.0, 1 - sqrt(2 * kurtosis * log(1 / alpha) / n))

    def _longest_silence(self) -> float:
        """Logarithm of the chance that integer noise is 0."""
        if self.claim.mu is not None:
            return log(min(0.9, 1 / (sqrt(2 * np.pi) * self.least_sd)))
        q = exp(-1 / laplace_scale(self.least_sd))
        return log((1 - q) / (1 + q))

    def check_shape(self, alpha: float) -> AuditCheck:
        """Whether noise of this shape hides a shift of one number by the bound."""
        absent, present = self._n_passed
        errors = [
            Errors(int(a), int(b), absent, present, weight=1 / len(_PLACES))
            for a, b in self._passed.T
        ]
        p_value = combined_p_value(errors, self.claim)
        return AuditCheck(
            "noise shape",
            p_value >= alpha,
            f"p {p_value:.2g} at {len(_PLACES)} places of the curve",
            f">= {alpha:.2g}",
        )

    def check_fresh(self, alpha: float) -> AuditCheck:
        """Whether rounds, blocks, cells and runs have noise of their own."""
        from scipy.special import ndtri

        deviate = -float(ndtri(alpha / (2 * len(self._products))))
        worst, found, allowed, where = -1.0, 0.0, 1.0, "none"
        for kind, (total, n) in self._products.items():
            if n == 0:
                continue
            # Sums of products have heavier tails than the normal law, by Bernstein.
            bound = deviate * (1 + 2 * deviate / sqrt(n)) / sqrt(n)
            if abs(total / n) / bound > worst:
                worst = abs(total / n) / bound
                found, allowed, where = total / n, bound, kind
        n_again = self._n_blocks - len(self._seen)
        pairs = 2 * log(max(self._n_blocks, 1))
        if n_again and self._repeats + pairs < log(UNLIKELY):
            text = f"{n_again} of {self._n_blocks} blocks have the noise of another"
            return AuditCheck("fresh noise", False, text, "none")
        return AuditCheck(
            "fresh noise",
            worst <= 1,
            f"correlation {found:+.4f} ({where})",
            f"within {allowed:.4f}",
        )


# Of sums of squares of floats.
_ROUNDING = 1e-9
# Of equations that are solved for mu.
_SOLVED = 1e-6
# What may differ between two fits with the same releases: names of debits, and time.
_PRIVATE = {"ledger_ids", "seconds", "client_seconds"}


def strength(tape: Tape, claim: Claim) -> float:
    """What the canary shows over all rounds: its `mu`, or its `eps`.

    From the integers that it sends and the noise that the mechanism says it adds.
    """
    total = 0.0
    for part in tape.rounds:
        for name in part.sent:
            gap = (part.sent[name] - part.swapped[name]).astype(float)
            sd = part.released.noise[name] / part.step(name)
            if claim.mu is not None:
                total += float(gap @ gap) / sd**2
            else:
                total += float(np.abs(gap).sum()) / laplace_scale(sd)
    return sqrt(total) if claim.mu is not None else total


def check_claim(report: PrivacyReport, model: Any) -> AuditCheck:
    """Whether what is reported is what was asked for, and adds up."""
    from skfedcal.privacy.accounting import gdp_epsilon

    delta = getattr(model, "delta", None)
    eps = report.eps
    if report.mu is not None:
        eps = max(eps, gdp_epsilon(report.mu, report.delta))
    passed = eps <= model.eps * (1 + _SOLVED)
    if delta is not None:
        passed = passed and report.delta <= delta * (1 + _SOLVED)
    limit = "" if delta is None else f", delta <= {delta:.3g}"
    return AuditCheck(
        "claim",
        passed,
        f"eps {eps:.4f}, delta {report.delta:.3g}",
        f"eps <= {model.eps:.4f}{limit}",
    )


def check_sensitivity(tapes: dict[str, Tape]) -> AuditCheck:
    """Whether every client, in every round, keeps its bound, in exact integers."""
    worst, where, kept = 0.0, "none", True
    for label, tape in tapes.items():
        for part in tape.rounds:
            for name, code in part.codec.blocks.items():
                if code.step is None or name not in part.longest:
                    continue
                # In integers: a float could round the excess away.
                kept = kept and part.longest[name] <= code.limit
                found = part.longest[name] / max(code.limit, 1)
                if code.spec.norm == "l2":
                    found = sqrt(found)
                if found > worst:
                    worst, where = found, f"{label}, {name}"
    return AuditCheck(
        "bound of a client", kept, f"{worst:.4f} of the bound ({where})", "<= 1"
    )


def check_strength(tapes: dict[str, Tape], claim: Claim) -> AuditCheck:
    """Whether what a canary shows is within the claim."""
    found = {
        label: strength(tape, claim)
        for label, tape in tapes.items()
        if all(is_additive(part) for part in tape.rounds)
    }
    kind = "eps" if claim.mu is None else "mu"
    label = max(found, key=found.__getitem__, default="no canary")
    worst = found.get(label, 0.0)
    return AuditCheck(
        "noise for the bound",
        worst <= claim.size * (1 + _ROUNDING),
        f"{kind} {worst:.4f} ({label})",
        f"{kind} <= {claim.size:.4f}",
    )


def check_lattice(tapes: list[Tape]) -> AuditCheck:
    """Whether only lattice points are released."""
    n_values = n_off = 0
    for tape in tapes:
        for part in tape.rounds:
            if not is_additive(part):
                continue
            for name, value in part.released.items():
                step = part.step(name)
                n_values += value.size
                n_off += int((np.rint(value / step) * step != value).sum())
    return AuditCheck(
        "lattice", n_off == 0, f"{n_off} of {n_values} values off the lattice", "0"
    )


def check_secret(first: Tape, second: Tape, secure: bool, claim: Claim) -> AuditCheck:
    """Whether two fits that say they are secure have different noise, in each block."""
    name = "secret noise"
    if not secure:
        return AuditCheck(name, True, "reported as simulated", "no claim")
    repeated, n_same, n_values = False, 0, 0
    for one, two in zip(first.rounds, second.rounds, strict=False):
        if not is_additive(one):
            return AuditCheck(name, True, "clients report: not checked", "no claim")
        for block, value in one.released.items():
            same = int((value == two.released[block]).sum())
            sd = one.released.noise[block] / one.step(block)
            # With little noise on whole numbers two honest fits may be alike.
            chance = value.size * log_repeats(sd, claim)
            repeated |= same == value.size and chance < log(UNLIKELY)
            n_values, n_same = n_values + value.size, n_same + same
    return AuditCheck(
        name,
        not repeated,
        f"{n_same} of {n_values} values in a second fit",
        "no whole block",
    )


def differences(first: Any, second: Any, path: str = "") -> list[str]:
    """Names of parts in which two fitted objects differ."""
    if callable(getattr(first, "state_dict", None)):  # a torch module
        return _differences_of_modules(first, second, path)
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        same = np.shape(first) == np.shape(second) and _equal(first, second)
        return [] if same else [path]
    if type(first) is not type(second):
        return [path]
    if is_dataclass(first) and not isinstance(first, type):
        names = [f.name for f in fields(first)]
        first = {name: getattr(first, name) for name in names}
        second = {name: getattr(second, name, None) for name in names}
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return [path]
        parts = [(str(key), value, second[key]) for key, value in first.items()]
    elif isinstance(first, (list, tuple)):
        if len(first) != len(second):
            return [path]
        parts = [
            (str(i), a, b) for i, (a, b) in enumerate(zip(first, second, strict=True))
        ]
    elif hasattr(first, "__dict__") and not callable(first):
        return differences(vars(first), vars(second), path)
    else:
        both_nan = isinstance(first, float) and isnan(first) and second != second
        return [] if both_nan or first is second or first == second else [path]
    return [
        found
        for key, a, b in parts
        if key not in _PRIVATE
        for found in differences(a, b, f"{path}.{key}" if path else key)
    ]


def _differences_of_modules(first: Any, second: Any, path: str) -> list[str]:
    if type(first) is not type(second):
        return [path]
    one, two = (
        {name: np.asarray(value.cpu()) for name, value in module.state_dict().items()}
        for module in (first, second)
    )
    return differences(one, two, path)


def _equal(first: Any, second: Any) -> bool:
    first, second = np.asarray(first), np.asarray(second)
    if first.dtype.kind in "fc":
        return bool(np.array_equal(first, second, equal_nan=True))
    return bool(np.array_equal(first, second))
