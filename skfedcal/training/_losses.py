"""Losses of one batch, and terms that are added to them.

Losses of one batch; padding rows have weight 0. All are called as ``loss(logits, y,
mask, ctx)`` and are made of operations that `vmap` maps over: a cohort of clients is
trained by the same functions.

Terms that are added to a loss: calibration penalties and distance penalties. All are
called as ``penalty(logits, y, mask, ctx, params, features)`` and added `weight` times.
`vmap` maps over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import exp, inf
from numbers import Real
from typing import TYPE_CHECKING, ClassVar, Literal

from skfedcal._params import FrozenParams, as_number, check_choice, check_flag
from skfedcal.training.modules import import_torch

if TYPE_CHECKING:
    from torch import Tensor

    from skfedcal.training._objective import Context, Params, Penalty

# Logit of a class that is left out of the softmax.
_NEVER = -1e4


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the rows that count; 0 if none does."""
    return (values * mask).sum() / mask.sum().clamp(min=1.0)


def check_numbers(
    settings: object, *, above: Sequence[str] = (), from_zero: Sequence[str] = ()
) -> None:
    """Raise unless these fields are finite numbers above zero, or at least zero."""
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


class _Term(FrozenParams):
    """A loss or a penalty that reads nothing of the context but `counts`."""

    # Parameters that must be above 0, and at least 0.
    _above: ClassVar[tuple[str, ...]] = ()
    _from_zero: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_numbers(self, above=self._above, from_zero=self._from_zero)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()


