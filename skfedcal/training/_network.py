"""A torch module as a function of one flat vector of parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.training._torch import import_torch

if TYPE_CHECKING:
    from torch import Tensor, nn

    from skfedcal.training._context import Params

Array = NDArray[Any]


class Network:
    """A module, the layout of its trainable parameters, and its last layer.

    Parameters that do not require a gradient stay as they are and are never sent.

    Parameters
    ----------
    module : torch.nn.Module
        Taken as it is; `own` lends one that another thread may use.
    random : bool, default=False
        Whether training draws random numbers, as dropout does.
    """

    def __init__(self, module: nn.Module, random: bool = False) -> None:
        self.module = module.train()
        self.random = random
        params = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self.shapes = {name: tuple(param.shape) for name, param in params.items()}
        self._sizes = [prod(shape) for shape in self.shapes.values()]
        self.head = find_head(module)
        self._spare: list[Network] = []

    def __repr__(self) -> str:
        return f"Network({self.module!r}, {self.shapes})"

    @property
    def n_params(self) -> int:
        return sum(self._sizes)

    def __reduce__(self) -> tuple[Any, ...]:
        return Network, (self.module, self.random)

    @contextmanager
    def own(self) -> Iterator[Network]:
        """Lend a copy: a call swaps the parameters of the module it is made on."""
        # Popping and appending are safe between threads.
        lent = self._spare.pop() if self._spare else self.copy()
        yield lent
        self._spare.append(lent)

    def copy(self) -> Network:
        """Return a network with a module of its own."""
        return Network(deepcopy(self.module), self.random)

    def flat(self) -> Array:
        """Parameters of the module as one vector of float32."""
        named = dict(self.module.named_parameters())
        parts = [named[n].detach().cpu().float().numpy().ravel() for n in self.shapes]
        return np.concatenate([*parts, np.zeros(0, np.float32)])

    def load(self, flat: Array) -> nn.Module:
        """Return a copy of the module, in evaluation mode, with these parameters."""
        torch = import_torch()
        module = deepcopy(self.module).eval()
        named = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in self.unflatten(torch.as_tensor(flat)).items():
                named[name].copy_(value)
        return module

    def unflatten(self, flat: Tensor) -> Params:
        """Parameters by name; leading axes of `flat` stay in front."""
        front = flat.shape[:-1]
        # Not slices: their gradients would be as many vectors of full length.
        parts = flat.split(self._sizes, dim=-1)
        return {
            name: part.view(*front, *shape)
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }

    def check_features(self) -> None:
        """Raise if it is not known what the features of the module are."""
        _caught(self.head)

    def logits(self, params: Params, x: Tensor) -> Tensor:
        from torch.func import functional_call

        return functional_call(self.module, params, (x,))

    def logits_and_features(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Output of the module, and what went into its last layer."""
        with _caught(self.head) as caught:
            logits = self.logits(params, x)
        return logits, caught[-1].flatten(1)


def find_head(module: nn.Module) -> nn.Module | None:
    """Last layer: the one named `head`, else the last `nn.Linear`, else None."""
    from torch import nn

    named = getattr(module, "head", None)
    if isinstance(named, nn.Module):
        return named
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    return linear[-1] if linear else None


def features_of(module: nn.Module, x: Tensor) -> Tensor:
    """Input of the last layer, one row per row of `x`."""
    with _caught(find_head(module)) as caught:
        module(x)
    return caught[-1].flatten(1)


class _caught:
    """Collect what goes into a layer while the context is open."""

    def __init__(self, layer: nn.Module | None) -> None:
        if layer is None:
            raise ValueError(
                "The module has no layer named `head` and no nn.Linear, so that it is "
                "not known what its features are. Name its last layer `head`."
            )
        self._layer = layer

    def __enter__(self) -> list[Tensor]:
        caught: list[Tensor] = []

        def keep(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            caught.append(args[0])

        self._hook = self._layer.register_forward_pre_hook(keep)
        return caught

    def __exit__(self, *_: object) -> None:
        self._hook.remove()
