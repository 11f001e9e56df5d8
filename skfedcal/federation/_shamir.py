"""Secret sharing: any `threshold` shares give the secret, fewer give nothing.

Every byte of the secret is shared by itself over the field of 256 elements in which AES
works, so that numpy computes all bytes of all shares at once. A secret has at most 255
shareholders.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

MAX_SHARES = 255
_POLYNOMIAL = 0x11B
_GENERATOR = 3


def split(secret: bytes, threshold: int, n_shares: int) -> list[bytes]:
    """Shares of a secret, for the shareholders 1 to `n_shares`.

    Parameters
    ----------
    secret : bytes
        What is shared.
    threshold : int
        Shares that give it back.
    n_shares : int
        Shareholders, at most 255.

    Raises
    ------
    ValueError
        If no such shares exist.
    """
    if not 1 <= threshold <= n_shares <= MAX_SHARES:
        raise ValueError(
            f"A secret cannot have {n_shares} shares of which {threshold} are enough: "
            f"pass 1 <= threshold <= n_shares <= {MAX_SHARES}."
        )
    size = len(secret)
    random = os.urandom((threshold - 1) * size)
    parts = np.frombuffer(secret + random, dtype=np.uint8).reshape(threshold, size)
    terms = multiply(_powers(threshold, n_shares), parts)
    return [share.tobytes() for share in np.bitwise_xor.reduce(terms, axis=1)]


def join(shares: Mapping[int, bytes]) -> bytes:
    """Secret from as many shares as its threshold, by shareholder.

    Too few shares, or shares of different secrets, give other bytes and no error.
    """
    if not shares or not all(1 <= holder <= MAX_SHARES for holder in shares):
        raise ValueError("Shares belong to the shareholders 1 to 255.")
    rows = np.frombuffer(b"".join(shares.values()), dtype=np.uint8)
    weights = _weights_at_zero(bytes(shares))
    parts = multiply(weights[:, None], rows.reshape(len(shares), -1))
    return bytes(np.bitwise_xor.reduce(parts, axis=0).tobytes())


def multiply(left: Bytes, right: Bytes) -> Bytes:
    """Product in the field, element by element."""
    out: Bytes = _PRODUCTS.take((left.astype(np.intp) << 8) | right)
    return out


@lru_cache(maxsize=32)
def _powers(threshold: int, n_shares: int) -> Bytes:
    """Powers 0 to ``threshold - 1`` of the shareholders, a column for each of them."""
    logs = _LOG[1 : n_shares + 1].astype(np.int64)
    exponents = logs[:, None] * np.arange(threshold) % MAX_SHARES
    out: Bytes = _EXP[exponents][:, :, None]
    return out


# Where all clients are neighbours, the same shareholders open all secrets.
@lru_cache(maxsize=32)
def _weights_at_zero(holders: bytes) -> Bytes:
    """Lagrange's weights of the values at these points for the value at zero."""
    at = np.frombuffer(holders, dtype=np.uint8)
    gaps = at[:, None] ^ at[None, :]
    np.fill_diagonal(gaps, 1)
    logs = _LOG[at].astype(np.int64)
    over = logs.sum() - logs
    under = _LOG[gaps].astype(np.int64).sum(axis=1)
    out: Bytes = _EXP[(over - under) % MAX_SHARES]
    return out


def _tables() -> tuple[Bytes, NDArray[np.uint16]]:
    exp = np.zeros(2 * MAX_SHARES, dtype=np.uint8)
    log = np.zeros(256, dtype=np.uint16)
    value = 1
    for power in range(MAX_SHARES):
        exp[power] = exp[power + MAX_SHARES] = value
        log[value] = power
        doubled = value << 1
        value ^= doubled ^ (_POLYNOMIAL if doubled & 0x100 else 0)
    assert value == 1 and exp[1] == _GENERATOR
    return exp, log


_EXP, _LOG = _tables()


def _products() -> Bytes:
    """Table of all products."""
    logs = _LOG.astype(np.int64)
    out = _EXP[logs[:, None] + logs[None, :]]
    out[0, :] = out[:, 0] = 0
    return out.ravel()


_PRODUCTS = _products()
