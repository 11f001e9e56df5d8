"""Objective of a client: a loss and penalties, and their context."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from skfedcal.training.modules import Network

if TYPE_CHECKING:
    Params = dict[str, Tensor]


class Context(NamedTuple):
    """What a loss may read of a client; entries that no loss reads are None.

    Losses and penalties name the entries that they read in ``needs``. Inside a loss
    there is no axis of clients: where a cohort is trained at once, `vmap` maps over
    the entries of single clients and hands the shared ones to all.

    Attributes
    ----------
    counts : Tensor of shape (n_classes,)
        Rows of each class that the client holds; always there.
    global_counts : Tensor of shape (n_classes,), default=None
        Rows of each class over all clients. Not under privacy.
    global_params : dict of Tensor, default=None
        Parameters that the round began with, by name.
    previous_params : dict of Tensor, default=None
        Parameters that the client ended its last round with; those of the server where
        it has had none.
    previous_update : dict of Tensor, default=None
        Change of the server's parameters in the last round; zero in the first.
    global_features : Tensor of shape (n_rows, n_features), default=None
        Input of the head for this batch under `global_params`, without gradient.
    previous_features : Tensor of shape (n_rows, n_features), default=None
        Input of the head for this batch under `previous_params`, without gradient.

    Examples
    --------
    >>> import torch
    >>> from skfedcal.training import Context
    >>> context = Context(counts=torch.tensor([5.0, 0.0, 2.0]))
    >>> context.global_counts is None
    True
    """

    counts: Tensor
    global_counts: Tensor | None = None
    global_params: Params | None = None
    previous_params: Params | None = None
    previous_update: Params | None = None
    global_features: Tensor | None = None
    previous_features: Tensor | None = None

    def batch_dims(self) -> Context:
        """Axes of `vmap`: 0 for entries of single clients, None for shared ones."""
        nothing: dict[str, Any] = dict.fromkeys(Context._fields)
        return Context(**{**nothing, **dict.fromkeys(self._own, 0)})

    def part(self, which: int | slice) -> Context:
        """Context of one client of a stacked cohort, or of a slice of clients."""
        own: dict[str, Any] = {
            name: _part(getattr(self, name), which) for name in self._own
        }
        return self._replace(**own)

    @property
    def _own(self) -> tuple[str, ...]:
        """Entries that differ between clients, stacked along their first axis."""
        names = ("counts", "previous_params")
        return tuple(name for name in names if getattr(self, name) is not None)


def _part(value: Tensor | Params, which: int | slice) -> Tensor | Params:
    if isinstance(value, dict):
        return {name: tensor[which] for name, tensor in value.items()}
    return value[which]


class Loss(Protocol):
    """Mean loss of the rows of a batch, without padding."""

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

    The same function is used for one client and, by `vmap`, for many at once.

    loss: Called with logits, labels, mask and context.
    penalties: Called with the parameters and features too.
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
        """Whether some part compares features, which requires a known last layer."""
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
        """Return the objective at the parameters `flat`."""
        return self.value_at(network, network.unflatten(flat), x, y, mask, ctx)

    def value_at(
        self,
        network: Network,
        params: Params,
        x: Tensor,
        y: Tensor,
        mask: Tensor,
        ctx: Context,
    ) -> Tensor:
        """Return the objective at parameters by name."""
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
