"""Checks of the certificate that a SuperLink shows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from skfedcal.cli.flower._doctor import Line, check_secret_file

_SOON = timedelta(days=30)


def check_certificates(ca: str, cert: str, key: str) -> Iterator[Line]:
    """Whether files fit together, for how long, and for which hosts.

    Parameters
    ----------
    ca, cert, key : str
        PEM files of the authority, of the SuperLink, and of its private key; empty is
        not checked.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not (ca or cert or key):
        text = "no certificate was passed: without one, on one machine only"
        yield Line("warn", "TLS", text)
        return
    read: dict[str, Any] = {}
    for name, path, load in (
        ("ca", ca, x509.load_pem_x509_certificate),
        ("certificate", cert, x509.load_pem_x509_certificate),
        ("key", key, lambda data: load_pem_private_key(data, None)),
    ):
        if not path:
            continue
        try:
            read[name] = load(Path(path).read_bytes())
        except (OSError, ValueError, TypeError) as error:
            yield Line("fail", name, f"{path}: {error}")
    for name in ("ca", "certificate"):
        if name in read:
            yield _dates(name, read[name])
    if "certificate" in read:
        yield _hosts(read["certificate"])
    if {"ca", "certificate"} <= set(read):
        yield _issued(read["ca"], read["certificate"])
    if {"key", "certificate"} <= set(read):
        fits = read["key"].public_key() == read["certificate"].public_key()
        text = (
            "belongs to the certificate"
            if fits
            else "does not belong to the certificate"
        )
        yield Line("ok" if fits else "fail", "key", text)
    yield from check_secret_file(key)


def _dates(name: str, certificate: Any) -> Line:
    now, end = datetime.now(UTC), certificate.not_valid_after_utc
    text = f"valid until {end:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        begin = certificate.not_valid_before_utc
        return Line("fail", name, f"not valid before {begin:%Y-%m-%d}")
    if now > end:
        return Line("fail", name, f"expired on {end:%Y-%m-%d}")
    return Line("warn" if end - now < _SOON else "ok", name, text)


def _hosts(certificate: Any) -> Line:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except x509.ExtensionNotFound:
        text = "has no subjectAltName: no SuperNode will accept it"
        return Line("fail", "certificate", text)
    hosts = [str(getattr(name, "value", name)) for name in names]
    return Line("ok", "certificate", f"for {', '.join(hosts)}")


def _issued(ca: Any, certificate: Any) -> Line:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return Line("fail", "certificate", "was not issued by the authority")
    return Line("ok", "certificate", "was issued by the authority")
