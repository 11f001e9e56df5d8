"""The compiled core, if the installation has it, and which arithmetic is in use.

`skfedcal._core` (C, optional) does the inner loops over rows of logits. Its bits do not
depend on the processor, the threads or the neighbours of a row. Without it, or with the
environment variable ``SKFEDCAL_CORE=off``, the same functions run in numpy; results
then differ in their last bits. ``SKFEDCAL_CORE`` may also name a level of instructions
(`levels`), to compare them.

A function here returns False, and has done nothing, where the core cannot do it: the
caller then takes its numpy form.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Number of the arithmetic: results of one number are the same to the last bit.
_VERSION = 1

# Number of the functions and their arguments, which `_core.c` has as well: a checkout
# may be newer than the core that was built in it.
_INTERFACE = 1

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def _load() -> ModuleType | None:
    wanted = os.environ.get("SKFEDCAL_CORE", "")
    if wanted == "off":
        return None
    try:
        _core = import_module("skfedcal._core")
    except ImportError:
        if wanted:
            raise ImportError(
                f"SKFEDCAL_CORE={wanted}, but skfedcal was installed without its "
                "compiled core. Install it where a C compiler is, or unset the "
                "variable."
            ) from None
        return None
    if getattr(_core, "interface", 0) != _INTERFACE:
        text = "The compiled core is of another version of skfedcal"
        again = "Install skfedcal again: pip install ."
        if wanted:
            raise ImportError(
                f"{text}, and SKFEDCAL_CORE={wanted} asks for it. {again}"
            )
        warnings.warn(
            f"{text}, and numpy takes its place. {again}", RuntimeWarning, stacklevel=2
        )
        return None
    if wanted:
        if wanted not in _core.levels():
            raise ValueError(
                f"SKFEDCAL_CORE={wanted!r} must be 'off' or one of {_core.levels()}."
            )
        _core.use(wanted)
    return _core


# Read at every call, so that a test can switch it off.
core: Any = _load()


def arithmetic() -> str:
    """Name of the arithmetic: 'numpy', or 'core/1' with the number of its results."""
    return "numpy" if core is None else f"core/{_VERSION}"


def levels() -> list[str]:
    """Levels of instructions that the core has for this processor, best first."""
    return [] if core is None else list(core.levels())


def _usable(rows: Array) -> bool:
    return (
        core is not None
        and rows.ndim == 2
        and rows.shape[1] > 0
        and rows.dtype in _FLOATS
    )


def _aligned(array: Array) -> Array:
    """Array whose numbers stand at multiples of their size, as C has them.

    The bits of a result must not depend on how rows lie in memory.
    """
    return array if array.flags.aligned else array.copy()


def _has_rows(clients: Any) -> bool:
    labels = clients.labels.dtype
    return _usable(clients.rows) and labels.kind in "iu" and labels.isnative


def _rows_of(clients: Any) -> tuple[Array, Array | None, Array, Array]:
    """Rows, their order, labels and offsets of a `FederatedDataset`."""
    order = clients.order
    return (
        _aligned(clients.rows),
        order if order is None else _aligned(order),
        _aligned(clients.labels),
        _aligned(clients.offsets),
    )


def _doubles(weights: Array | None) -> Array | None:
    """Weights of rows in float64."""
    if weights is None:
        return None
    return _aligned(weights.astype(np.float64, copy=False))


def softmax(rows: Array, out: Array, scale: float = 1.0, *, logs: bool = False) -> bool:
    """Write the softmax of ``scale * rows``, or its logarithm, to `out`.

    `out` is C-contiguous and may be `rows`.
    """
    if not _usable(rows) or not out.flags.c_contiguous or out.dtype != rows.dtype:
        return False
    place = out if out.flags.aligned else np.empty_like(out)
    core.softmax(_aligned(rows), place, scale, logs)
    if place is not out:
        out[...] = place
    return True


def derivative_sums(
    clients: Any,
    beta: float | Array,
    step: int,
    double: bool,
    relative: bool,
    sums: Array,
    used: Array,
) -> bool:
    """Add derivatives 1 to `order` of the log loss of all rows of each client.

    clients: `FederatedDataset`.
    beta: Where to take them: a number, or float64 of shape (n_clients,).
    step: One row in `step` is used, by the hash of `hash_sample`.
    double: Work in double precision whatever the rows.
    relative: Derivatives in the relative change of ``beta``.
    sums of shape (n_clients, order), float64: Zeros, order at most 5.
    used of shape (n_clients, 2), int64: Gets numbers of entries, and of rows used.
    """
    if not _has_rows(clients):
        return False
    weights = _doubles(clients.weights)
    core.derivative_sums(
        *_rows_of(clients), weights, beta, step, double, relative, sums, used
    )
    return True


# Numbers of maps and curvatures in `_core.c`.
MAPS = ("vector", "matrix", "order")
BENDS = ("none", "pair", "class", "full", "split")


def scaling_sums(
    clients: Any,
    kind: str,
    beta: float,
    params: Array,
    bend: str,
    sums: Array,
    curvature: Array,
) -> bool:
    """Add loss, slopes and curvature of a scaling map for each client.

    clients: `FederatedDataset`.
    kind: One of `MAPS`.
    beta: Factor of the centred rows on which `params` act.
    params of shape (size,) or (n_clients, size), float64: The map of all clients, or of
        each.
    bend: One of `BENDS`.
    sums of shape (n_clients, 2 + size), float64: Zeros; gets rows (by weight), loss and
        slopes.
    curvature of shape (n_clients, n_curvature), float64: Zeros; empty with 'none'.
    """
    if not _has_rows(clients):
        return False
    weights = _doubles(clients.weights)
    core.scaling_sums(
        *_rows_of(clients),
        weights,
        MAPS.index(kind),
        beta,
        np.ascontiguousarray(np.atleast_2d(params), dtype=np.float64),
        BENDS.index(bend),
        sums,
        curvature,
    )
    return True


def map_scaling(
    rows: Array, matrix: bool, params: Array, out: Array, *, proba: bool
) -> bool:
    """Write logits of vector or matrix scaling to `out`, or their softmax.

    params of shape (2, n_classes) or (n_classes + 1, n_classes), float64: Scale or
        columns of the matrix, then the bias, which act on centred rows.
    out: C-contiguous, of the shape and dtype of `rows`; may be `rows`.
    """
    if not _usable(rows) or not out.flags.c_contiguous or out.dtype != rows.dtype:
        return False
    place = out if out.flags.aligned else np.empty_like(out)
    params = np.ascontiguousarray(params, dtype=np.float64)
    core.map_scaling(_aligned(rows), matrix, params, place, proba)
    if place is not out:
        out[...] = place
    return True


def bias_sums(clients: Any, points: Array, full: bool, sums: Array) -> bool:
    """Add loss, slopes and curvature of bias and temperature scaling for each client.

    clients: `FederatedDataset`.
    points of shape (n_points, 1 + n_classes): Inverse temperature, then biases.
    full: Whether to add all products of two classes; else that of each class.
    sums of shape (n_clients, n_points, size), float64: Gets the sums, as in
        `bias_moments`.
    """
    if not _has_rows(clients):
        return False
    weights = _doubles(clients.weights)
    points = np.ascontiguousarray(points, dtype=np.float64)
    core.bias_sums(*_rows_of(clients), weights, points, full, sums)
    return True


def platt_sums(
    scores: Array,
    order: Array | None,
    labels: Array,
    offsets: Array,
    weights: Array | None,
    first: int,
    given: Array,
    sums: Array,
) -> bool:
    """Add loss, slopes and curvature of a sigmoid of each score for each client.

    scores of shape (n_rows, n_scores): Rows of scores; order: where each client's are.
    first: Label of the class of the first score.
    given of shape (8, n_scores), float64: See ``platt_sums`` in `_core.c`.
    sums of shape (n_clients, 6, n_scores), float64: To add to.
    """
    if not _usable(scores) or labels.dtype.kind not in "iu":
        return False
    weights = _doubles(weights)
    labels, scores = _aligned(labels), _aligned(scores)
    core.platt_sums(scores, order, labels, offsets, weights, first, given, sums)
    return True


def log_gamma(values: Array, out: Array) -> bool:
    """Write ``log(Gamma(values))`` of normal float64 numbers above 0 to `out`."""
    if core is None:
        return False
    core.map(6, values, out)
    return True


def join_lines(
    bins: tuple[Array, Array, Array],
    classes: Array,
    odds: Array,
    stretch: float,
    out: Array,
) -> bool:
    """Write lines through the bins of some classes; see `_lines` of `bbq_table`.

    bins: Rows, place and height of the bins of all classes, (n_classes, n_bins).
    classes: Which to take.
    odds of shape (n_odds,), float64: Where to take them, rising.
    stretch: Distance of the nodes of two classes.
    out of shape (len(classes), n_odds), float64.
    """
    if core is None:
        return False
    core.join_lines(*bins, classes, odds, stretch, out)
    return True


def bin_counts(
    clients: Any,
    terms: tuple[int, float, float],
    positive: Array,
    negative: Array,
    squares: Array | None = None,
) -> bool:
    """Count the entries of each client's rows by class and bin.

    clients: `FederatedDataset`.
    terms: `ClassBins.terms`.
    positive, negative of shape (n_clients, n_classes, n_bins), int32: Zeros; one entry
        of a row is positive, that of its class.
    squares of shape (n_clients, 2), int64: Zeros; gets the sums of squares of both.
        None leaves them out, which is faster.
    """
    if not _has_rows(clients):
        return False
    core.bin_counts(
        *_rows_of(clients),
        *terms,
        positive,
        negative,
        squares,
    )
    return True


def bin_values(
    rows: Array,
    terms: tuple[int, float, float],
    table: Array,
    out: Array,
    *,
    normalise: bool = False,
) -> bool:
    """Write the value of each entry's bin, ``table[class, bin]``, to `out`.

    normalise: Divide them by the sum of the row.
    out of the shape of `rows`: C-contiguous; may be `rows`.
    """
    if not (_usable(rows) and out.flags.c_contiguous and out.dtype in _FLOATS):
        return False
    table = np.ascontiguousarray(table, dtype=np.float64)
    place = out if out.flags.aligned else np.empty_like(out)
    core.bin_values(_aligned(rows), *terms, table, normalise, place)
    if place is not out:
        out[...] = place
    return True


def bin_scores(
    clients: Any, terms: tuple[int, float, float], table: Array, out: Array
) -> bool:
    """Write log loss and Brier score of each row, and of the values of its bins.

    clients: `FederatedDataset`.
    table of shape (n_classes, n_bins), float64: Numbers above 0; over the sum of a row
        they are its probabilities.
    out of shape (4, n_rows), float64: Losses and Brier scores, those of bins last.
    """
    if not _has_rows(clients):
        return False
    rows, order, labels, offsets = _rows_of(clients)
    where = slice(offsets[0], offsets[-1])
    if order is None:
        rows = rows[where]
    else:
        order = order[where]
    core.bin_scores(rows, order, labels[where], *terms, table, out)
    return True


def scaled_scores(clients: Any, scale: float, out: Array) -> bool:
    """Write log loss and Brier score of each row, and of ``scale`` times the row.

    clients: `FederatedDataset`.
    out of shape (4, n_rows), float64: Losses and Brier scores, those of scaled rows
        last.
    """
    if not _has_rows(clients):
        return False
    rows, order, labels, offsets = _rows_of(clients)
    first, last = int(offsets[0]), int(offsets[-1])
    if last - first != len(labels):
        labels = labels[first:last]
        order = None if order is None else order[first:last]
    if order is None and last - first != len(rows):
        rows = rows[first:last]
    core.scores(rows, order, labels, scale, out)
    return True


def held_marks(offsets: Array, names: Array, salt: int, limit: int, out: Array) -> bool:
    """Write whether each row, in packed order, is held back.

    names of shape (n_clients,), int64: Number of the name of each client.
    salt, limit: A row is held back if its hash by `salt` is below `limit`.
    out of shape (n_rows,), bool.
    """
    if core is None:
        return False
    core.held_marks(offsets, names, salt, limit, out)
    return True


def scores(rows: Array, labels: Array, out: Array) -> bool:
    """Write log loss and Brier score of each row of logits to `out`, (2, n_rows)."""
    if not _usable(rows) or labels.dtype.kind not in "iu":
        return False
    core.scores(_aligned(rows), None, _aligned(labels), None, out)
    return True


def valid_rows(rows: Array, slack: float) -> bool | None:
    """Tell whether each row has no entry below 0 and adds up to 1 within `slack`.

    None where there is no core.
    """
    if not _usable(rows):
        return None
    try:
        core.valid_rows(_aligned(rows), slack)
    except ValueError:
        return False
    return True


def all_finite(rows: Array) -> bool:
    """Tell whether all entries are finite; False where there is no core."""
    return _usable(rows) and core.all_finite(_aligned(rows))


def squares(rows: Array, out: Array) -> bool:
    """Write the sum of squares of each row to `out`, (n_rows,), float64."""
    if not _usable(rows):
        return False
    core.squares(_aligned(rows), out)
    return True


def top_labels(rows: Array, top: Array, value: Array) -> bool:
    """Write the first column with the largest entry of each row, and the entry.

    rows: Without NaN.
    top of shape (n_rows,), int64.
    value of shape (n_rows,), float64.
    """
    if not _usable(rows):
        return False
    core.top_labels(_aligned(rows), top, value)
    return True


def bin_sums(values: Array, labels: Array, weights: Array | None, sums: Array) -> bool:
    """Add values, labels and rows, by weight, to bins of equal width between 0 and 1.

    values, weights of shape (n_rows,), float64.
    labels of shape (n_rows,), bool.
    sums of shape (3, n_bins), float64: Zeros.
    """
    if core is None or labels.dtype != np.bool_:
        return False
    core.bin_sums(_aligned(values), labels, _doubles(weights), sums)
    return True


def class_gaps(
    rows: Array, codes: Array, n_bins: int, slack: float, gaps: Array, columns: Array
) -> bool | None:
    """Sum a C-contiguous block by column, and what is above the first bin by class.

    Tells whether rows are distributions, as `valid_rows`; None where there is no core.

    codes of shape (n_rows,): Column of the label of each row.
    gaps of shape (n_classes, width), float64: Zeros; gets entries of at least about
        ``1 / n_bins``, less 1 for labels, by class and bin.
    columns of shape (n_classes,), float64: Gets the sums of columns.
    """
    if not _usable(rows) or n_bins > 1 << 24:
        return None
    try:
        core.class_gaps(_aligned(rows), _aligned(codes), n_bins, slack, gaps, columns)
    except ValueError:
        return False
    return True


# Rows of ids of one width, or the offsets of texts in a buffer.
Layout = int | Array


def number_texts(texts: Any, layout: Layout) -> tuple[Array, Array] | None:
    """Number of the text of each row, and the first row of each text.

    Texts are numbered in the order of their first rows. None where too many hashes
    meet, or where there is no core.

    texts: Buffer of bytes.
    layout: Bytes of each text, or offsets of shape (n_rows + 1,), int32 or int64.
    """
    if core is None:
        return None
    n_rows = len(texts) // layout if isinstance(layout, int) else len(layout) - 1
    codes, first = np.empty((2, n_rows), dtype=np.int64)
    found = core.number_texts(texts, layout, codes, first)
    return None if found < 0 else (codes, first[:found])


def number_objects(ids: Array) -> tuple[Array, Array] | None:
    """As `number_texts`, of str, bytes, int, float and bool; None for other types."""
    if core is None:
        return None
    codes, first = np.empty((2, len(ids)), dtype=np.int64)
    found = core.number_objects(ids, codes, first)
    return None if found < 0 else (codes, first[:found])


def text_order(texts: Any, layout: Layout, unit: int, rows: Array) -> Array | None:
    """Return the order of the distinct texts at `rows`; None where it must be compared.

    texts, layout: As in `number_texts`.
    unit: Bytes of a letter; texts of UTF-8 have the order of their bytes.
    """
    if core is None:
        return None
    rows = np.ascontiguousarray(rows)
    order = np.empty_like(rows)
    return order if core.text_order(texts, layout, unit, rows, order) else None


def group_rows(codes: Array, sizes: Array) -> Array | None:
    """Rows by their code, equal ones in their order; `sizes` counts rows of a code."""
    if core is None or codes.dtype.kind not in "iu":
        return None
    order = np.empty(len(codes), dtype=np.int64)
    core.group_rows(_aligned(codes), np.cumsum(sizes, dtype=np.int64) - sizes, order)
    return order