class _Calibration(_Term):
    """A penalty on the calibration of the rows of a batch."""

    _from_zero = ("weight",)

    def __call__(
        self,
        logits: Tensor,
        y: Tensor,
        mask: Tensor,
        ctx: Context,
        params: Params,
        features: Tensor,
    ) -> Tensor:
        return self._term(logits, y, mask)

    def _term(self, logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Value of the penalty without its weight."""
        raise NotImplementedError


class _Distance(_Term):
    """A penalty on the distance from another model, of strength `mu`."""

    _from_zero = ("mu",)
    mu: float

    @property
    def weight(self) -> float:
        return self.mu


@dataclass(frozen=True)
class CrossEntropy(_Term):
    """Mean negative log-likelihood.

    Examples
    --------
    >>> from skfedcal.training import CrossEntropy
    >>> CrossEntropy()
    CrossEntropy()
    """

    def __call__(self, logits: Tensor, y: Tensor, mask: Tensor, ctx: Context) -> Tensor:
        return -masked_mean(log_likelihood(logits, y), mask)


@dataclass(frozen=True)
class Focal(_Term):
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

    def __call__(self, logits: Tensor, y: Tensor, mask: Tensor, ctx: Context) -> Tensor:
        log_p = log_likelihood(logits, y)
        # A sure row has 1 - p = 0, where powers below 1 have no slope.
        rest = (-log_p.expm1()).clamp(min=1e-12)
        gamma = logits.new_tensor(self.gamma)
        if self.sample_dependent:
            gamma = import_torch().where(log_p.detach().exp() < 0.2, 5.0, gamma)
        return -masked_mean(rest**gamma * log_p, mask)


@dataclass(frozen=True)
class FedLC(_Term):
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

    _from_zero = ("tau",)

    def __call__(self, logits: Tensor, y: Tensor, mask: Tensor, ctx: Context) -> Tensor:
        shifted = logits - self.tau * ctx.counts.clamp(min=1.0) ** -0.25
        held = shifted.where(ctx.counts > 0, logits.new_tensor(_NEVER))
        return -masked_mean(log_likelihood(held, y), mask)


@dataclass(frozen=True)
class Margin(_Term):
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
        check_choice("counts", self.counts, ("local", "global"))
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
class LogitAdjusted(_Term):
    r"""Cross-entropy of :math:`z_c + \tau \log n_c`, with the client's class counts.

    The logits learn to separate the classes, not their frequencies at a client
    (balanced softmax).

    Parameters
    ----------
    tau : float, default=1.0
        Strength; 0 is the cross-entropy.
    floor : float, default=1e-3
        Count that replaces 0 for classes without rows.

    Examples
    --------
    >>> from skfedcal.training import LogitAdjusted
    >>> LogitAdjusted()
    LogitAdjusted(tau=1.0, floor=0.001)
    """

    tau: float = 1.0
    floor: float = 1e-3

    _above, _from_zero = ("floor",), ("tau",)

    def __call__(self, logits: Tensor, y: Tensor, mask: Tensor, ctx: Context) -> Tensor:
        shifted = logits + self.tau * ctx.counts.clamp(min=self.floor).log()
        return -masked_mean(log_likelihood(shifted, y), mask)


# Keeps roots and quotients of zero away from infinite slopes.
_TINY = 1e-12


@dataclass(frozen=True)
class MMCE(_Calibration):
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
        check_choice("normalization", self.normalization, ("paper", "reference"))
        check_numbers(self, above=["width"], from_zero=["weight"])

    def _term(self, logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
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
class MMD(_Calibration):
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

    _above = ("bandwidth", "label_bandwidth")

    def _term(self, logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
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
class DCA(_Calibration):
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

    def _term(self, logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        sure, right = confidence(logits, y)
        return masked_mean(sure - right, mask).abs()


@dataclass(frozen=True)
class MDCA(_Calibration):
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

    def _term(self, logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        residual = (logits.softmax(-1) - one_hot(y, logits)) * mask[:, None]
        return (residual.sum(0) / mask.sum().clamp(min=1.0)).abs().mean()


@dataclass(frozen=True)
class NonUniform(_Term):
    r"""NUCFL: a calibration penalty weighted by the similarity to the server's update.

    The factor is the cosine between the client's change so far in this round and the
    server's last change; zero in the first round and at the first step, where there is
    no change yet. Negative values count as zero unless `literal`: the paper (Chu et
    al., 2024) uses the similarity as it is, so that clients which turn away from the
    server's direction are rewarded for being uncalibrated.

    Parameters
    ----------
    penalty : penalty, default=DCA()
        The penalty, with its own weight.
    literal : bool, default=False
        Use negative similarities too, as printed.

    Examples
    --------
    >>> from skfedcal.training import MDCA, NonUniform
    >>> NonUniform(MDCA(weight=2.0)).weight
    2.0
    """

    penalty: Penalty = field(default_factory=DCA)
    literal: bool = False

    def __post_init__(self) -> None:
        if not callable(self.penalty) or isinstance(self.penalty, type):
            raise TypeError(
                f"NonUniform(penalty={self.penalty!r}): pass a penalty, such as DCA()."
            )
        check_flag("literal", self.literal)

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
        """Cosine of the client's and the server's change; at least 0 if not literal."""
        start, last = ctx.global_params, ctx.previous_update
        if start is None or last is None:
            raise ValueError("NonUniform needs global_params and previous_update.")
        moved = {name: (value - start[name]).detach() for name, value in params.items()}
        inner = _total([moved[name] * last[name] for name in moved])
        own = _total([value * value for value in moved.values()])
        other = _total([last[name] * last[name] for name in moved])
        # No constant is added: changes may be of any size.
        length = own.sqrt() * other.sqrt()
        found = inner / length.where(length > 0, 1.0)
        return found if self.literal else found.clamp(min=0.0)


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


@dataclass(frozen=True)
class Proximal(_Distance):
    r"""FedProx: :math:`\frac\mu2 \|w - w^t\|^2` with the parameters of the round.

    Parameters
    ----------
    mu : float, default=0.01
        Strength.

    Examples
    --------
    >>> from skfedcal.training import Proximal
    >>> Proximal(0.1).weight
    0.1
    """

    mu: float = 0.01

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"global_params"})

    def __call__(
        self,
        logits: Tensor,
        y: Tensor,
        mask: Tensor,
        ctx: Context,
        params: Params,
        features: Tensor,
    ) -> Tensor:
        start = ctx.global_params
        if start is None:
            raise ValueError("Proximal needs ctx.global_params.")
        apart = [(value - start[name]).square().sum() for name, value in params.items()]
        return 0.5 * import_torch().stack(apart).sum()


@dataclass(frozen=True)
class Contrastive(_Distance):
    r"""MOON: features near the server's, away from the client's of its last round.

    The mean of :math:`-\log \frac{e^{s/\tau}}{e^{s/\tau} + e^{s'/\tau}}` with the
    cosines s of the features to those of the server's model, and s' to those of the
    model that the client had at the end of its last round. Features are the input of
    the last layer: a projection head, as in the paper (Li et al., 2021), has to be part
    of the module.

    Parameters
    ----------
    mu : float, default=1.0
        Strength; the paper tunes it in {0.1, 1, 5, 10}.
    tau : float, default=0.5
        Temperature.

    Examples
    --------
    >>> from skfedcal.training import Contrastive
    >>> Contrastive(mu=5.0)
    Contrastive(mu=5.0, tau=0.5)
    """

    mu: float = 1.0
    tau: float = 0.5

    _above = ("tau",)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"global_features", "previous_features"})

    def __call__(
        self,
        logits: Tensor,
        y: Tensor,
        mask: Tensor,
        ctx: Context,
        params: Params,
        features: Tensor,
    ) -> Tensor:
        server, own = ctx.global_features, ctx.previous_features
        if server is None or own is None:
            raise ValueError("Contrastive needs global_features and previous_features.")
        gap = (cosine(features, own) - cosine(features, server)) / self.tau
        return masked_mean(import_torch().nn.functional.softplus(gap), mask)
