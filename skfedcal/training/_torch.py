"""The one import of torch, with a clear word where it is not installed."""

from __future__ import annotations

from types import ModuleType


def import_torch() -> ModuleType:
    """Return the torch module.

    Raises
    ------
    ImportError
        If torch is not installed; names the command that installs it.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "skfedcal.training needs torch, which is not installed. Run: "
            'pip install "skfedcal[torch]"'
        ) from error
    return torch
