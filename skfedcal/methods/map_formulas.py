"""Formulas shared by the maps of several methods, as operations of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skfedcal._numerics import MAX_SPAN
from skfedcal.methods.graph import log1p, log_sum_exp, softplus

if TYPE_CHECKING:
    from skfedcal.methods.graph import Value


# The most even vector leaves the others this part less than an equal share, so that
# float32 still tells the order.
AHEAD = 1e-3

# Exponents beyond this are exactly 0.
VANISHED = 800.0
MAX_FACTOR = 1e300

# Steps of Newton's method, of which a graph has a fixed number. Of 5e6 rows, with gaps
# from 1e-9 to 1e6, none took more than 19 to get within 1e-9.
_STEPS = 24


def at_top(logits: Value) -> Value:
    """True at the largest entry of each row, the first of equals."""
    zeros = logits * 0.0
    return zeros.scatter(logits.argmax(), zeros.max() + 1.0) > 0.5


def temper_to(logits: Value, own: Value, n_classes: int) -> Value:
    """Divide each row by the temperature that gives its largest entry `own`."""
    return temper_to_odds(logits, -((1.0 - own) / own).log(), n_classes)


def temper_to_odds(logits: Value, own: Value, n_classes: int) -> Value:
    """As `temper_to`, with log-odds instead of a probability."""
    gaps = abs(logits).at_most(MAX_SPAN)
    target = (-own).at_most(np.log((n_classes - 1) * (1 - AHEAD)))
    factor = _factors(gaps, at_top(-gaps), target, n_classes - 1)
    return (-(gaps * factor)).at_least(-MAX_SPAN)


def move_top(logits: Value, before: Value, own: Value, n_classes: int) -> Value:
    """Logits whose largest has the log-odds `own` instead of `before`.

    The order of the classes does not change. A lower value is set by a temperature,
    because with fixed proportions the second class could overtake. A higher value keeps
    the proportions of the others: the temperature that separates two almost equal
    classes is so low that all other classes would get probability 0.
    """
    rows = logits.at_least(-MAX_SPAN)
    raised = _shared(rows, -softplus(-own), -softplus(own))
    return (own < before).choose(temper_to_odds(rows, own, n_classes), raised)


def share_rest(logits: Value, own: Value) -> Value:
    """Probability `own` for the largest entry, the rest in proportion."""
    return _shared(logits.at_least(-MAX_SPAN), own.log(), log1p(-own))


def _shared(rows: Value, log_own: Value, log_rest: Value) -> Value:
    top = at_top(rows)
    others = top.choose(-np.inf, rows)
    return top.choose(log_own, others - log_sum_exp(others) + log_rest)


def _factors(gaps: Value, top: Value, target: Value, n_others: int) -> Value:
    """Solve ``log(sum(exp(-factor * gaps))) = target`` over the others of each row."""
    least = top.choose(np.inf, gaps).min()
    apart = (gaps > 0.0).choose(gaps, np.inf).min()
    highest = (VANISHED / apart).at_most(MAX_FACTOR)
    start = _ratio(np.log(n_others) - target, gaps.sum() / float(n_others))
    factor = start.at_least(_ratio(-target, least)).at_most(highest)
    extra = top.choose(0.0, gaps - least)
    for _ in range(_STEPS):
        terms = top.choose(0.0, (-(extra * factor)).exp())
        total = terms.sum()
        excess = total.log() - factor * least - target
        slope = least + (terms * extra).sum() / total
        factor = (factor + _ratio(excess, slope).at_least(0.0)).at_most(highest)
    return factor


def _ratio(above: Value, below: Value) -> Value:
    """Quotient; infinite, by the sign of `above`, where `below` is 0."""
    some = below > 0.0
    far = (above > 0.0).choose(np.inf, -np.inf)
    return some.choose(above / some.choose(below, 1.0), far)


def log_odds(logits: Value, n_classes: int) -> Value:
    """Log-odds of each class against the rest."""
    rows = logits.at_least(-MAX_SPAN)
    if n_classes == 2:
        gap = rows.columns([1]) - rows.columns([0])
        return (-gap).beside(gap)
    top = at_top(rows)
    weights = top.choose(0.0, rows.exp())
    # The sum without the largest first: 1 minus a probability near 1 has no digits.
    others = log1p(weights.sum() - weights)
    rest = log_sum_exp(top.choose(-np.inf, rows))
    odds = rows - top.choose(rest, others)
    return odds.at_least(-MAX_SPAN).at_most(MAX_SPAN)


def bin_of(place: Value, n_bins: int) -> Value:
    """Number of the equal-width bin of a position in [0, 1], the last one closed."""
    return (place * float(n_bins)).floor().at_most(n_bins - 1.0)


def centred_rows(logits: Value) -> tuple[Value, Value]:
    """Rows of mean zero, and the mask of entries that are too low."""
    masked = logits < -MAX_SPAN
    known = masked.choose(0.0, logits)
    mean = known.sum() / masked.choose(0.0, 1.0).sum()
    return masked.choose(0.0, known - mean), masked


def stretched(cal: Any, logits: Value, factors: Value, far: Value) -> Value:
    """Multiply the gap below each class; masked entries are taken from `far`."""
    ranks = logits.argsort()
    ordered = logits.at_least(-MAX_SPAN).gather(ranks)
    upper = np.arange(len(cal.classes_) - 1)
    falls = ordered.columns(upper) - ordered.columns(upper + 1)
    falls = (falls * factors.gather(ranks).columns(upper)).cumsum()
    sorted_out = (falls.columns([0]) * 0.0).beside(-falls)
    out = (logits.at_least(-MAX_SPAN) * 0.0).scatter(ranks, sorted_out)
    return (logits < -MAX_SPAN).choose(far, out)
