"""Public names that are imported on first use.

A client site imports a few numpy-only modules of this package; eager imports in the
``__init__`` files would bring scikit-learn along with each of them.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def attach(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a lazy package.

    `names` maps a submodule of `package` to the public names that it defines.
    """
    home = {name: module for module, listed in names.items() for name in listed}

    def __getattr__(name: str) -> object:
        if name in home:
            return getattr(import_module(f"{package}.{home[name]}"), name)
        if name in names:  # a folder, without an import of its own
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted(home)

    return __getattr__, __dir__, sorted(home)


def attach_moved(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose names have moved.

    `homes` maps a public name to the module that has it now.
    """

    def __getattr__(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        warnings.warn(
            f"{package}.{name} has moved and will be removed in 0.2; use "
            f"{homes[name]}.{name}.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(import_module(homes[name]), name)

    def __dir__() -> list[str]:
        return sorted(homes)

    return __getattr__, __dir__
