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
    try:
        made = made.to(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r}: {error}") from error
    refuse_batch_statistics(made)
    if not any(param.requires_grad for param in made.parameters()):
        raise ValueError(
            f"{type(made).__name__} has no parameter that requires a gradient, so that "
            "there is nothing to train."
        )
    return Network(made, random=_probe(made, row_shape, n_classes, device))


def takes_tokens(module: nn.Module) -> bool:
    """Whether the module looks up whole numbers, and so is not given floats."""
    return _n_tokens(module) > 0


def _n_tokens(module: nn.Module) -> int:
    """Entries of the largest table that the module looks up; 0 without one."""
    from torch import nn

    tables = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    return max((table.num_embeddings for table in tables), default=0)


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
    try:
        made = module(**params)
    except TypeError as error:
        raise TypeError(
            f"module={module!r} cannot be called with module_params={params!r}: {error}"
        ) from error
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
        kept = _versions(module)
        try:
            out = module.train()(rows)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(
                f"{type(module).__name__} cannot take rows of shape {row_shape}: "
                f"{error} Pass X or `input_shape` in the shape that it needs."
                + _channels_hint(row_shape)
            ) from error
        drew = not torch.equal(before, torch.random.get_rng_state())
    _refuse_changed(module, kept)
    shape = tuple(getattr(out, "shape", ()))
    if shape != (2, n_classes):
        raise ValueError(
            f"{type(module).__name__} gives an output of shape {shape} for 2 rows; it "
            f"must give one logit for each of the {n_classes} classes, (2, {n_classes})"
            "."
        )
    return drew


def _channels_hint(row_shape: tuple[int, ...]) -> str:
    """Way out for images with channels last, which torch takes second."""
    if len(row_shape) != 3 or row_shape[-1] not in (1, 3, 4):
        return ""
    return " Images with channels last: np.moveaxis(X, -1, 1) puts them first."


def _versions(module: nn.Module) -> dict[str, tuple[int, int]]:
    """What shows that a buffer was replaced or written to, by its name."""
    return {
        name: (id(buffer), buffer._version) for name, buffer in module.named_buffers()
    }


def _refuse_changed(module: nn.Module, kept: dict[str, tuple[int, int]]) -> None:
    """Raise if a step changed a buffer: the next client would see this one's rows."""
    for name, version in _versions(module).items():
        if name in kept and kept[name] != version:
            raise ValueError(
                f"{type(module).__name__} changes its buffer {name!r} in training. A "
                "client's training would then depend on the rows of clients before "
                "it, and buffers are not averaged. Use layers that keep nothing, such "
                "as nn.GroupNorm."
            )


def as_input(rows: Array, module: nn.Module) -> Array:
    """Rows as a training step takes them: float32, or int64 for tokens."""
    n_tokens = _n_tokens(module)
    if n_tokens:
        return _tokens(rows, n_tokens)
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(rows, dtype=np.float32)
    if rows.dtype == np.float64 and not np.isfinite(out).all():
        raise ValueError(
            "Input X contains values too large for dtype('float32'); scale the columns."
        )
    return out


def _tokens(rows: Array, n_tokens: int) -> Array:
    if rows.dtype.kind == "f" and (rows != np.floor(rows)).any():
        raise ValueError(
            "The module looks up tokens (it has an nn.Embedding), but X holds numbers "
            "that are not whole."
        )
    if rows.size and not 0 <= rows.min() <= rows.max() < n_tokens:
        raise ValueError(
            f"X holds tokens from {rows.min():g} to {rows.max():g}; the module knows "
            f"those from 0 to {n_tokens - 1} (module_params={{'n_tokens': ...}} of "
            "'char_lstm')."
        )
    return np.ascontiguousarray(rows, dtype=np.int64)
