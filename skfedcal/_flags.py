"""Positions of flags that are rarely set, such as entries above the first bin."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def rare_flags(flags: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the positions of the few true flags, eight flags at a time."""
    if flags.size % 8:
        return flags.nonzero()[0]
    words = flags.view(np.uint64)
    hit = (words != 0).nonzero()[0]
    inside = words.take(hit).view(np.bool_).nonzero()[0]
    # In place: the lists may be as long as the flags.
    found = hit.take(inside >> 3)
    found <<= 3
    inside &= 7
    found += inside
    return found
