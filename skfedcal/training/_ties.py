"""Penalties that tie what a client trains to the model of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from skfedcal._params import FrozenParams
from skfedcal.training._losses import check_numbers, masked_mean
from skfedcal.training._penalties import cosine
from skfedcal.training._torch import import_torch

if TYPE_CHECKING:
    from torch import Tensor

    from skfedcal.training._context import Context, Params


@dataclass(frozen=True)
class Proximal(FrozenParams):
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

    def __post_init__(self) -> None:
        check_numbers(self, from_zero=["mu"])

    @property
    def weight(self) -> float:
        return self.mu

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
class Contrastive(FrozenParams):
    r"""MOON: features near the server's, away from the client's of its last round.

    The mean of :math:`-\log \frac{e^{s/\tau}}{e^{s/\tau} + e^{s'/\tau}}` with the
    cosines s of the features to those of the server's model, and s' to those of the
    model that the client had at the end of its last round. Features are the input of
    the last layer: a projection head, as in the paper (Li et al., 2021), is a matter of
    the module.

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

    def __post_init__(self) -> None:
        check_numbers(self, above=["tau"], from_zero=["mu"])

    @property
    def weight(self) -> float:
        return self.mu

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
