"""Correct and wrong predictions by confidence, summed over clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot, sqrt
from typing import Any

import numpy as np

from skfedcal.clients.dataset import Block, FederatedDataset
from skfedcal.contract import (
    MAX_POINTS,
    Array,
    Arrays,
    BlockSpec,
    CellRows,
    Form,
    Rows,
    Sums,
    check_range,
)
from skfedcal.methods import map_formulas
from skfedcal.methods.bins.rounds import HistogramState
from skfedcal.methods.buckets import bin_index, softmax64
from skfedcal.methods.graph import Value, inside, softmax
from skfedcal.methods.own_rows import kept_rows
from skfedcal.methods.score_curves.rounds import LAW_FIELDS, law_row

_VARIANCE = LAW_FIELDS.index("variance")


@dataclass(frozen=True, slots=True)
class TopBinCounts:
    """Count correct and wrong predictions by the probability of the predicted class.

    One row is in one cell of both tables together: its L1 norm is 1, while numbers of
    correct and of all predictions would have 2.

    n_bins: Equal-width bins of [0, 1].
    max_examples: Maximum number of rows of a client; chosen by a hash of their number
        at the client.
    clip: L1 bound on the contribution of a client; None for exact sums.
    weighted: Rows carry weights, so that counts are real numbers.
    n_rounds: Rounds; counts add up.
    """

    n_bins: int = 15
    max_examples: int | None = None
    clip: float | None = None
    weighted: bool = False
    n_rounds: int = 1

    def init(self, n_classes: int) -> HistogramState:
        shape = (1, self.n_bins)
        return HistogramState(np.zeros(shape), np.zeros(shape))

    def broadcast(self, state: HistogramState) -> Arrays:
        return {}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        block = BlockSpec(
            (2, self.n_bins),
            kind="real" if self.weighted else "count",
            clip=self.clip,
            norm="l1",
        )
        return {"cells": block}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        check_range("n_bins", self.n_bins, 1, MAX_POINTS)
        return ({},)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Rows:
        n_rows, shape = len(clients), (2, self.n_bins)
        owner = np.repeat(np.arange(n_rows), clients.sizes)
        parts = [self._cells(block) for block in clients.blocks()]
        cell = np.concatenate([np.empty(0, dtype=np.intp), *parts])
        weights = None
        if self.weighted:
            assert clients.weights is not None
            weights = clients.weights[clients.offsets[0] : clients.offsets[-1]]
        if self.max_examples is not None:
            kept = kept_rows(clients, self.max_examples, salt=0)
            owner, cell = owner[kept], cell[kept]
            weights = None if weights is None else weights[kept]
        if weights is None:
            return {"cells": CellRows(owner, cell, n_rows, shape)}
        size = 2 * self.n_bins
        sums = np.bincount(owner * size + cell, weights, minlength=n_rows * size)
        return {"cells": sums.reshape(n_rows, *shape)}

    def update(
        self, state: HistogramState, total: Sums, n_clients: int
    ) -> HistogramState:
        law, scale = law_row(total, "cells", n_clients)
        right, wrong = total["cells"] * scale
        noise = hypot(state.noise_positive, sqrt(law[_VARIANCE]))
        return replace(
            state,
            positive=state.positive + right,
            negative=state.negative + wrong,
            noise_positive=noise,
            noise_negative=noise,
            rounds=state.rounds + 1,
            clients=state.clients + n_clients,
        )

    def done(self, state: HistogramState) -> bool:
        return False

    def _cells(self, block: Block) -> Array:
        """Cell of each row; cells of wrong predictions follow those of correct ones."""
        top, confidence = top_label(block.rows)
        wrong = block.labels != top
        return bin_index(confidence, self.n_bins) + wrong * np.intp(self.n_bins)


def top_label(rows: Array) -> tuple[Array, Array]:
    """Most probable class of each row, the first of equals, and its probability."""
    # Of the logits: their exponentials may be equal where they are not.
    top = rows.argmax(axis=1)
    return top, softmax64(rows)[np.arange(len(top)), top]


# The map


def top_bins(cal: Any, logits: Value) -> Value:
    """One table for the confidence in the most probable class."""
    n_bins = cal.n_bins
    confidence = softmax(logits).max()
    index = map_formulas.bin_of(confidence, n_bins)
    away = confidence - (index + 0.5) / n_bins
    own = index.take_from(cal.bin_values_) + index.take_from(1 - cal.bin_trust_) * away
    own = inside(own)
    if cal.keep_order:
        return map_formulas.temper_to(logits, own, len(cal.classes_))
    return map_formulas.share_rest(logits, own)
