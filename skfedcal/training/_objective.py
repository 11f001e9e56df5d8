"""What a client minimises: a loss and any number of penalties."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from skfedcal.training._context import Context, Params
    from skfedcal.training._network import Network


class Loss(Protocol):
    """Mean loss of the rows of a batch that count."""

    @property
    def needs(self) -> Collection[str]:
        """Entries of the context that are read, besides `counts`."""

    def __call__(self, logits: Tensor, y: Tensor, mask: Tensor, ctx: Context) -> Tensor:
        """Return a number; rows with ``mask == 0`` are padding."""


class Penalty(Protocol):
    """A term that is added to the loss, `weight` times."""

    @property
    def needs(self) -> Collection[str]:
        """Entries of the context that are read, besides `counts`."""

    @property
    def weight(self) -> float:
        """Factor of the term."""

    def __call__(
        self,
        logits: Tensor,
        y: Tensor,
        mask: Tensor,
        ctx: Context,
        params: Params,
        features: Tensor,
    ) -> Tensor:
        """Return a number; rows with ``mask == 0`` are padding.

        A module without a head has no features: the matrix has no columns.
        """


@dataclass(frozen=True, slots=True)
class Objective:
    """The sum of a loss and penalties on one batch of one client.

    One client or many at once, it is the same function: `vmap` maps over it.

    Parameters
    ----------
    loss : Loss
        Called with logits, labels, mask and context.
    penalties : tuple of Penalty, default=()
        Called with the parameters and features too.
    """

    loss: Loss
    penalties: tuple[Penalty, ...] = ()

    @property
    def needs(self) -> frozenset[str]:
        """Entries of the context that some part reads."""
        parts: tuple[Loss | Penalty, ...] = (self.loss, *self.penalties)
        return frozenset().union(*(part.needs for part in parts))

    @property
    def _reads_features(self) -> bool:
        """Whether some part compares features, which a head must tell."""
        return bool(self.needs & {"global_features", "previous_features"})

    def value(
        self,
        network: Network,
        flat: Tensor,
        x: Tensor,
        y: Tensor,
        mask: Tensor,
        ctx: Context,
    ) -> Tensor:
        """Return what is to be minimised in `flat`."""
        params = network.unflatten(flat)
        if not self.penalties:
            return self.loss(network.logits(params, x), y, mask, ctx)
        if network.head is None and not self._reads_features:
            logits = network.logits(params, x)
            features = logits[:, :0]
        else:
            logits, features = network.logits_and_features(params, x)
            ctx = self._with_features(network, x, ctx)
        value = self.loss(logits, y, mask, ctx)
        for penalty in self.penalties:
            term = penalty(logits, y, mask, ctx, params, features)
            value = value + penalty.weight * term
        return value

    def _with_features(self, network: Network, x: Tensor, ctx: Context) -> Context:
        """Add the features of this batch under other parameters, where needed."""
        needs = self.needs
        for name, params in (
            ("global_features", ctx.global_params),
            ("previous_features", ctx.previous_params),
        ):
            if name in needs and params is not None:
                found = network.logits_and_features(params, x)[1]
                ctx = ctx._replace(**{name: found.detach()})  # type: ignore[arg-type]
        return ctx
