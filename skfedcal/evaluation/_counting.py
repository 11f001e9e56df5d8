"""Count scores by label and bucket, as the privacy model needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skfedcal.algorithms._score_counts import ScoreCounts
from skfedcal.evaluation._collect import Statistic

if TYPE_CHECKING:
    from skfedcal.data._dataset import FederatedDataset


def collect_counts(
    statistic: Statistic,
    data: FederatedDataset,
    depths: tuple[int, ...],
    max_examples: int | None,
    weighting: str,
) -> tuple[Any, Any]:
    """Run the counting algorithm as the privacy model needs it."""
    limit = statistic.limit(max_examples)
    if weighting == "client" and statistic.private and statistic.unit == "example":
        raise ValueError(
            f"weighting='client': {statistic.model!r} protects each example by itself, "
            "whose weight must not depend on others. Pass weighting='example'."
        )
    if statistic.local:
        if weighting == "client":
            limit, weighting = 1, "example"  # one row each: the same expectation
        # A client without rows has nothing to report, and everybody can see that.
        data = data.select(np.flatnonzero(data.sizes))
    bound = 1.0 if weighting == "client" else limit
    algorithm = ScoreCounts(
        depths,
        max_examples=limit if weighting == "example" else max_examples,
        clip=float(bound or 1.0) if statistic.private else None,
        weighting=weighting,  # type: ignore[arg-type]
        by_round=statistic.local,
        salt=0 if limit is None else statistic.salt(),
        n_rounds=len(depths) if statistic.local else 1,
    )
    n_parts = len(depths) if statistic.local else 1
    collected = statistic.run(algorithm, data, n_parts=n_parts)
    return collected.state, collected
