"""One-vs-rest areas under the curve of several classes, with sparse reports."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, sqrt
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.algorithms._one_vs_rest import OneVsRestCounts
from skfedcal.evaluation._answers import undefined
from skfedcal.evaluation._collect import Statistic
from skfedcal.evaluation._estimate import (
    Estimate,
    make_estimate,
    replace,
    with_guarantee,
)
from skfedcal.evaluation._grid import ScoreGrid
from skfedcal.evaluation._inputs import Clients, check_choices
from skfedcal.evaluation._levels import release_levels, split_levels
from skfedcal.evaluation._noise import NoiseModel
from skfedcal.evaluation._ranking_sums import auc_with_gradient

if TYPE_CHECKING:
    from skfedcal.privacy._report import PrivacyReport

Array = NDArray[Any]


@dataclass(frozen=True)
class OneVsRest:
    """Counts of (class, negative or positive, bucket) over all clients.

    Parameters
    ----------
    counts : ndarray of shape (2, n_classes, n_buckets)
        Negatives that were reported, and positives.
    noise : NoiseModel
        Law of the noise of each level.
    classes : ndarray of shape (n_classes,)
        Labels.
    ceiling : int
        Highest bucket in which a negative that was not reported can lie.
    privacy_ : PrivacyReport
        What the release guarantees.
    """

    counts: Array
    noise: NoiseModel
    classes: Array
    ceiling: int
    privacy_: PrivacyReport

    @with_guarantee
    def macro_auc(self, ci: float) -> Estimate:
        """Mean of the areas of all classes against the rest."""
        parts = [self._class(k) for k in range(len(self.classes))]
        if any(part is None for part in parts):
            undefined("ROC AUC", "a class has no rows, or all of them", "nan")
            return Estimate(nan, nan, nan, se_sampling=nan, se_privacy=nan)
        values, slopes, tied, unseen = zip(
            *[p for p in parts if p is not None], strict=True
        )
        both = [self._variances(slope) for slope in slopes]
        # Rows enter several classes; the mean of the errors bounds that of the mean.
        sampling = float(np.mean([sqrt(s) for s, _ in both])) ** 2
        privacy = self._variances(np.mean(slopes, axis=0))[1]
        found = make_estimate(
            float(np.mean(values)),
            sampling,
            privacy,
            ci=ci,
            discretisation=float(np.mean(tied)),
        )
        return _lowered(found, float(np.mean(unseen)))

    @with_guarantee
    def per_class(self, ci: float) -> list[Estimate]:
        """Area of each class against the rest."""
        out = []
        for k in range(len(self.classes)):
            part = self._class(k)
            if part is None:
                undefined("ROC AUC", f"class {self.classes[k]!r} is not there", "nan")
                out.append(Estimate(nan, nan, nan, se_sampling=nan, se_privacy=nan))
                continue
            value, slope, tied, unseen = part
            both = self._variances(slope)
            found = make_estimate(value, *both, ci=ci, discretisation=tied)
            out.append(_lowered(found, unseen))
        return out

    def _class(self, k: int) -> tuple[float, Array, float, float] | None:
        """Area of one class, its slope in all counts, and how far it may be off.

        That is a bound with ties, and the part of it that only makes it too large.
        """
        negative, positive = self.counts[0, k].copy(), self.counts[1, k]
        rows = float(self.counts[1].sum())
        # Negatives that nobody reported count as lowest, which makes the area too
        # large; how much at most is part of the bound.
        hidden = rows - float(positive.sum()) - float(negative.sum())
        negative[0] += hidden
        n, p = float(negative.sum()), float(positive.sum())
        if min(n, p) <= 0:
            return None
        value, (down, up) = auc_with_gradient(np.stack([negative, positive]))
        slope = np.zeros_like(self.counts)
        slope[0, k] = down - down[0]
        slope[1] = down[0]  # a row of any other class is one more negative
        slope[1, k] = up
        seen = np.maximum(negative, 0) * np.maximum(positive, 0)
        tied = min(float(seen.sum()) / (2 * n * p), 0.5)
        below = max(float(positive[: self.ceiling + 1].sum()), 0.0)
        unseen = min(max(hidden, 0.0) / n * below / p, 1.0)
        return value, slope, min(tied + unseen, 1.0), unseen

    def _variances(self, slope: Array) -> tuple[float, float]:
        tables = (-1, self.counts.shape[-1])
        sampling, privacy = self.noise.variances(
            self.counts.reshape(tables), slope.reshape(tables)
        )
        return float(sampling), float(privacy)


def _lowered(found: Estimate, unseen: float) -> Estimate:
    """Estimate that may be too large by `unseen`, which no noise makes up for."""
    return replace(found, low=max(found.low - unseen, 0.0))


def fit_one_vs_rest(
    clients: tuple[Any, Any], settings: dict[str, Any], n_others: int | None
) -> OneVsRest:
    """Count the scores of all classes; `settings` as of `ScoreHistogram.fit`."""
    check_choices(weighting=settings.get("weighting", "example"))
    if settings.get("weighting", "example") != "example":
        raise ValueError("multi_class='ovr' counts examples; leave weighting out.")
    if settings.get("pos_label") is not None:
        raise ValueError(
            f"pos_label={settings['pos_label']!r}: multi_class='ovr' takes every class "
            "for positive in turn; leave pos_label out."
        )
    check_choices(space=settings.get("space", "both"))
    statistic = Statistic(
        settings["privacy"],
        settings.get("ledger"),
        settings.get("runner"),
        settings["random_state"],
        "federated_roc_auc_score",
    )
    given = Clients(
        *clients,
        settings["client_ids"],
        settings.get("classes"),
        settings.get("input_type", "logits"),
        statistic.private,
    )
    data, classes = given.several()
    space = settings.get("space", "both")
    depths = release_levels(
        statistic.model,
        settings.get("height", "auto"),
        settings.get("levels", "auto"),
        space,
    )
    n_others = _checked_others(n_others, len(classes), statistic)
    limit = statistic.limit(settings.get("max_examples_per_client"))
    grid = ScoreGrid(depths[-1], space)
    algorithm = OneVsRestCounts(
        depths,
        max_examples=limit,
        clip=float((n_others + 1) * (limit or 1)) if statistic.private else None,
        salt=0 if limit is None else statistic.salt(),
        space=grid.space,
        n_classes=len(classes),
        input_type=given.input_type,  # type: ignore[arg-type]
        n_others=n_others,
    )
    found = statistic.run(algorithm, data)
    state = found.state
    noise = NoiseModel.from_rows(depths, state.laws)
    totals = split_levels(state.totals, depths, 2 * len(classes))
    counts = noise.estimate(totals).reshape(2, len(classes), -1)
    # A class that is not among the n_others most probable other ones has at most this.
    highest = grid.position(1 / (n_others + 1))
    ceiling = int(highest * grid.n_buckets)
    ceiling = min(ceiling, grid.n_buckets - 1)
    return OneVsRest(counts, noise, classes, ceiling, found.report)


def _checked_others(n_others: int | None, n_classes: int, statistic: Statistic) -> int:
    """Other classes that a row is counted for.

    None is all for exact sums and one under noise, which grows with it.
    """
    if statistic.local:
        raise ValueError(
            "multi_class='ovr' counts a row for several classes, which would spend eps "
            "under LocalDP several times; use DistributedDP or CentralDP."
        )
    if n_others is None:
        n_others = 1 if statistic.private else n_classes - 1
    whole = isinstance(n_others, Integral) and not isinstance(n_others, bool)
    if not whole or not 1 <= n_others <= n_classes - 1:
        raise ValueError(
            f"n_others={n_others!r}: pass a whole number from 1 to {n_classes - 1}."
        )
    return n_others
