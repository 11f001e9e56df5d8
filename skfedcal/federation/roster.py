"""Identities of sites: long-lived signing keys, and the list that every site holds.

Without it a server could replace the keys of all clients by its own and remove all
masks. The list may also have the key of the operator, who signs what sites are asked:
without it, whoever reaches the sites may ask them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

from skfedcal._files import as_path
from skfedcal._json import dump, member, read_file, write_file
from skfedcal.exceptions import SiteRefusalError
from skfedcal.federation.crypto import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Ed25519PrivateKey,
    sign,
    verify,
)

# A roster with the key of an operator has another format: a site that does not know of
# operators must not take it for one without.
FORMAT, FORMAT_OPERATOR = "skfedcal roster 1", "skfedcal roster 2"
# A roster that replaces an older one has a version, with an operator or without.
FORMAT_VERSION = "skfedcal roster 3"
# Seconds for which the operator's signature under a request is valid.
VALID_SECONDS = 24 * 3600
# Seconds by which the clocks of operator and site may differ.
_CLOCK_SECONDS = 600
# Longest name of a site.
MAX_NAME = 100
_NAME = re.compile(rf"[\w.@-]{{1,{MAX_NAME}}}")


@dataclass(frozen=True, slots=True)
class SiteKey:
    """Signing key of one site, or of the operator; it never leaves its owner.

    Parameters
    ----------
    name : str
        Name of the site in the roster; of an operator, any name.
    key : Ed25519PrivateKey
        What it signs with.
    former : tuple of bytes, default=()
        Public halves of keys that this one replaced, which signed what is in the ledger
        of the site.

    Examples
    --------
    >>> from skfedcal.federation import SiteKey
    >>> SiteKey.generate("hospital-a")
    SiteKey('hospital-a')
    """

    name: str
    key: Ed25519PrivateKey
    former: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        return f"SiteKey({self.name!r})"

    @classmethod
    def generate(cls, name: str) -> SiteKey:
        """Fresh key."""
        return cls(check_name(name), Ed25519PrivateKey.generate())

    def renew(self) -> SiteKey:
        """Fresh key in the place of this one."""
        fresh = Ed25519PrivateKey.generate()
        return SiteKey(self.name, fresh, (*self.former, self.public))

    @property
    def public(self) -> bytes:
        """Public half, for the roster."""
        return self.key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Signature of this site."""
        return sign(self.key, message)

    @property
    def signed(self) -> Callable[[bytes, bytes], bool]:
        """Whether this key, or a former one, signed a message; has no private half."""
        return partial(_signed_by, (self.public, *self.former))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file that only its owner can read."""
        content: dict[str, Any] = {
            "site": self.name,
            "key": self.key.private_bytes_raw().hex(),
        }
        if self.former:
            content["former"] = [public.hex() for public in self.former]
        text = dump(content)
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
            former = tuple(bytes.fromhex(old) for old in found.get("former", ()))
            return cls(check_name(found["site"]), key, former)
        except (ValueError, KeyError, TypeError):
            # Not "from error": its text may hold the key.
            raise ValueError(f"{path} is not a site key.") from None


@dataclass(frozen=True)
class Roster:
    """Public keys of all sites, and of the operator.

    Parameters
    ----------
    sites : mapping of str to bytes
        Public key of each site.
    operator : bytes, default=None
        Public key of the operator. Sites answer only requests that the operator signed;
        None answers those of anyone who reaches them.
    version : int, default=0
        Counts changes of a roster in use. A site refuses an older version than it has
        seen.

    Examples
    --------
    >>> from skfedcal.federation import Roster, SiteKey
    >>> keys = [SiteKey.generate(name) for name in ("hospital-a", "hospital-b")]
    >>> sorted(Roster({key.name: key.public for key in keys}).sites)
    ['hospital-a', 'hospital-b']
    """

    sites: Mapping[str, bytes]
    operator: bytes | None = None
    version: int = 0

    def __post_init__(self) -> None:
        if type(self.version) is not int or not 0 <= self.version < 2**63:
            raise ValueError(
                f"version must be a whole number from 0 on; got {self.version!r}."
            )
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
        if self.operator is None:
            return
        if not isinstance(self.operator, bytes) or len(self.operator) != KEY_BYTES:
            raise ValueError(
                f"The key of the operator does not have {KEY_BYTES} bytes."
            )
        if self.operator in self.sites.values():
            raise ValueError("The operator of the roster has the key of a site.")

    @cached_property
    def digest(self) -> bytes:
        """Hash of all names and keys, and of the version."""
        text = b"".join(
            len(name).to_bytes(4, "big") + name.encode() + public
            for name, public in sorted(self.sites.items())
        )
        if self.version:
            asks = b"\0" if self.operator is None else b"\1" + self.operator
            head = b"skfedcal roster 3" + self.version.to_bytes(8, "big")
            return sha256(head + asks + text).digest()
        if self.operator is None:
            return sha256(b"skfedcal roster" + text).digest()
        return sha256(b"skfedcal roster 2" + self.operator + text).digest()

    def signed(self, name: str, message: bytes, signature: bytes) -> bool:
        """Whether the site of this name signed a message."""
        public = self.sites.get(name)
        return public is not None and verify(public, message, signature)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the roster as JSON."""
        keys = {name: public.hex() for name, public in sorted(self.sites.items())}
        content: dict[str, Any] = {"format": FORMAT, "sites": keys}
        if self.operator is not None:
            content |= {"format": FORMAT_OPERATOR, "operator": self.operator.hex()}
        if self.version:
            content |= {"format": FORMAT_VERSION, "version": self.version}
        write_file(path, content, indent=2)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Roster:
        """Read a roster that `save` wrote."""
        path = as_path(path)
        try:
            found = read_file(path)
            known = FORMAT, FORMAT_OPERATOR, FORMAT_VERSION
            if member(found, "format", str, "it") not in known:
                raise ValueError(f"its format is {found['format']!r}")
            sites = member(found, "sites", dict, "it")
            keys = {name: bytes.fromhex(key) for name, key in sites.items()}
            operator, version = None, 0
            if found["format"] == FORMAT_VERSION:
                version = member(found, "version", int, "it")
                if version < 1:
                    raise ValueError(f"its version is {version}")
            elif "version" in found:
                raise ValueError(f"format {found['format']!r} has no version")
            if found["format"] == FORMAT_OPERATOR or (version and "operator" in found):
                operator = bytes.fromhex(member(found, "operator", str, "it"))
            elif "operator" in found:
                raise ValueError(f"format {FORMAT!r} has no operator")
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is not a roster of sites: {error}.") from error
        return cls(keys, operator, version)

    def check_successor(self, seen: Mapping[str, Any]) -> bool:
        """Refuse a version before the last one that a site has seen.

        seen: What `to_seen` gave for that one; empty for none. Result: Whether this is
        another roster than that.
        """
        if not seen:
            return True
        last, digest = seen.get("version"), seen.get("digest")
        if type(last) is not int or type(digest) is not str:
            raise ValueError("what this site remembers of its roster is damaged.")
        same = digest == self.digest.hex()
        if self.version < last:
            raise ValueError(
                f"the roster has version {self.version}, and this site has seen "
                f"version {last}: ask for the newest one."
            )
        if self.version == last > 0 and not same:
            raise ValueError(
                f"there are two rosters of version {last}, {digest[:16]} and "
                f"{self.digest.hex()[:16]}: ask who made the other one."
            )
        return not same

    def to_seen(self) -> dict[str, Any]:
        """What a site remembers of this roster."""
        return {"version": self.version, "digest": self.digest.hex()}

    def check_operator(
        self,
        kind: str,
        terms: Mapping[str, Any],
        about: bytes,
        message: Mapping[str, Any],
    ) -> None:
        """Refuse what the operator of this roster did not sign; none signs nothing.

        Parameters
        ----------
        kind : str
            Kind of the message.
        terms : mapping
            Run and round, and for a setup all terms of its masks.
        about : bytes
            Hash of the request.
        message : mapping
            Message with the signature.

        Raises
        ------
        SiteRefusalError
            Naming what is missing.
        """
        if self.operator is None:
            return
        signature, digest, until = (
            message.get(name) for name in ("operator", "roster", "expires")
        )
        if (
            type(signature) is not bytes
            or len(signature) != SIGNATURE_BYTES
            or type(digest) is not bytes
            or type(until) is not int
        ):
            raise SiteRefusalError(
                "its roster names an operator, and the message has no signature of the "
                "operator"
            )
        if digest != self.digest:
            raise SiteRefusalError(
                f"the operator signed for the roster {digest.hex()[:16]}, its own is "
                f"{self.digest.hex()[:16]}"
            )
        now = time.time()
        if not now - _CLOCK_SECONDS < until < now + VALID_SECONDS + _CLOCK_SECONDS:
            raise SiteRefusalError(
                "the signature of the operator has expired, or is valid for too long; "
                "the clocks of operator and site may differ by "
                f"{_CLOCK_SECONDS // 60} minutes"
            )
        text = _operator_text(kind, terms, about, digest, until)
        if not verify(self.operator, text, signature):
            raise SiteRefusalError("the operator of its roster did not sign this")


