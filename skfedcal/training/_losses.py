"""Losses of one batch; rows of padding count nothing.

All are called as ``loss(logits, y, mask, ctx)`` and are made of operations that `vmap`
maps over: a cohort of clients is trained by the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from numbers import Real
from typing import TYPE_CHECKING, Literal

from skfedcal._params import FrozenParams, as_number, check_flag
from skfedcal.training._torch import import_torch

if TYPE_CHECKING:
    from torch import Tensor

    from skfedcal.training._context import Context

# Logit of a class that is left out of the softmax.
_NEVER = -1e4


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the rows that count; 0 if none does."""
    return (values * mask).sum() / mask.sum().clamp(min=1.0)


def check_numbers(
    settings: object, *, above: Sequence[str] = (), from_zero: Sequence[str] = ()
) -> None:
    """Raise unless these fields are finite numbers above zero, or from zero on."""
    for names, low, words in (
        (above, 0.0, "above 0"),
        (from_zero, -1e-300, "of at least 0"),
    ):
        for name in names:
            value = getattr(settings, name)
            # Tensors cannot be multiplied by fractions.
            plain = isinstance(value, Real) and not isinstance(value, Fraction)
            number = as_number(name, value) if plain else inf
            if not low < number < inf:
                raise ValueError(
                    f"{type(settings).__name__}({name}={value!r}): pass a finite "
                    f"number {words}."
                )


def one_hot(y: Tensor, like: Tensor) -> Tensor:
    """Rows with a 1 at the class, of the shape and type of `like`."""
    # torch's own one_hot cannot be mapped over.
    classes = import_torch().arange(like.shape[-1], device=like.device)
    return (y[..., None] == classes).to(like.dtype)


def log_likelihood(logits: Tensor, y: Tensor) -> Tensor:
    """Log-probability of the own class of each row."""
    return logits.log_softmax(-1).gather(-1, y[:, None]).squeeze(-1)


@dataclass(frozen=True)
class CrossEntropy(FrozenParams):
    """Mean negative log-likelihood.

    Examples
    --------
    >>> from skfedcal.training import CrossEntropy
    >>> CrossEntropy()
    CrossEntropy()
    """

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def __call__(self, logits: Tensor, y: Tensor, mask: Tensor, ctx: Context) -> Tensor:
        return -masked_mean(log_likelihood(logits, y), mask)


@dataclass(frozen=True)
class Focal(FrozenParams):
    r"""Focal loss: the mean of :math:`-(1 - p_y)^\gamma \log p_y`.

    Parameters
    ----------
    gamma : float, default=3.0
        Exponent; 0 is the cross-entropy, if it is that of all rows.
    sample_dependent : bool, default=True
        FLSD-53 of Mukhoti et al. (2020): an exponent of 5 for rows with a probability
        of the own class below 0.2.

    Examples
    --------
    >>> from skfedcal.training import Focal
    >>> Focal(gamma=2.0, sample_dependent=False)
    Focal(gamma=2.0, sample_dependent=False)
    """

    gamma: float = 3.0
    sample_dependent: bool = True

    def __post_init__(self) -> None:
        check_numbers(self, from_zero=["gamma"])
        check_flag("sample_dependent", self.sample_dependent)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def __call__(self, logits: Tensor, y: Tensor, mask: Tensor, ctx: Context) -> Tensor:
        log_p = log_likelihood(logits, y)
        # A sure row has 1 - p = 0, where powers below 1 have no slope.
        rest = (-log_p.expm1()).clamp(min=1e-12)
        gamma = logits.new_tensor(self.gamma)
        if self.sample_dependent:
            gamma = import_torch().where(log_p.detach().exp() < 0.2, 5.0, gamma)
        return -masked_mean(rest**gamma * log_p, mask)


