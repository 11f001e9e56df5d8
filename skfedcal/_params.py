"""Frozen settings objects that scikit-learn can clone and search over."""

from dataclasses import fields, replace
from typing import Any, Self


class FrozenParams:
    """Give a frozen dataclass ``get_params``/``set_params``.

    The object never changes: `set_params` returns a new one, and a clone is the object
    itself. Estimators that hold one store the result of ``set_params`` for parameters
    such as ``privacy__eps``.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the fields by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def set_params(self, **params: Any) -> Self:
        """Return a copy with other values."""
        unknown = sorted(set(params) - set(self.get_params()))
        if unknown:
            raise ValueError(
                f"Invalid parameter {unknown[0]!r} for {type(self).__name__}. "
                f"Valid parameters are: {sorted(self.get_params())}."
            )
        return replace(self, **params)  # type: ignore[type-var]

    def __sklearn_clone__(self) -> Self:
        return self
