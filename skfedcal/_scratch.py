"""Buffers that are kept between calls: fresh pages cost more than work on them."""

import threading
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A larger buffer (a row of a million columns) is not kept.
_KEEP_BYTES = 1 << 22

_kept = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Array with arbitrary content, valid until this thread asks for `name` again."""
    n_bytes = prod(shape) * np.dtype(dtype).itemsize
    buffer = getattr(_kept, name, None)
    if buffer is None or buffer.nbytes < n_bytes:
        buffer = np.empty(n_bytes, dtype=np.uint8)
        if n_bytes <= _KEEP_BYTES:
            setattr(_kept, name, buffer)
    return buffer[:n_bytes].view(dtype).reshape(shape)
