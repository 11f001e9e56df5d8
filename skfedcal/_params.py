"""Parameters: checks of single values, and frozen settings that can be cloned."""

from collections.abc import Collection
from dataclasses import MISSING, fields, is_dataclass, replace
from decimal import Decimal
from math import inf
from numbers import Integral, Real
from typing import Any, Literal, Self


class InvalidTypeError(TypeError, ValueError):
    """A parameter of a wrong type; both types of error, as in scikit-learn."""


def as_number(name: str, value: Any) -> float:
    """Return a setting as a float, or raise an error that names it."""
    number = _item(value)
    if not isinstance(number, (Real, Decimal)):
        raise InvalidTypeError(
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


def check_choice(name: str, value: Any, choices: Collection[Any]) -> Any:
    """Return a setting that is one of `choices`, or raise an error that lists them."""
    hashable = isinstance(value, (str, bool, int, type(None)))
    if not hashable or value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {listed}; got {value!r}.")
    return value


def check_number(
    name: str,
    value: Any,
    low: float,
    high: float = inf,
    closed: Literal["both", "left", "right", "neither"] = "both",
) -> float:
    """Return a number of an interval as a float; NaN is in none."""
    number = as_number(name, value)
    left = "<=" if closed in ("both", "left") else "<"
    right = "<=" if closed in ("both", "right") else "<"
    if not (
        (number >= low if left == "<=" else number > low)
        and (number <= high if right == "<=" else number < high)
    ):
        raise ValueError(
            f"{name}={value!r} is out of range; pass {low:g} {left} {name} {right} "
            f"{high:g}."
        )
    return number


def check_integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return an integer that is at least `least` and at most `most`."""
    number = _item(value)
    allowed = f">= {least}" if most is None else f"from {least} to {most}"
    if not isinstance(number, Integral) or isinstance(number, bool):
        raise InvalidTypeError(
            f"{name}={value!r} is not an integer; pass an integer {allowed}."
        )
    found = int(number)
    if found < least or (most is not None and found > most):
        raise ValueError(
            f"{name}={value!r} is out of range; pass an integer {allowed}."
        )
    return found


def _item(value: Any) -> Any:
    """Plain form of a scalar of numpy, and of an array without axes."""
    # Without an import of numpy: a ledger does not need it.
    scalar = type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0
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