@dataclass(frozen=True)
class FedLC(FrozenParams):
    r"""Cross-entropy of :math:`z_c - \tau n_c^{-1/4}`, with the client's class counts.

    Classes that the client does not hold are left out of its softmax. The paper (Zhang
    et al., 2022) leaves the own class out of the denominator, too, which has no lower
    bound and collapses; here it stays in.

    Parameters
    ----------
    tau : float, default=1.0
        Strength.

    Examples
    --------
    >>> from skfedcal.training import FedLC
    >>> FedLC(tau=0.5)
    FedLC(tau=0.5)
    """

    tau: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, from_zero=["tau"])

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def __call__(self, logits: Tensor, y: Tensor, mask: Tensor, ctx: Context) -> Tensor:
        shifted = logits - self.tau * ctx.counts.clamp(min=1.0) ** -0.25
        held = shifted.where(ctx.counts > 0, logits.new_tensor(_NEVER))
        return -masked_mean(log_likelihood(held, y), mask)


@dataclass(frozen=True)
class Margin(FrozenParams):
    r"""Cross-entropy with :math:`z_y - H N_y^{-1/4}` for the own class (LDAM, FL-FCR).

    Only the own class of a row is lowered: Eq. 13 of FL-FCR with the label, not the
    summation index, in the margin.

    Parameters
    ----------
    scale : float, default=1.0
        The factor H; 0 is the cross-entropy. FL-FCR gives no value.
    counts : {'local', 'global'}, default='local'
        Whether N counts the client's rows, or those of all clients, which are asked for
        in a round of their own and not under privacy. FL-FCR prints the latter, which
        is a constant margin where classes are equally frequent over all clients.
    max_margin : float, default=None
        Scale margins so that the largest is this (0.5 in LDAM); H then cancels.
    logit_scale : float, default=1.0
        Factor of the logits after the margin (30 in LDAM, for cosine logits).

    Examples
    --------
    >>> from skfedcal.training import Margin
    >>> Margin(max_margin=0.5).counts
    'local'
    """

    scale: float = 1.0
    counts: Literal["local", "global"] = "local"
    max_margin: float | None = None
    logit_scale: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.counts, str) or self.counts not in ("local", "global"):
            raise ValueError(f"counts={self.counts!r}; pass 'local' or 'global'.")
        check_numbers(self, above=["logit_scale"], from_zero=["scale"])
        if self.max_margin is not None:
            check_numbers(self, from_zero=["max_margin"])

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"global_counts"} if self.counts == "global" else ())

    def __call__(self, logits: Tensor, y: Tensor, mask: Tensor, ctx: Context) -> Tensor:
        counts = ctx.counts if self.counts == "local" else ctx.global_counts
        if counts is None:
            raise ValueError("Margin(counts='global') needs ctx.global_counts.")
        margin = self.scale * counts.clamp(min=1.0) ** -0.25 * (counts > 0)
        if self.max_margin is not None:
            margin = margin * (self.max_margin / margin.max().clamp(min=1e-12))
        lowered = logits - one_hot(y, logits) * margin
        return -masked_mean(log_likelihood(self.logit_scale * lowered, y), mask)


@dataclass(frozen=True)
class LogitAdjusted(FrozenParams):
    r"""Cross-entropy of :math:`z_c + \tau \log n_c`, with the client's class counts.

    The logits learn what tells classes apart, not how frequent they are at a client
    (balanced softmax).

    Parameters
    ----------
    tau : float, default=1.0
        Strength; 0 is the cross-entropy.
    floor : float, default=1e-3
        Rows that a class without any counts as.

    Examples
    --------
    >>> from skfedcal.training import LogitAdjusted
    >>> LogitAdjusted()
    LogitAdjusted(tau=1.0, floor=0.001)
    """

    tau: float = 1.0
    floor: float = 1e-3

    def __post_init__(self) -> None:
        check_numbers(self, above=["floor"], from_zero=["tau"])

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def __call__(self, logits: Tensor, y: Tensor, mask: Tensor, ctx: Context) -> Tensor:
        shifted = logits + self.tau * ctx.counts.clamp(min=self.floor).log()
        return -masked_mean(log_likelihood(shifted, y), mask)