@dataclass(frozen=True, slots=True)
class Operator:
    """Signs what sites are asked, by the roster that they hold.

    Parameters
    ----------
    key : SiteKey
        Key of the operator.
    roster : Roster
        Roster of the sites, with the public half of the key.

    Examples
    --------
    >>> from skfedcal.federation import Operator, Roster, SiteKey
    >>> key = SiteKey.generate("operator")
    >>> sites = [SiteKey.generate(name) for name in ("hospital-a", "hospital-b")]
    >>> roster = Roster({site.name: site.public for site in sites}, key.public)
    >>> Operator(key, roster)
    Operator('operator', 2 sites)
    """

    key: SiteKey
    roster: Roster

    def __post_init__(self) -> None:
        for name, value, kind in (
            ("key", self.key, SiteKey),
            ("roster", self.roster, Roster),
        ):
            if not isinstance(value, kind):
                raise TypeError(
                    f"{name} is of type {type(value).__name__}; pass a "
                    f"{kind.__name__}: requests are signed for one roster."
                )
        if self.roster.operator != self.key.public:
            raise ValueError(
                f"The roster has no operator, or another one than {self.key.name!r}: "
                "make it with skfedcal flower keys --operator, and send it to every "
                "site."
            )

    def __repr__(self) -> str:
        return f"Operator({self.key.name!r}, {len(self.roster.sites)} sites)"

    @classmethod
    def load(
        cls, key: str | os.PathLike[str], roster: str | os.PathLike[str]
    ) -> Operator:
        """Read the files that ``skfedcal flower keys --operator`` wrote."""
        return cls(SiteKey.load(key), Roster.load(roster))

    def sign_request(
        self, kind: str, terms: Mapping[str, Any], about: bytes
    ) -> dict[str, Any]:
        """Entries of a message by which a site knows that the operator asks it.

        Parameters
        ----------
        kind, terms, about
            Those of `Roster.check_operator`, which reads the entries.
        """
        until = int(time.time()) + VALID_SECONDS
        text = _operator_text(kind, terms, about, self.roster.digest, until)
        return {
            "operator": self.key.sign(text),
            "roster": self.roster.digest,
            "expires": until,
        }


def _signed_by(keys: Iterable[bytes], message: bytes, signature: bytes) -> bool:
    return any(verify(key, message, signature) for key in keys)


def _operator_text(
    kind: str, terms: Mapping[str, Any], about: bytes, digest: bytes, until: int
) -> bytes:
    content = {
        "kind": kind,
        "terms": sorted(terms.items()),
        "about": about.hex(),
        "roster": digest.hex(),
        "expires": until,
    }
    return b"skfedcal operator 1" + dump(content).encode()


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
