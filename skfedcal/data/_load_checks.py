"""Checks of the arrays in a federation's file; messages name file and array."""

import numpy as np

# Published softmax outputs are rounded: float16 rows sum to 1 within about this.
SUM_TOLERANCE = 1e-2


def check_length(array, name, logits, path):
    """Raise unless there is one entry for each row of logits."""
    if array.shape != (len(logits),):
        raise ValueError(
            f"{path}: {name} has shape {array.shape}, but there are "
            f"{len(logits)} rows of logits."
        )


def _check_scores(scores, name, path):
    """Return float32 or float64 of one or two dimensions."""
    if scores.dtype.kind not in "fiu" or scores.ndim not in (1, 2) or not scores.size:
        raise ValueError(
            f"{path}: {name} must be numbers of shape (n, n_classes) or (n,), got "
            f"{scores.dtype} of shape {scores.shape}."
        )
    keep = scores.dtype.kind == "f" and scores.dtype.itemsize <= 4
    return scores.astype(np.float32 if keep else np.float64, copy=False)


def check_logits(scores, name, path):
    """Logits as floats; a row has a finite maximum."""
    logits = _check_scores(scores, name, path)
    rows = logits.reshape(len(logits), -1)
    # The maximum of a row is NaN if any entry is.
    bad = ~np.isfinite(rows.max(axis=1))
    if bad.any():
        raise ValueError(
            f"{path}: row {np.argmax(bad)} of {name} has NaN, +inf or nothing but "
            f"-inf ({bad.sum()} such rows). An -inf beside finite logits means "
            "probability zero and is allowed."
        )
    return logits


def log_proba(scores, name, path):
    """Logarithms of probabilities; one column means those of class 1."""
    proba = _check_scores(scores, name, path)
    if proba.ndim == 1:
        proba = np.column_stack([1 - proba, proba])
    sums = proba.sum(axis=1, dtype=np.float64)
    bad = ~((proba >= 0).all(axis=1) & (np.abs(sums - 1) <= SUM_TOLERANCE))
    if bad.any():
        raise ValueError(
            f"{path}: row {np.argmax(bad)} of {name} is not a probability vector: "
            f"entries must be at least 0 and sum to 1 ({bad.sum()} such rows)."
        )
    with np.errstate(divide="ignore"):
        return np.log(proba)


def check_labels(labels, name, logits, path):
    """Columns of the true classes as whole numbers."""
    check_length(labels, name, logits, path)
    n_classes = max(2, logits.shape[1]) if logits.ndim == 2 else 2
    whole = labels.dtype.kind in "iub" or (
        labels.dtype.kind == "f" and np.array_equal(labels, np.trunc(labels))
    )
    if not whole:
        raise ValueError(
            f"{path}: {name} must be whole numbers, the column of the true class; got "
            f"{labels.dtype}."
        )
    low, high = labels.min(), labels.max()
    if low < 0 or high >= n_classes:
        raise ValueError(
            f"{path}: {name} range from {low} to {high}, but logits of shape "
            f"{logits.shape} allow 0 to {n_classes - 1}."
        )
    return labels.astype(np.int64)


def check_clients(client_ids, name, names, path):
    """Return whole numbers: positions in `names`, if there are names."""
    kind = client_ids.dtype.kind
    if kind not in "iuUS":
        raise ValueError(
            f"{path}: {name} must be whole numbers or strings, got {client_ids.dtype}."
        )
    if names is not None and kind in "US":
        order = np.argsort(names)
        client_ids = client_ids.astype(str)
        place = np.searchsorted(names, client_ids, sorter=order)
        codes = order[np.minimum(place, len(names) - 1)]
        unknown = names[codes] != client_ids
        if unknown.any():
            missing = str(client_ids[np.argmax(unknown)])
            raise ValueError(f"{path}: {name} {missing!r} is not in client_names.")
        return codes
    client_ids = client_ids.astype(np.int64)
    if names is not None and len(client_ids):
        low, high = client_ids.min(), client_ids.max()
        if low < 0 or high >= len(names):
            raise ValueError(
                f"{path}: {name} ranges from {low} to {high}, but there are "
                f"{len(names)} client_names."
            )
    return client_ids
