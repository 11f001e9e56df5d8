"""Terms that are added to a loss: calibration penalties and ties to the server's model.

All are called as ``penalty(logits, y, mask, ctx, params, features)`` and added `weight`
times. `vmap` maps over all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp
from typing import TYPE_CHECKING, Literal

from skfedcal._params import FrozenParams
from skfedcal.training._losses import check_numbers, masked_mean, one_hot
from skfedcal.training._torch import import_torch

if TYPE_CHECKING:
    from torch import Tensor

    from skfedcal.training._context import Context, Params
    from skfedcal.training._objective import Penalty

# Keeps roots and quotients of zero away from infinite slopes.
_TINY = 1e-12


@dataclass(frozen=True)
class MMCE(FrozenParams):
    r"""Weighted maximum mean calibration error of confidences.

    With confidence :math:`r`, :math:`n_1` right and :math:`n_0` wrong rows and
    :math:`a_i = (1 - r_i)/n_1` for right, :math:`-r_i/n_0` for wrong ones, the term is
    :math:`\sqrt{\sum_{ij} a_i a_j e^{-|r_i - r_j| / width}}`; zero if all rows are
    right or all are wrong (Kumar et al., 2018).

    Parameters
    ----------
    weight : float, default=0.2
        Factor of the term; 4 fits ``normalization='reference'``.
    width : float, default=0.4
        Width of the kernel.
    normalization : {'paper', 'reference'}, default='paper'
        'reference' divides by :math:`n_1^2` and :math:`n_0^2` as public codes do, one
        power too many; weights recommended with them are for this scale.

    Examples
    --------
    >>> from skfedcal.training import MMCE
    >>> MMCE(weight=4.0, normalization="reference").width
    0.4
    """

    weight: float = 0.2
    width: float = 0.4
    normalization: Literal["paper", "reference"] = "paper"

    def __post_init__(self) -> None:
        word = self.normalization
        if not isinstance(word, str) or word not in ("paper", "reference"):
            raise ValueError(
                f"normalization={self.normalization!r}; pass 'paper' or 'reference'."
            )
        check_numbers(self, above=["width"], from_zero=["weight"])

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def __call__(
        self,
        logits: Tensor,
        y: Tensor,
        mask: Tensor,
        ctx: Context,
        params: Params,
        features: Tensor,
    ) -> Tensor:
        sure, right = confidence(logits, y)
        power = 1 if self.normalization == "paper" else 2
        n_right, n_wrong = (right * mask).sum(), ((1 - right) * mask).sum()
        both = (n_right > 0) & (n_wrong > 0)
        gain = right * (1 - sure) / n_right.clamp(min=1.0) ** power
        loss = (1 - right) * sure / n_wrong.clamp(min=1.0) ** power
        terms = mask * (gain - loss)
        kernel = (-(sure[:, None] - sure[None, :]).abs() / self.width).exp()
        square = (terms * (kernel * terms).sum(-1)).sum().clamp(min=0.0)
        return (square + 1e-10).sqrt() * both


@dataclass(frozen=True)
class MMD(FrozenParams):
    r"""Kernel distance between predicted and observed classes, given the prediction.

    The unbiased estimate :math:`\frac{1 - e^{-2/b_y}}{n (n-1)} \sum_{i \ne j}
    e^{-\|p_i - p_j\|^2 / b} \langle p_i - y_i, p_j - y_j \rangle`, with one-hot y. This
    is the U-statistic of Marx et al. (2023) with Gaussian kernels on predictions and on
    classes, in :math:`O(n^2 C)`: residuals add up to zero over classes, so that the
    kernel on classes is a factor. May be negative.

    Parameters
    ----------
    weight : float, default=0.2
        Factor of the term.
    bandwidth : float, default=1.0
        Of the kernel on predictions, b.
    label_bandwidth : float, default=0.01
        Of the kernel on classes, :math:`b_y`; only a factor.

    Examples
    --------
    >>> from skfedcal.training import MMD
    >>> MMD(weight=1.0).bandwidth
    1.0
    """

    weight: float = 0.2
    bandwidth: float = 1.0
    label_bandwidth: float = 0.01

    def __post_init__(self) -> None:
        positive = ["bandwidth", "label_bandwidth"]
        check_numbers(self, above=positive, from_zero=["weight"])

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def __call__(
        self,
        logits: Tensor,
        y: Tensor,
        mask: Tensor,
        ctx: Context,
        params: Params,
        features: Tensor,
    ) -> Tensor:
        proba = logits.softmax(-1)
        residual = (proba - one_hot(y, logits)) * mask[:, None]
        square = (proba * proba).sum(-1)
        apart = square[:, None] + square[None, :] - 2 * proba @ proba.T
        kernel = (-apart.clamp(min=0.0) / self.bandwidth).exp()
        pairs = kernel * (residual @ residual.T)
        # A row with itself: its kernel is 1.
        total = pairs.sum() - (residual * residual).sum()
        n = mask.sum()
        factor = 1 - exp(-2 / self.label_bandwidth)
        return factor * total / (n * (n - 1)).clamp(min=1.0)


@dataclass(frozen=True)
class DCA(FrozenParams):
    """Gap between mean confidence and accuracy (Liang et al., 2020).

    Parameters
    ----------
    weight : float, default=1.0
        Factor of the term; the authors' code uses 5.

    Examples
    --------
    >>> from skfedcal.training import DCA
    >>> DCA(weight=5.0)
    DCA(weight=5.0)
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, from_zero=["weight"])

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def __call__(
        self,
        logits: Tensor,
        y: Tensor,
        mask: Tensor,
        ctx: Context,
        params: Params,
        features: Tensor,
    ) -> Tensor:
        sure, right = confidence(logits, y)
        return masked_mean(sure - right, mask).abs()


