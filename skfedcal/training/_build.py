"""From the parameter `module` to a network that can be trained here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.training._network import Network
from skfedcal.training._torch import import_torch

if TYPE_CHECKING:
    from torch import nn

Array = NDArray[Any]

# Up to this many parameters the cost of a step is that of calling torch, and a cohort
# is trained in one call; above, it is the arithmetic, and one call is no faster.
SMALL_MODEL = 50_000


def build_network(
    module: str | nn.Module | Callable[..., nn.Module],
    params: Mapping[str, Any] | None,
    row_shape: tuple[int, ...],
    n_classes: int,
    *,
    seed: int,
    device: str,
) -> Network:
    """Make the network that a fit starts with.

    Parameters
    ----------
    module : str, torch.nn.Module or callable
        Name of a model, a module (which is copied), or what makes one.
    params : mapping, default=None
        Arguments of a name or a callable.
    row_shape : tuple of int
        Shape of one row.
    n_classes : int
        Number of classes.
    seed : int
        Seed of first parameters that are drawn here.
    device : str
        Where the module goes.
    """
    torch = import_torch()
    if isinstance(module, torch.nn.Module):
        if params:
            raise ValueError(
                f"module_params={dict(params)!r} cannot change a module that is built "
                "already; pass a name or a callable as `module`."
            )
        made = deepcopy(module)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = _make(module, dict(params or {}), row_shape, n_classes)
    made = made.to(device)
    refuse_batch_statistics(made)
    if not any(param.requires_grad for param in made.parameters()):
        raise ValueError(
            f"{type(made).__name__} has no parameter that requires a gradient, so that "
            "there is nothing to train."
        )
    return Network(made, random=_probe(made, row_shape, n_classes, device))


def takes_tokens(module: nn.Module) -> bool:
    """Whether the module looks up whole numbers, and so is not given floats."""
    from torch import nn

    return any(isinstance(part, nn.Embedding) for part in module.modules())


def auto_cohort(network: Network) -> int:
    """Clients to train in one call."""
    from torch import nn

    # Dropout draws for a cohort as a whole: alone, a client has a stream of its own.
    # Recurrent layers have no batched form: a cohort of them is no faster.
    recurrent = any(isinstance(part, nn.RNNBase) for part in network.module.modules())
    alone = network.random or recurrent or network.n_params > SMALL_MODEL
    return 1 if alone else 1 << 30


def refuse_batch_statistics(module: nn.Module) -> None:
    """Raise for layers that mix the rows of a batch."""
    from torch import nn

    for name, part in module.named_modules():
        mixes = isinstance(part, nn.modules.batchnorm._BatchNorm)
        if mixes or getattr(part, "track_running_stats", False):
            raise ValueError(
                f"Layer {name!r} ({type(part).__name__}) keeps statistics of batches, "
                "which differ from client to client and are not averaged. Use "
                "nn.GroupNorm (or nn.LayerNorm) in its place."
            )


def _make(
    module: Any, params: dict[str, Any], row_shape: tuple[int, ...], n_classes: int
) -> nn.Module:
    from torch import nn

    if isinstance(module, str):
        from skfedcal.training._models import build

        return build(module, row_shape, n_classes, **params)
    made = module(**params)
    if not isinstance(made, nn.Module):
        raise TypeError(
            f"module={module!r} made a {type(made).__name__}; it must make a "
            "torch.nn.Module."
        )
    return made


def _probe(
    module: nn.Module, row_shape: tuple[int, ...], n_classes: int, device: str
) -> bool:
    """Run two rows of zeros; return whether random numbers were drawn."""
    torch = import_torch()
    kind = torch.int64 if takes_tokens(module) else torch.float32
    rows = torch.zeros((2, *row_shape), dtype=kind, device=device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.random.get_rng_state()
        try:
            out = module.train()(rows)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(
                f"{type(module).__name__} cannot take rows of shape {row_shape}: "
                f"{error} Pass X or `input_shape` in the shape that it needs."
            ) from error
        drew = not torch.equal(before, torch.random.get_rng_state())
    shape = tuple(getattr(out, "shape", ()))
    if shape != (2, n_classes):
        raise ValueError(
            f"{type(module).__name__} gives an output of shape {shape} for 2 rows; it "
            f"must give one logit for each of the {n_classes} classes, (2, {n_classes})"
            "."
        )
    return drew


def as_input(rows: Array, module: nn.Module) -> Array:
    """Rows as a training step takes them: float32, or int64 for tokens."""
    if takes_tokens(module):
        return _whole(rows)
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(rows, dtype=np.float32)
    if rows.dtype == np.float64 and not np.isfinite(out).all():
        raise ValueError(
            "Input X contains values too large for dtype('float32'); scale the columns."
        )
    return out


def _whole(rows: Array) -> Array:
    if rows.dtype.kind == "f" and (rows != np.floor(rows)).any():
        raise ValueError(
            "The module looks up tokens (it has an nn.Embedding), but X holds numbers "
            "that are not whole."
        )
    return np.ascontiguousarray(rows, dtype=np.int64)
