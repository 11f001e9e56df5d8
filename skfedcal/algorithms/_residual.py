"""Residual bins: what bias and temperature leave over, by class and probability.

Bins are hat functions with nodes one apart in the logit of the probability, so that the
correction is continuous. Below the first node it fades in proportion to the
probability: a class without probability gets none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from skfedcal.algorithms._base import (
    Array,
    Arrays,
    BlockSpec,
    Field,
    Form,
    Sums,
)
from skfedcal.algorithms._bias_moments import SoftmaxMoments, gaps
from skfedcal.algorithms._bias_newton import BiasState, BiasTemperatureNewton
from skfedcal.algorithms._moments import _row_sums
from skfedcal.data._dataset import Block, FederatedDataset

NODES = np.arange(-6.5, 5.0)
N_BINS = len(NODES)
LOWEST = 1 / (1 + np.exp(-NODES[0]))

# A probability is not lowered below this part of itself.
KEPT = 0.05

# Shares of the correction whose loss is compared at the end.
STRENGTHS = (0.0, 0.5, 1.0)

# Variance added to each cell when the spread of all is estimated: one with very many
# rows must not decide alone.
_SPREAD = 1e-6

# A cell with less weight than this says nothing.
_EMPTY = 1e-9

_STEPS, _RESIDUALS, _CHECK, _FINISHED = range(4)


@dataclass(frozen=True, slots=True)
class ResidualState(BiasState):
    """Bias and temperature, then a table of corrections and its strength."""

    table: Array = field(default_factory=lambda: np.zeros((0, N_BINS)))
    strength: float = 0.0
    phase: int = _STEPS
    rounds: int = 0

    @property
    def residual(self) -> Array:
        """Corrections of shape (n_classes, n_bins) that are added to probabilities."""
        return self.strength * self.table


@dataclass(frozen=True, slots=True)
class BiasTemperatureResidual:
    """Bias and temperature scaling, then residual bins: two more rounds.

    One round sums what is left between labels and probabilities, the next one the loss
    with and without the correction: it is left out where it does not help.

    Parameters
    ----------
    ridge : float, default=1e-5
        As in `BiasTemperatureNewton`.
    n_rounds : int, default=32
        Most rounds; the last two are for the bins.
    """

    ridge: float = 1e-5
    n_rounds: int = 32

    @property
    def _newton(self) -> BiasTemperatureNewton:
        return BiasTemperatureNewton(self.ridge, max(1, self.n_rounds - 2))

    def init(self, n_classes: int) -> ResidualState:
        start = self._newton.init(n_classes)
        return ResidualState(
            start.best,
            start.asked,
            start.gradient,
            start.steps,
            start.changes,
            table=np.zeros((n_classes, N_BINS)),
        )

    def broadcast(self, state: ResidualState) -> Arrays:
        phase = np.asarray(state.phase)
        if state.phase == _STEPS:
            return {**self._newton.broadcast(state), "phase": phase}
        if state.phase == _RESIDUALS:
            return {"point": state.best, "phase": phase}
        return {"point": state.best, "table": state.table, "phase": phase}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        if broadcast["phase"] == _STEPS:
            return self._newton.spec(broadcast)
        if broadcast["phase"] == _RESIDUALS:
            return {"cells": BlockSpec((3, len(broadcast["point"]) - 1, N_BINS))}
        return {"losses": BlockSpec((len(STRENGTHS),))}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        point, table = Field((n_classes + 1,)), Field((n_classes, N_BINS))

        def phase(index: int) -> Form:
            return {"phase": Field((), "whole", index, index)}

        steps = self._newton.forms(n_classes)
        return (
            *({**form, **phase(_STEPS)} for form in steps),
            {"point": point, **phase(_RESIDUALS)},
            {"point": point, "table": table, **phase(_CHECK)},
        )

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        if broadcast["phase"] == _STEPS:
            return self._newton.query(broadcast, clients)
        beta, bias = float(np.exp(broadcast["point"][0])), broadcast["point"][1:]
        ((name, spec),) = self.spec(broadcast).items()
        out = np.zeros((len(clients), *spec.shape))
        for block in clients.blocks():
            moments = SoftmaxMoments(block, gaps(block), beta, bias)
            if broadcast["phase"] == _RESIDUALS:
                out[block.clients] += _cells(block, moments)
            else:
                out[block.clients] += _losses(block, moments, broadcast["table"])
        return {name: out}

    def update(
        self, state: ResidualState, total: Sums, n_clients: int
    ) -> ResidualState:
        state = replace(state, rounds=state.rounds + 1)
        if state.phase == _STEPS:
            state = self._newton.update(state, total, n_clients)  # type: ignore[assignment]
            ready = state.finished or state.rounds >= self._newton.n_rounds
            return replace(state, phase=_RESIDUALS) if ready else state
        if state.phase == _RESIDUALS:
            table = shrunken_residuals(*total["cells"])
            phase = _CHECK if table.any() else _FINISHED
            return replace(state, table=table, phase=phase)
        best = STRENGTHS[int(np.argmin(total["losses"]))]
        return replace(state, strength=best, phase=_FINISHED)

    def done(self, state: ResidualState) -> bool:
        return state.phase == _FINISHED


def shrunken_residuals(residual: Array, weight: Array, variance: Array) -> Array:
    """Correction of each class and bin from summed residuals.

    The curve of all classes together first, then what each class has beyond it, both
    shrunk by how far their spread exceeds what the labels' randomness explains.

    Parameters
    ----------
    residual, weight, variance : ndarray of shape (n_classes, n_bins)
        Sums of ``h (y - q)``, ``h s`` and ``h^2 q (1 - q)``, for the hat function h and
        the factor s that fades below the first node.

    Returns
    -------
    ndarray of shape (n_classes, n_bins)
        Corrections in [-1, 1].
    """
    common = _shrunken(residual.sum(axis=0), weight.sum(axis=0), variance.sum(axis=0))
    own = _shrunken(residual - weight * common, weight, variance)
    return np.clip(common + own, -1.0, 1.0)


def _shrunken(residual: Array, weight: Array, variance: Array) -> Array:
    filled = weight > _EMPTY
    size = np.where(filled, weight, 1.0)
    mean, noise = residual / size, variance / size**2
    trust = filled / (noise + _SPREAD)
    spread = float((trust * (mean**2 - noise)).sum() / max(float(trust.sum()), 1e-300))
    if spread <= 0:
        return np.zeros_like(mean)
    return np.where(filled, mean * spread / (spread + noise), 0.0)


def corrected(log_proba: Array, table: Array) -> Array:
    """Logarithm of the corrected probabilities, which need not add up to 1.

    Parameters
    ----------
    log_proba : ndarray of shape (n_classes, n_rows)
        Logarithm of probabilities.
    table : ndarray of shape (n_classes, n_bins)
        Corrections.

    Returns
    -------
    ndarray of shape (n_classes, n_rows)
    """
    proba = np.exp(log_proba)
    index, part = _position(log_proba, proba)
    row = np.arange(len(table))[:, None]
    change = table[row, index] * (1 - part) + table[row, index + 1] * part
    moved = proba + change * _fade(proba)
    lowered = moved <= KEPT * proba
    # In logarithms where nothing is added: probabilities that underflow stay finite.
    out = np.log(np.where(lowered, 1.0, np.minimum(moved, 1.0)))
    return np.where(lowered, log_proba + np.log(KEPT), out)


def log_softmax_columns(logits: Array) -> Array:
    """Logarithm of the softmax along the first axis, in float64."""
    out = np.array(logits, dtype=np.float64, order="C")
    out -= out.max(axis=0, initial=-np.inf)
    out -= np.log(_row_sums(np.exp(out), True))
    return out


def _position(log_proba: Array, proba: Array) -> tuple[Array, Array]:
    """Node at or below each probability, and the part of the way to the next."""
    with np.errstate(divide="ignore"):
        logit = log_proba - np.log1p(-np.minimum(proba, 1.0))
    place = np.clip(logit - NODES[0], 0.0, N_BINS - 1.0)
    index = np.minimum(place.astype(np.intp), N_BINS - 2)
    return index, place - index


def _fade(proba: Array) -> Array:
    return np.minimum(proba / LOWEST, 1.0)


def _cells(block: Block, moments: SoftmaxMoments) -> Array:
    """Sums of residual, weight and variance by client, class and bin."""
    proba = moments.proba
    with np.errstate(divide="ignore"):
        index, part = _position(np.log(proba), proba)
    n_classes, n_rows = proba.shape
    n_clients = block.clients.stop - block.clients.start
    shape = (n_clients, n_classes, N_BINS)
    owner = np.repeat(np.arange(n_clients), np.diff(block.offsets))
    cell = (owner * n_classes + np.arange(n_classes)[:, None]) * N_BINS + index
    residual = -proba
    residual[block.labels, np.arange(n_rows)] += 1
    weights = 1.0 if block.weights is None else block.weights
    out = np.empty((3, *shape))
    for k, (values, power) in enumerate(
        ((residual, 1), (_fade(proba), 1), (proba * (1 - proba), 2))
    ):
        values = values * weights
        # Entry after entry in the order of rows: a client's sums are its own.
        below = np.bincount(
            cell.ravel(), (values * (1 - part) ** power).ravel(), out[k].size
        )
        above = np.bincount(
            cell.ravel() + 1, (values * part**power).ravel(), out[k].size
        )
        out[k] = (below + above).reshape(shape)
    return out.swapaxes(0, 1)


def _losses(block: Block, moments: SoftmaxMoments, table: Array) -> Array:
    """Log loss by client for each strength of the correction."""
    proba = moments.proba
    own = block.labels, np.arange(proba.shape[1])
    with np.errstate(divide="ignore"):
        log_proba = np.log(proba)
    # Where a probability underflows its logarithm is known from the loss.
    log_proba[own] = -moments.loss
    losses = [moments.loss]
    for strength in STRENGTHS[1:]:
        moved = corrected(log_proba, strength * table)
        losses.append(np.log(_row_sums(np.exp(moved), True)) - moved[own])
    return block.sum_by_client(np.array(losses))
