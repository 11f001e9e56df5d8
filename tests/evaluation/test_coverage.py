"""Intervals hold the numbers of the population as often as they say."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, ndtr

from skfedcal import ScoreHistogram
from skfedcal.evaluation.answers import VISIBLE
from skfedcal.evaluation.planning import ScoreModel
from skfedcal.privacy import DistributedDP, LocalDP

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)

# Log-odds at which the population is integrated.
ODDS = np.linspace(-25, 25, 200_001)
BINS = 15


class Population:
    """Normal log-odds in both classes, of which the model shows ``slope * odds``."""

    def __init__(self, rate, auc, slope=1.0, threshold=0.3):
        self.rate, self.slope, self.threshold = rate, slope, threshold
        self.spread = ScoreModel(rate, auc).spread
        self.prior = np.log(rate / (1 - rate))

    def draw(self, n, seed):
        rng = np.random.default_rng(seed)
        labels = (rng.random(n) < self.rate).astype(int)
        centre = self.prior + (labels - 0.5) * self.spread**2
        return self.slope * (centre + self.spread * rng.normal(size=n)), labels

    def cells(self):
        """Shares of negatives and positives between neighbours of `ODDS`."""
        place = (ODDS / self.slope - self.prior) / self.spread
        below = [ndtr(place + self.spread / 2), ndtr(place - self.spread / 2)]
        return np.diff(below, axis=1) * [[1 - self.rate], [self.rate]]

    def truth(self):
        negative, positive = self.cells()
        odds = (ODDS[1:] + ODDS[:-1]) / 2
        score = expit(odds)
        tp, fp = (np.cumsum(part[::-1])[::-1] for part in (positive, negative))
        above = int(np.searchsorted(score, self.threshold))
        hits, alarms = tp[above], fp[above]
        below = np.cumsum(negative) - negative / 2
        return {
            "roc_auc": positive @ below / (self.rate * (1 - self.rate)),
            "average_precision": positive @ (tp / np.maximum(tp + fp, 1e-300))
            / self.rate,
            "accuracy": hits + 1 - self.rate - alarms,
            "precision": hits / (hits + alarms),
            "recall": hits / self.rate,
            "f1": 2 * hits / (self.rate + hits + alarms),
            "brier": negative @ score**2 + positive @ (1 - score) ** 2,
            "log_loss": negative @ np.logaddexp(0, odds)
            + positive @ np.logaddexp(0, -odds),
        }  # fmt: skip

    def gaps(self, grid):
        """Gap and share of rows of each bucket of a grid."""
        negative, positive = self.cells()
        score = expit((ODDS[1:] + ODDS[:-1]) / 2)
        leaf = np.searchsorted(grid.edges[1:-1], score, side="right")
        gap = np.bincount(
            leaf, positive - (negative + positive) * score, grid.n_buckets
        )
        return gap, np.bincount(leaf, negative + positive, grid.n_buckets)


def answers(hist, population, truth):
    """Pairs of an estimate and the number it is for."""
    out = {
        name: getattr(hist, name)(population.threshold)
        for name in ("accuracy", "precision", "recall", "f1")
    }
    for name in ("roc_auc", "average_precision", "brier", "log_loss"):
        out[name] = getattr(hist, name)()
    pairs = {name: (estimate, truth[name]) for name, estimate in out.items()}
    # Calibration errors are for the bins that were used.
    gap, share = population.gaps(hist.grid)
    member = np.minimum((hist.grid.centres * BINS).astype(int), BINS - 1)
    gap, share = np.bincount(member, gap), np.bincount(member, share)
    pairs["ece"] = (hist.ece(BINS), np.abs(gap).sum())
    shown = shown_bins(hist, member)
    squares = gap[shown] ** 2 / share[shown]
    pairs["l2_ece"] = (hist.l2_ece(BINS), squares.sum())
    return pairs


def shown_bins(hist, member):
    """Bins that are more than noise, as `l2_ece` says."""
    inside = (member == np.arange(member.max() + 1)[:, None])[:, None]
    inside = inside * np.ones((2, 1))
    rows = (hist.counts_ * inside).sum(axis=(1, 2))
    noise = np.sqrt(hist.noise_.variances(hist.counts_, inside)[1])
    return rows > VISIBLE * noise


CASES = {
    "few positives": (None, 1_000, Population(0.1, 0.9), 150),
    "exact": (None, 20_000, Population(0.5, 0.65), 150),
    "distributed": (DistributedDP(1.0), 20_000, Population(0.3, 0.8, 1.3), 300),
    "distributed, small": (DistributedDP(0.5), 5_000, Population(0.3, 0.8), 100),
    "local": (LocalDP(5.0), 20_000, Population(0.1, 0.65, threshold=0.12), 300),
    "local, too sure": (LocalDP(5.0), 50_000, Population(0.3, 0.8, 2.0), 80),
    "local, sets": (LocalDP(2.0, "subset"), 20_000, Population(0.5, 0.8), 80),
}

# Lengths of intervals of ECE, a tenth more than measured: no longer than the bins' own
# sampling and noise make them.
WIDTHS = {
    "few positives": 0.036,
    "exact": 0.016,
    "distributed": 0.018,
    "local": 0.035,
    "local, too sure": 0.023,
}

# An absolute value of what is near 0 has an interval that starts at 0: it may hold its
# number more often than it says, not less often.
AT_LEAST = ("ece", "l2_ece")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_intervals_hold_the_population(case):
    privacy, n, population, repeats = CASES[case]
    truth, found = population.truth(), {}
    for seed in range(repeats):
        odds, labels = population.draw(n, seed)
        hist = ScoreHistogram.fit(
            odds, labels, client_ids=np.arange(n), classes=[0, 1], privacy=privacy,
            random_state=seed,
        )  # fmt: skip
        for name, (estimate, true) in answers(hist, population, truth).items():
            row = (float(estimate), estimate.low, estimate.high, true)
            found.setdefault(name, []).append(row)
    # The true level is .93 or more. Seventy numbers are looked at: a chance of 1e-8
    # each.
    least = stats.binom.ppf(1e-8, repeats, 0.93)
    for name, rows in found.items():
        value, low, high, true = np.array(rows).T
        inside = ((low <= true) & (true <= high)).sum()
        assert inside >= least, name
        if repeats == 300:  # one standard error of .0126; these seeds
            assert 0.92 <= inside / 300 <= (1 if name in AT_LEAST else 0.98), name
        # The spread of 80 values is known to 8 %; five of these.
        if name not in AT_LEAST:
            assert (high - low).mean() < 1.4 * 2 * 1.96 * value.std(), name
    if case in WIDTHS:
        _, low, high, _ = np.array(found["ece"]).T
        assert (high - low).mean() < WIDTHS[case]


def test_average_precision_of_few_buckets_is_that_of_the_scores():
    # Precision at the end of each of 64 buckets is too low by .012, its mean over the
    # bucket by .0005.
    from skfedcal.evaluation.grid import ScoreGrid
    from skfedcal.evaluation.ranking import average_precision

    model = ScoreModel(0.1, 0.9)
    true = average_precision(model.cells(ScoreGrid(14)), exact=False)[0]
    cells = model.cells(ScoreGrid(6))
    ends = average_precision(cells, exact=True)[0]
    mean = average_precision(cells, exact=False)[0]
    assert true - ends > 0.01
    assert abs(true - mean) < 0.001
