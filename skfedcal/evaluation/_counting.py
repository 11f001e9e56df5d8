"""Count scores by label and bucket, as the privacy model needs it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skfedcal.algorithms._class_scores import ClassScoreCounts
from skfedcal.evaluation._collect import Statistic

if TYPE_CHECKING:
    from skfedcal.data._dataset import FederatedDataset
    from skfedcal.federation._remote import RemoteDataset


def collect_counts(
    statistic: Statistic,
    data: FederatedDataset | RemoteDataset,
    scores: ClassScoreCounts,
    max_examples: int | None,
    weighting: str,
) -> Any:
    """Run a counting algorithm as the privacy model needs it; returns what came out."""
    limit = statistic.limit(max_examples)
    if weighting == "client" and statistic.private and statistic.unit == "example":
        raise ValueError(
            f"weighting='client': {statistic.model!r} protects each example by itself, "
            "whose weight must not depend on others. Pass weighting='example'."
        )
    if statistic.local and weighting == "client":
        limit, weighting = 1, "example"  # one row each: the same expectation
    bound = 1.0 if weighting == "client" else limit
    algorithm = replace(
        scores,
        max_examples=limit if weighting == "example" else max_examples,
        clip=float(bound or 1.0) if statistic.private else None,
        weighting=weighting,  # type: ignore[arg-type]
        by_round=statistic.local,
        salt=0 if limit is None else statistic.salt(),
        n_rounds=len(scores.levels) if statistic.local else 1,
    )
    n_parts = len(scores.levels) if statistic.local else 1
    return statistic.run(algorithm, data, n_parts=n_parts, drop_empty=statistic.local)
