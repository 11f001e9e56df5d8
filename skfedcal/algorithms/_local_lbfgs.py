"""Limited-memory BFGS for many small problems at once, one row of parameters each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from skfedcal.algorithms._base import Array

# Pairs kept, halvings per step, share of the predicted decrease that is asked for.
_MEMORY, _MAX_HALVINGS, _ARMIJO = 10, 20, 1e-4

# A problem is solved at this slope or decrease, as in scipy. Smallest curvature kept,
# as a part of the change of slope and as a number.
_FLAT, _STALLED = 1e-5, 2.2e-9
_CURVED, _TINY = 1e-10, 1e-30


def minimise_each(
    function: Callable[[Array], tuple[Array, Array]], start: Array, n_steps: int
) -> Array:
    """Minimise each problem from its own row of `start` by at most `n_steps` steps.

    `function` maps parameters of shape (n_problems, size) to values and slopes. All
    problems step together, but no step of one depends on another: those that have
    arrived stay where they are.
    """
    params = start.copy()
    value, slope = function(params)
    moves: list[Array] = []
    changes: list[Array] = []
    for _ in range(n_steps):
        active = np.abs(slope).max(axis=1) > _FLAT
        if not active.any():
            break
        direction = -_two_loops(slope, moves, changes)
        fall = _dot(direction, slope)
        direction = np.where((fall < 0)[:, None], direction, -slope)
        fall = np.where(fall < 0, fall, -_dot(slope, slope))
        step = np.where(active, 1.0, 0.0)
        if not moves:
            # Nothing is known about the curvature yet: a step of length one at most.
            step = step / np.maximum(np.sqrt(_dot(slope, slope)), 1.0)
        step, trial, new_value, new_slope = _search(
            function, params, direction, value, fall, step
        )
        taken = (step > 0)[:, None]
        moves.append(np.where(taken, trial - params, 0.0))
        changes.append(np.where(taken, new_slope - slope, 0.0))
        del moves[:-_MEMORY], changes[:-_MEMORY]
        params = np.where(taken, trial, params)
        # One that cannot step any further has arrived.
        arrived = ~(value - new_value > _STALLED * np.maximum(np.abs(value), 1.0))
        value = np.where(taken[:, 0], new_value, value)
        slope = np.where(taken & ~arrived[:, None], new_slope, 0.0)
    return params


def _search(
    function: Callable[[Array], tuple[Array, Array]],
    params: Array,
    direction: Array,
    value: Array,
    fall: Array,
    step: Array,
) -> tuple[Array, Array, Array, Array]:
    """Halve each step until its value falls; a step of 0 did not fall at all."""
    for _ in range(_MAX_HALVINGS):
        trial = params + step[:, None] * direction
        new_value, new_slope = function(trial)
        short = ~(new_value <= value + _ARMIJO * step * fall) & (step > 0)
        if not short.any():
            return step, trial, new_value, new_slope
        step = np.where(short, step / 2, step)
    return np.where(short, 0.0, step), trial, new_value, new_slope


def _two_loops(slope: Array, moves: list[Array], changes: list[Array]) -> Array:
    out, parts = slope.copy(), []
    products = [_dot(m, c) for m, c in zip(moves, changes, strict=True)]
    used = [
        p > np.maximum(_CURVED * _dot(c, c), _TINY)
        for p, c in zip(products, changes, strict=True)
    ]
    inverse = [
        np.where(u, 1 / np.where(u, p, 1.0), 0.0)
        for u, p in zip(used, products, strict=True)
    ]
    for i in reversed(range(len(moves))):
        part = _dot(moves[i], out) * inverse[i]
        out -= part[:, None] * changes[i]
        parts.append(part)
    scale = np.ones(len(out))
    for u, p, change in zip(used, products, changes, strict=True):
        scale = np.where(u, p / np.where(u, _dot(change, change), 1.0), scale)
    out *= scale[:, None]
    for i, part in zip(range(len(moves)), reversed(parts), strict=True):
        part = part - _dot(changes[i], out) * inverse[i]
        out += part[:, None] * moves[i]
    return out


def _dot(one: Array, other: Array) -> Array:
    """Inner product of each problem's rows."""
    # Entry after entry, so that the bits do not depend on the number of problems.
    return np.cumsum(one * other, axis=1)[:, -1]
