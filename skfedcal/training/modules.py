"""Torch modules: import torch, build a module, run it, its parameters as a vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from math import isqrt, prod
from numbers import Integral
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor, nn

    from skfedcal.training._objective import Params


def import_torch() -> ModuleType:
    """Return the torch module.

    Raises ImportError: If torch is not installed; names the command that installs it.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "skfedcal.training needs torch, which is not installed. Run: "
            'pip install "skfedcal[torch]"'
        ) from error
    return torch


# Numbers of channels that are read as such beside two sides.
_CHANNELS = (1, 3, 4)


class ImageShape(NamedTuple):
    """Channels, height and width; and whether rows have the channels last."""

    shape: tuple[int, int, int]
    channels_last: bool = False


def n_inputs(shape: Sequence[int]) -> int:
    """Numbers of one row."""
    return prod(shape)


def check_input_shape(shape: tuple[int, ...], given: tuple[int, ...]) -> None:
    """Raise unless rows of the shape `given` can be read as `shape`."""
    if not all(isinstance(n, Integral) for n in shape):
        raise TypeError(f"input_shape={shape!r}: pass whole numbers.")
    if prod(shape) != prod(given):
        raise ValueError(
            f"input_shape={shape!r} has {prod(shape)} numbers, a row of X has "
            f"{prod(given)}."
        )
    sides, wanted = ([n for n in s if n != 1] for s in (given, shape))
    if sides != wanted and sorted(sides) == sorted(wanted):
        raise ValueError(
            f"input_shape={shape!r} has the axes of a row of X, {given!r}, in another "
            "order; reshaping does not move axes, so that images would be scrambled. "
            "Move the axes of X: np.moveaxis(X, -1, 1) puts the last axis (channels) "
            "first."
        )


def image_shape(shape: Sequence[int], smallest: int) -> ImageShape:
    """Read the shape of a row as that of an image with sides of at least `smallest`."""
    found = _read(tuple(int(n) for n in shape))
    if min(found.shape[1:]) < smallest:
        raise ValueError(
            f"Images of {found.shape[1]} x {found.shape[2]} pixels are too small for "
            f"this network, which needs {smallest} x {smallest}."
        )
    return found


def _read(shape: tuple[int, ...]) -> ImageShape:
    if len(shape) == 1:
        return ImageShape(_square(shape[0]))
    if len(shape) == 2:
        return ImageShape((1, shape[0], shape[1]))
    if len(shape) != 3:
        raise ValueError(
            f"Rows of shape {shape} are not images; pass (height, width), (channels, "
            "height, width) or (height, width, channels)."
        )
    if shape[-1] in _CHANNELS and shape[0] not in _CHANNELS:
        return ImageShape((shape[2], shape[0], shape[1]), True)
    return ImageShape((shape[0], shape[1], shape[2]))


