"""The `skfedcal` command."""

from skfedcal.cli._main import main

__all__ = ["main"]
