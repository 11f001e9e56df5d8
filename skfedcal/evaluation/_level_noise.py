"""Noise that a privacy model will give to a hierarchy of counts, before any fit."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import as_number
from skfedcal.evaluation._noise import LevelLaw, NoiseModel
from skfedcal.evaluation._variances import discrete_laplace_variance
from skfedcal.privacy._client_models import DistributedDP, LocalDP, SourceDP
from skfedcal.privacy._models import CentralDP, SecureAggregation, check_model
from skfedcal.privacy._oracles import Oracle, choose_oracle

Array = NDArray[Any]

# Reports per level that the variance of one is computed with; any number will do.
_REPORTS = 1 << 20

_LOCAL_KINDS = {"oue": "unary", "olh": "unary", "rr": "grr"}


@dataclass(frozen=True, slots=True)
class LevelNoise:
    """Noise of the counts of some levels.

    Parameters
    ----------
    model : NoiseModel
        Laws of the levels, of as many reports as is convenient for local noise.
    """

    model: NoiseModel

    @property
    def height(self) -> int:
        return self.model.bits[-1]

    def unit_std(self, weights: Array, cells: Array) -> Array:
        """Standard deviation that noise adds to ``sum(weights * shares)``.

        For one example; `scale` has the change with their number. Weights have shape
        (..., 2, 2**height); shares are `cells` on average.
        """
        n = self.model.n_reports if self.model.local else 1
        variance = self.model.variances(cells * n, weights)[1]
        return np.sqrt(variance / n)

    def scale(self, n_examples: float) -> float:
        """Give the change with the number of examples."""
        return 1 / sqrt(n_examples) if self.model.local else 1 / n_examples


def check_planned(privacy: Any) -> None:
    """Raise for what is no privacy model, or one whose noise is not known here."""
    check_model(privacy)
    if privacy is None or isinstance(privacy, SecureAggregation):
        return
    if not isinstance(privacy, CentralDP | DistributedDP | LocalDP | SourceDP):
        raise ValueError(
            f"privacy={privacy!r} cannot be planned with; pass None, "
            "SecureAggregation(), CentralDP, DistributedDP, LocalDP or SourceDP."
        )
    privacy.validate()


def level_noise(
    privacy: Any,
    levels: tuple[int, ...],
    *,
    max_examples: int = 1,
    n_sources: int | None = None,
) -> LevelNoise:
    """Noise of the counts of these levels under a privacy model."""
    if privacy is None or isinstance(privacy, SecureAggregation):
        return LevelNoise(NoiseModel(tuple(LevelLaw(bits) for bits in levels)))
    if isinstance(privacy, LocalDP):
        local = (_local_law(privacy.eps, privacy.oracle, bits) for bits in levels)
        return LevelNoise(NoiseModel(tuple(local)))
    # Counts with an L1 bound: Laplace noise under all other models.
    twice = getattr(privacy, "adjacency", "") == "replace"
    for name, value in (("max_examples", max_examples), ("n_sources", n_sources)):
        if value is None and name == "n_sources":
            continue
        if not 1 <= as_number(name, value) < 1e100:
            raise ValueError(f"{name}={value!r}: pass a number from 1 on.")
    reach = max_examples * len(levels) * (2 if twice else 1)
    variance = discrete_laplace_variance(float(privacy.eps) / reach)
    if isinstance(privacy, SourceDP):
        if n_sources is None:
            raise ValueError("SourceDP adds noise at every source; pass n_sources.")
        variance *= n_sources
    laws = (LevelLaw(bits, "additive", variance) for bits in levels)
    return LevelNoise(NoiseModel(tuple(laws)))


def _local_law(eps: float, oracle: str, bits: int) -> LevelLaw:
    """Law of reports on one level; clients are divided equally over levels."""
    domain = 2 * 2**bits
    chosen: Any = (
        choose_oracle(float(eps), domain)
        if oracle == "auto"
        else Oracle(oracle, float(eps), domain)  # type: ignore[arg-type]
    )
    kind: Any = _LOCAL_KINDS.get(chosen.kind, chosen.kind)
    return LevelLaw(bits, kind, 0.0, chosen.p, chosen.q, _REPORTS, domain)