def _square(size: int) -> tuple[int, int, int]:
    """Flat rows: a square, in grey or colour, channels first."""
    for channels in (1, 3):
        side = isqrt(size // channels)
        if side and channels * side * side == size:
            return channels, side, side
    raise ValueError(
        f"Rows of {size} numbers do not form a square image; pass input_shape, such "
        "as (1, height, width)."
    )


Array = NDArray[Any]


class Network:
    """A module, the layout of its trainable parameters, and its last layer.

    Parameters that do not require a gradient stay as they are and are never sent.

    module: Used without a copy; `own` returns a copy that another thread may use.
    random: Whether training draws random numbers, as dropout does.
    """

    def __init__(self, module: nn.Module, random: bool = False) -> None:
        self.module = module.train()
        self.random = random
        params = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self.shapes = {name: tuple(param.shape) for name, param in params.items()}
        self._sizes = [prod(shape) for shape in self.shapes.values()]
        self.head = find_head(module)
        self._spare: list[Network] = []
        self._bound: Params | None = None

    def __repr__(self) -> str:
        return f"Network({self.module!r}, {self.shapes})"

    @property
    def n_params(self) -> int:
        return sum(self._sizes)

    def __reduce__(self) -> tuple[Any, ...]:
        return Network, (self.module, self.random)

    @contextmanager
    def own(self) -> Iterator[Network]:
        """Lend a copy, because a call swaps the parameters of its module."""
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

    @contextmanager
    def bound(self, flat: Tensor) -> Iterator[Params]:
        """Parameters of the module, which are parts of `flat` while this is open.

        A call with them need not swap parameters, which takes some percent of a step.
        """
        named = dict(self.module.named_parameters())
        params: Params = {name: named[name] for name in self.shapes}
        before = {name: param.data for name, param in params.items()}
        parts = self.unflatten(flat.detach())
        try:
            for name, param in params.items():
                param.data = parts[name]
            self._bound = params
            yield params
        finally:
            self._bound = None
            for name, param in params.items():
                param.data = before[name]

    def check_features(self) -> None:
        """Raise ValueError if the features of the module are not defined."""
        _caught(self.head)

    def logits(self, params: Params, x: Tensor) -> Tensor:
        from torch.func import functional_call

        if params is self._bound:
            logits: Tensor = self.module(x)
            return logits
        return functional_call(self.module, params, (x,))

    def logits_and_features(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Output of the module, and the input of its last layer."""
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
    """Collect the inputs of a layer while the context is open."""

    def __init__(self, layer: nn.Module | None) -> None:
        if layer is None:
            raise ValueError(
                "The module has no layer named `head` and no nn.Linear, so that its "
                "features are not defined. Name its last layer `head`."
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


# Numbers of the rows that go through a module at once: hidden layers of a small
# convolutional net are some fifty times as large.
_PIECE = 1 << 18


def module_logits(module: nn.Module, rows: Array, device: str = "cpu") -> Array:
    """Logits of a module in evaluation mode, one column per class."""
    return _in_pieces(module, rows, device)


def module_features(module: nn.Module, rows: Array, device: str = "cpu") -> Array:
    """Inputs of the last layer of a module in evaluation mode."""
    return _in_pieces(lambda part: features_of(module, part), rows, device)


def _in_pieces(call: Callable[[Tensor], Tensor], rows: Array, device: str) -> Array:
    torch = import_torch()
    if not rows.flags.writeable:  # torch has no tensors that are read only
        rows = rows.copy()
    x = torch.from_numpy(rows)
    size = max(1, _PIECE // max(1, rows[:1].size))
    with torch.no_grad():
        parts = [call(part.to(device)).cpu().numpy() for part in x.split(size)]
    return np.concatenate(parts)


# Up to this many parameters the cost of a step is that of calling torch, and a cohort
# is trained in one call; above, it is the arithmetic, and one call is no faster.
SMALL_MODEL = 50_000

# The same for convolutions, whose parameters are few: multiplications of a step in one
# of them. A cohort is a grouped convolution, which is slower than as many plain ones:
# measured 1.4 times as fast as one by one at 2.6 million, 0.9 times at 4.5 million.
SMALL_WORK = 3_000_000


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

    module: Name of a model, a module (which is copied), or a callable that returns one.
    params: Arguments of a name or a callable.
    row_shape: Shape of one row.
    seed: Seed of first parameters that are drawn here.
    device: Where the module goes.
    """
    torch = import_torch()
    if isinstance(module, torch.nn.Module):
        if params:
            raise ValueError(
                f"module_params={dict(params)!r} cannot be applied to a module that "
                "is already built; pass a name or a callable as `module`."
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
    """Whether the module takes tokens (integers) instead of floats."""
    return _n_tokens(module) > 0


def _n_tokens(module: nn.Module) -> int:
    """Entries of the largest table that the module looks up; 0 without one."""
    from torch import nn

    tables = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    return max((table.num_embeddings for table in tables), default=0)


def auto_cohort(network: Network, row_shape: tuple[int, ...], n_rows: int) -> int:
    """Clients to train in one call, by a rule and not by time: runs can be repeated.

    row_shape: Shape of one row.
    n_rows: Rows of one step of a client.
    """
    from torch import nn

    # Dropout draws for a cohort as a whole: alone, a client has a stream of its own.
    # Recurrent layers have no batched form: a cohort of them is no faster.
    recurrent = any(isinstance(part, nn.RNNBase) for part in network.module.modules())
    alone = network.random or recurrent or network.n_params > SMALL_MODEL
    if alone or n_rows * _convolution_work(network.module, row_shape) > SMALL_WORK:
        return 1
    return 1 << 30


def _convolution_work(module: nn.Module, row_shape: tuple[int, ...]) -> float:
    """Multiplications per row of one convolution, the mean of all; 0 without one."""
    torch = import_torch()
    from torch.nn.modules.conv import _ConvNd

    layers = [part for part in module.modules() if isinstance(part, _ConvNd)]
    if not layers:
        return 0.0
    work = []

    def note(layer: _ConvNd, given: tuple[Tensor, ...], out: Tensor) -> None:
        # Entries of the kernel meet each entry of the output, or of the input.
        side = given[0] if layer.transposed else out
        work.append(side.numel() * layer.weight[0].numel())

    hooks = [layer.register_forward_hook(note) for layer in layers]
    weight = layers[0].weight
    kind = torch.int64 if takes_tokens(module) else weight.dtype
    try:
        with torch.no_grad():
            module(torch.zeros((1, *row_shape), dtype=kind, device=weight.device))
    finally:
        for hook in hooks:
            hook.remove()
    return sum(work) / max(len(work), 1)


def refuse_batch_statistics(module: nn.Module) -> None:
    """Raise ValueError for layers that mix the rows of a batch."""
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
    """Hint for images with channels last, which torch expects second."""
    if len(row_shape) != 3 or row_shape[-1] not in (1, 3, 4):
        return ""
    return " Images with channels last: np.moveaxis(X, -1, 1) puts them first."


def _versions(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Version of each buffer, by name; it changes with every write."""
    return {
        name: (id(buffer), buffer._version) for name, buffer in module.named_buffers()
    }


def _refuse_changed(module: nn.Module, kept: dict[str, tuple[int, int]]) -> None:
    """Raise ValueError if a step changed a buffer, which would leak between clients."""
    for name, version in _versions(module).items():
        if name in kept and kept[name] != version:
            raise ValueError(
                f"{type(module).__name__} changes its buffer {name!r} in training. A "
                "client's training would then depend on the rows of clients before "
                "it, and buffers are not averaged. Use layers without state, such as "
                "nn.GroupNorm."
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
            "The module looks up tokens (it has an nn.Embedding), but X holds "
            "numbers that are not integers."
        )
    if rows.size and not 0 <= rows.min() <= rows.max() < n_tokens:
        raise ValueError(
            f"X holds tokens from {rows.min():g} to {rows.max():g}; the module "
            f"accepts those from 0 to {n_tokens - 1} (module_params={{'n_tokens': "
            f"...}} of 'char_lstm')."
        )
    return np.ascontiguousarray(rows, dtype=np.int64)
