"""Primitives of secure aggregation, all of them from `cryptography`.

Keys are agreed by X25519, derived by HKDF-SHA256, shares are sealed with
ChaCha20-Poly1305, masks are key streams of AES-256 in counter mode, and sites sign with
Ed25519. Every key is derived for one purpose in one round, so that it is used once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.exceptions import SecureAggregationError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import (
        X25519PrivateKey,
        X25519PublicKey,
    )
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise ImportError(
        "Signatures and secure aggregation need the package `cryptography`: "
        'pip install "skfedcal[flower]".'
    ) from error

KEY_BYTES = 32
SIGNATURE_BYTES = 64
# A key encrypts one message, so that its nonce need not vary.
_NONCE = bytes(12)
_SHA = hashes.SHA256()
# Belongs to no client: keys of others are checked with it.
_PROBE = X25519PrivateKey.generate()

Shapes = Mapping[str, tuple[tuple[int, ...], int]]
Words = dict[str, NDArray[Any]]


def new_key() -> X25519PrivateKey:
    """Fresh key for agreements."""
    return X25519PrivateKey.generate()


def load_key(raw: bytes) -> X25519PrivateKey:
    """Key from its 32 bytes."""
    return X25519PrivateKey.from_private_bytes(raw)


def agree(own: X25519PrivateKey, other: bytes) -> bytes:
    """Secret of two parties, from which keys are derived.

    Raises SecureAggregationError: If the other key is not a valid public key, or makes
        the secret predictable.
    """
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise SecureAggregationError(
            "A public key of a client is not valid."
        ) from error


def is_public(key: bytes) -> bool:
    """Whether a key is valid for key agreement."""
    try:
        return bool(agree(_PROBE, key))
    except SecureAggregationError:
        return False


def derive(secret: bytes, purpose: bytes, n_keys: int = 1) -> bytes:
    """Derive a key, or several concatenated keys, for one purpose from a secret."""
    size = n_keys * KEY_BYTES
    return HKDF(algorithm=_SHA, length=size, salt=None, info=purpose).derive(secret)


def seal(key: bytes, message: bytes, about: bytes) -> bytes:
    """Encrypt and authenticate a message; once per key."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, message, about)


def unseal(key: bytes, sealed: bytes, about: bytes, sender: str = "a client") -> bytes:
    """Decrypt a message.

    Raises SecureAggregationError: If it was modified, or sealed for another receiver or
        purpose.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, about)
    except InvalidTag as error:
        raise SecureAggregationError(
            f"The sealed share of {sender} was modified in transit, or belongs to "
            "another round or request."
        ) from error


def mask(key: bytes, shapes: Shapes) -> Words:
    """Uniform words for arrays of these shapes and widths in bytes, from one key.

    The key stream of AES-256 in counter mode, from block 2 on: what AES-GCM adds to a
    message of zeros. Its tag is left unread.
    """
    parts, size = _layout(tuple(shapes.items()))
    # Not as a `Cipher`, which takes three times as long for short streams.
    stream = AESGCM(key).encrypt(_NONCE, bytes(size), None)
    return {
        name: np.frombuffer(stream, dtype, count, start).reshape(shape)
        for name, shape, dtype, count, start in parts
    }


@lru_cache(maxsize=32)
def _layout(shapes: tuple[Any, ...]) -> tuple[list[tuple[Any, ...]], int]:
    """Where in a stream the words of each array are, and the size of the stream."""
    parts, start = [], 0
    for name, (shape, width) in sorted(shapes):
        count = prod(shape)
        parts.append((name, shape, np.dtype(f"<u{width}"), count, start))
        start += count * width
    return parts, start


def sign(key: Ed25519PrivateKey, message: bytes) -> bytes:
    """Signature of a site."""
    return key.sign(message)


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the holder of a public key signed this message."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
