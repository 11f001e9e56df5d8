"""What a loss or a penalty may know beyond the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    Params = dict[str, Tensor]


class Context(NamedTuple):
    """What a client knows while it trains; entries nobody needs are None.

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
        """Axes of `vmap`: 0 for what each client has of its own, None for the rest."""
        nothing: dict[str, Any] = dict.fromkeys(Context._fields)
        return Context(**{**nothing, **dict.fromkeys(self._own, 0)})

    def part(self, which: int | slice) -> Context:
        """What one client of a stacked cohort knows, or the clients of a slice."""
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
