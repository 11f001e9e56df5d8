"""What a fit to score histograms asks of clients: decided by public numbers only."""

from itertools import pairwise

import numpy as np

from skfedcal.data._arrays import read_array
from skfedcal.privacy._client_models import LocalDP

# Depth of the leaves: for exact sums, and with noise.
_EXACT_HEIGHT, _NOISY_HEIGHT = 10, 7

# Numbers of all clients up to which their rows are weighted; 50 MB of them. Unweighted
# ones are counted without being held apart.
_MAX_NUMBERS = 6_000_000

# Beyond: most rows of a client that count, and clients at eps=1 for each of them.
_MAX_ROWS, _CLIENTS_PER_ROW = 10, 2000


def contribution(clip, setting, model, n_numbers):
    """Rows of a client that count (None: all), and whether they share the weight of 1.

    Noise is in proportion to what a client may send, whether it does or not. Sharing 1
    takes all rows at the noise of one; whoever has many rows is no louder for it.
    """
    local = isinstance(model, LocalDP)
    if not isinstance(clip, str):
        if local and clip != 1:
            raise ValueError(
                f"clip={clip!r}: under LocalDP each further report of a client would "
                "spend eps again. Pass clip=1 or 'auto'."
            )
        if setting.private and setting.unit == "example" and clip != 1:
            raise ValueError(
                f"clip={clip!r}: {model!r} protects each row by itself, and a larger "
                "bound would only add noise. Pass clip=1 or 'auto'."
            )
        return int(clip), False
    if not setting.private:
        return None, False
    if setting.unit == "example" or local:
        return 1, False
    if setting.n_clients * n_numbers <= _MAX_NUMBERS:
        return None, True
    # Twice the noise is half the eps.
    eps = model.eps / (2 if getattr(model, "adjacency", "") == "replace" else 1)
    worth = min(setting.n_clients * eps**2 / _CLIENTS_PER_ROW, _MAX_ROWS)
    return max(int(worth), 1), False


def levels_of_counts(levels, height, setting, model):
    """Depths at which rows are counted, the last one that of the leaves."""
    from skfedcal.evaluation._variances import auto_levels

    local = isinstance(model, LocalDP)
    if not isinstance(levels, str):
        return _checked(levels, height, local)
    if height == "auto":
        height = _NOISY_HEIGHT if setting.private else _EXACT_HEIGHT
        if local:
            height = 4 if model.eps < 4 else 5
    # Exact leaves add up to all other levels.
    if not setting.private or local:
        return (int(height),)
    return auto_levels(int(height))


def _checked(levels, height, local):
    given = read_array(levels, "levels").ravel()
    whole = given.dtype.kind in "iuf" and np.isfinite(given).all()
    if not whole or (given % 1 != 0).any():
        raise ValueError(f"levels={levels!r} must be whole numbers.")
    found = tuple(map(int, given.tolist()))
    rising = all(a < b for a, b in pairwise(found))
    if not found or not rising or found[0] < 1 or found[-1] > 16:
        raise ValueError(f"levels={levels!r} must be increasing depths from 1 to 16.")
    if height not in ("auto", found[-1]):
        raise ValueError(
            f"levels={levels!r} end at {found[-1]}, not at height={height!r}; leave "
            "one of the two out."
        )
    if local and len(found) > 1:
        raise ValueError(
            f"levels={levels!r}: under LocalDP a client reports once. Pass one level, "
            "or 'auto'."
        )
    return found
