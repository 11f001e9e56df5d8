"""Identities of sites: long-lived signing keys, and the list that every site holds.

Without it a server could replace the keys of all clients by its own and remove all
masks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from skfedcal._files import as_path
from skfedcal._json import dump, member, read_file, write_file
from skfedcal.federation.crypto import KEY_BYTES, Ed25519PrivateKey, sign, verify

FORMAT = "skfedcal roster 1"
# Longest name of a site.
MAX_NAME = 100
_NAME = re.compile(rf"[\w.@-]{{1,{MAX_NAME}}}")


@dataclass(frozen=True, slots=True)
class SiteKey:
    """Signing key of one site; it never leaves the site.

    Parameters
    ----------
    name : str
        Name of the site in the roster.
    key : Ed25519PrivateKey
        What it signs with.

    Examples
    --------
    >>> from skfedcal.federation import SiteKey
    >>> SiteKey.generate("hospital-a")
    SiteKey('hospital-a')
    """

    name: str
    key: Ed25519PrivateKey

    def __repr__(self) -> str:
        return f"SiteKey({self.name!r})"

    @classmethod
    def generate(cls, name: str) -> SiteKey:
        """Fresh key."""
        return cls(check_name(name), Ed25519PrivateKey.generate())

    @property
    def public(self) -> bytes:
        """Public half, for the roster."""
        return self.key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Signature of this site."""
        return sign(self.key, message)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file that only its owner can read."""
        text = dump({"site": self.name, "key": self.key.private_bytes_raw().hex()})
        path = as_path(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(path, flags, 0o600), "w") as file:
            try:
                file.write(text + "\n")
                file.flush()
            except OSError:
                path.unlink(missing_ok=True)  # half of a key is none
                raise

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SiteKey:
        """Read a key that `save` wrote."""
        path = as_path(path)
        try:
            found = read_file(path)
            key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(found["key"]))
            return cls(check_name(found["site"]), key)
        except (ValueError, KeyError, TypeError):
            # Not "from error": its text may hold the key.
            raise ValueError(f"{path} is not a site key.") from None


@dataclass(frozen=True, slots=True)
class Roster:
    """Public keys of all sites.

    Parameters
    ----------
    sites : mapping of str to bytes
        Public key of each site.

    Examples
    --------
    >>> from skfedcal.federation import Roster, SiteKey
    >>> keys = [SiteKey.generate(name) for name in ("hospital-a", "hospital-b")]
    >>> sorted(Roster({key.name: key.public for key in keys}).sites)
    ['hospital-a', 'hospital-b']
    """

    sites: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if not isinstance(self.sites, Mapping):
            raise TypeError(
                f"sites is of type {type(self.sites).__name__}; pass a mapping of "
                "names to public keys."
            )
        for name, public in self.sites.items():
            check_name(name)
            if not isinstance(public, bytes) or len(public) != KEY_BYTES:
                raise ValueError(
                    f"The key of site {name!r} does not have {KEY_BYTES} bytes."
                )
        if len(set(self.sites.values())) != len(self.sites):
            raise ValueError("Two sites of the roster have the same key.")

    def signed(self, name: str, message: bytes, signature: bytes) -> bool:
        """Whether the site of this name signed a message."""
        public = self.sites.get(name)
        return public is not None and verify(public, message, signature)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the roster as JSON."""
        keys = {name: public.hex() for name, public in sorted(self.sites.items())}
        write_file(path, {"format": FORMAT, "sites": keys}, indent=2)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Roster:
        """Read a roster that `save` wrote."""
        path = as_path(path)
        try:
            found = read_file(path)
            if member(found, "format", str, "it") != FORMAT:
                raise ValueError(f"its format is {found['format']!r}")
            sites = member(found, "sites", dict, "it")
            keys = {name: bytes.fromhex(key) for name, key in sites.items()}
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is not a roster of sites: {error}.") from error
        return cls(keys)


def is_name(text: str) -> bool:
    """Whether a site can have this name."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str) -> str:
    """Return a site name if it is valid in files and messages."""
    if not isinstance(name, str) or not is_name(name):
        raise ValueError(
            f"{name!r} is not a valid site name: pass letters, digits and '_.@-', at "
            "most 100 of them."
        )
    return name
