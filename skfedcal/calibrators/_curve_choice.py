"""Which curve suits the counts, and how far it is to be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skfedcal.calibrators._curve_evidence import evidence, saving
from skfedcal.calibrators._curves import (
    Curve,
    Leaves,
    fit_bbq,
    fit_bins,
    fit_isotonic,
)
from skfedcal.calibrators._sigmoids import fit_sigmoid

# Deviations of the labels from the scores that a curve needs to be used at all. Noise
# makes curves that do much harm, and has longer tails than a normal law; overfitting
# alone makes curves that their weight takes care of.
_NEEDED_EXACT, _NEEDED_NOISY = 1.0, 3.5

# Methods that 'auto' has to choose from; of equal savings the first is taken.
AUTO = ("platt", "isotonic")


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Curves of one method, and what speaks for them.

    Parameters
    ----------
    method : str
        Their method.
    curves : list of Curve
        One for each score.
    gain : float
        Log loss of a row that they would save on other rows.
    evidence : float
        Deviations by which labels differ from what the scores say.
    weight : float
        Part of the curves in calibrated log-odds, the rest being the input's; 0 where
        the evidence or the gain is too small.
    """

    method: str
    curves: list[Curve]
    gain: float
    evidence: float
    weight: float


def fit_curve(leaves: Leaves, method: str, n_bins: int) -> Curve:
    """Fit one curve by the name of its method."""
    if method == "bins":
        return fit_bins(leaves, n_bins)
    if method == "bbq":
        return fit_bbq(leaves)
    if method == "isotonic":
        return fit_isotonic(leaves)
    return fit_sigmoid(leaves, "platt" if method == "platt" else "beta")


def choose(every: Sequence[Leaves], method: str, n_bins: int) -> Choice:
    """Fit a curve to each score; 'auto' takes the method that saves more log loss."""
    found = []
    for name in AUTO if method == "auto" else (method,):
        curves = [fit_curve(leaves, name, n_bins) for leaves in every]
        pairs = zip(every, curves, strict=True)
        savings = [saving(*pair, averaged=name == "bbq") for pair in pairs]
        apparent, optimism = np.sum(savings, axis=0)
        found.append((apparent - optimism, apparent, optimism, name, curves))
    gain, apparent, optimism, name, curves = max(found, key=lambda entry: entry[0])
    rows = max(float(every[0].counts.sum()), 1.0)
    shown = evidence(every)
    enough = shown > _needed(every[0].noisy)
    weight = worth(apparent, optimism) if enough else 0.0
    return Choice(name, curves, float(gain / rows), shown, weight)


def in_words(
    method: str, gain: float, shown: float, weight: float | None, *, noisy: bool
) -> str:
    """What speaks for a curve, and what is done; without a weight it is used as is."""
    needed = _needed(noisy)
    out = (
        f"Labels differ from the scores by {max(shown, 0.0):.1f} standard "
        f"deviations ({needed:g} needed)"
    )
    if shown > needed:
        out += f"; {method} saves {gain:.4f} of log loss on other rows"
    if weight is None:
        return f"{out}; the curve is used as it is (if_improves=False)."
    if weight == 0:
        return f"{out}; the input is left as it is."
    return f"{out}; {100 * weight:.0f} % of the curve is used."


def _needed(noisy: bool) -> float:
    return _NEEDED_NOISY if noisy else _NEEDED_EXACT


def worth(apparent: float, optimism: float) -> float:
    """Part of a curve that is worth using, 0 to 1.

    In units of its optimism a saving of 1 is none on other rows, and 2 is best used in
    three quarters (James and Stein). Beyond, the part nears 1 faster than is best for
    log loss: what is well known is not pulled back to the input.
    """
    if apparent <= optimism:
        return 0.0
    return float(1 - (optimism / apparent) ** 2)