@dataclass(frozen=True)
class MDCA(FrozenParams):
    """Mean gap, over classes, of mean probability and frequency in the batch.

    Hebbalaguppe et al. (2022).

    Parameters
    ----------
    weight : float, default=1.0
        Factor of the term.

    Examples
    --------
    >>> from skfedcal.training import MDCA
    >>> MDCA()
    MDCA(weight=1.0)
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, from_zero=["weight"])

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def __call__(
        self,
        logits: Tensor,
        y: Tensor,
        mask: Tensor,
        ctx: Context,
        params: Params,
        features: Tensor,
    ) -> Tensor:
        residual = (logits.softmax(-1) - one_hot(y, logits)) * mask[:, None]
        return (residual.sum(0) / mask.sum().clamp(min=1.0)).abs().mean()


@dataclass(frozen=True)
class NonUniform(FrozenParams):
    r"""A calibration penalty, the more the client moves where the server moved (NUCFL).

    The factor is the cosine between what the client has changed so far in this round
    and the server's last change; zero in the first round and at the first step, where
    there is no change yet. Negative values count as zero, a choice of this library: the
    paper (Chu et al., 2024) uses the similarity as it is.

    Parameters
    ----------
    penalty : penalty, default=DCA()
        The penalty, with its own weight.

    Examples
    --------
    >>> from skfedcal.training import MDCA, NonUniform
    >>> NonUniform(MDCA(weight=2.0)).weight
    2.0
    """

    penalty: Penalty = field(default_factory=DCA)

    def __post_init__(self) -> None:
        if not callable(self.penalty) or isinstance(self.penalty, type):
            raise TypeError(
                f"NonUniform(penalty={self.penalty!r}): pass a penalty, such as DCA()."
            )

    @property
    def weight(self) -> float:
        return self.penalty.weight

    @property
    def needs(self) -> frozenset[str]:
        own = {"global_params", "previous_update"}
        return frozenset(own | set(self.penalty.needs))

    def __call__(
        self,
        logits: Tensor,
        y: Tensor,
        mask: Tensor,
        ctx: Context,
        params: Params,
        features: Tensor,
    ) -> Tensor:
        term = self.penalty(logits, y, mask, ctx, params, features)
        return self.similarity(params, ctx) * term

    def similarity(self, params: Params, ctx: Context) -> Tensor:
        """Cosine of the client's and the server's change, at least 0."""
        start, last = ctx.global_params, ctx.previous_update
        if start is None or last is None:
            raise ValueError("NonUniform needs global_params and previous_update.")
        moved = {name: (value - start[name]).detach() for name, value in params.items()}
        inner = _total([moved[name] * last[name] for name in moved])
        own = _total([value * value for value in moved.values()])
        other = _total([last[name] * last[name] for name in moved])
        # No constant is added: changes may be of any size.
        length = own.sqrt() * other.sqrt()
        return (inner / length.where(length > 0, 1.0)).clamp(min=0.0)


def confidence(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Probability of the most probable class, and 1 where that is the own one."""
    sure, chosen = logits.softmax(-1).max(-1)
    return sure, (chosen == y).to(logits.dtype)


def _total(parts: list[Tensor]) -> Tensor:
    return import_torch().stack([part.sum() for part in parts]).sum()


def cosine(one: Tensor, other: Tensor) -> Tensor:
    """Cosine between the rows of two matrices; 0 for a row of zeros."""
    inner = (one * other).sum(-1)
    square = (one * one).sum(-1) + _TINY
    return inner * (square * ((other * other).sum(-1) + _TINY)).rsqrt()
