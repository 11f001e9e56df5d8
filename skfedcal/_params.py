"""Frozen settings objects that scikit-learn can clone and search over."""

from dataclasses import MISSING, fields, is_dataclass, replace
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, Self

import numpy as np


def as_number(name: str, value: Any) -> float:
    """Return a setting as a float, or raise an error that names it."""
    number = _item(value)
    if not isinstance(number, (Real, Decimal)):
        raise TypeError(
            f"{name}={value!r} is of type {type(value).__name__}; pass one number."
        )
    try:
        return float(number)
    except (OverflowError, ValueError):  # too large, or a signalling NaN
        raise ValueError(
            f"{name} cannot be converted to float64 (too large, or NaN); pass a "
            "finite number."
        ) from None


def check_flag(name: str, value: Any) -> bool:
    """Return a setting that is true or false."""
    if not isinstance(_item(value), Integral):
        raise TypeError(
            f"{name}={value!r} is of type {type(value).__name__}; pass True or False."
        )
    return bool(value)


def _item(value: Any) -> Any:
    """Plain form of a scalar of numpy, and of an array without axes."""
    scalar = isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0
    return value.item() if scalar else value


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

    def __repr__(self) -> str:
        """Return the parameters that differ from their defaults, as scikit-learn does.

        Of dataclasses with ``repr=False``; others show all fields.
        """
        if not is_dataclass(self):
            return super().__repr__()
        shown = (
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.default is MISSING or not _same(getattr(self, f.name), f.default)
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def _same(value: Any, default: Any) -> bool:
    """Whether a value is the default; one that cannot be compared is not."""
    return value is default or (type(value) is type(default) and value == default)
