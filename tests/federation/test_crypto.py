"""Primitives against the vectors of their standards and an independent library."""

import numpy as np
import pytest
from Crypto.Cipher import AES, ChaCha20_Poly1305
from Crypto.Util import Counter

from skfedcal.exceptions import SecureAggregationError
from skfedcal.federation import crypto

KEY = bytes(range(32))


def test_agreement_is_that_of_rfc_7748():
    bob = crypto.load_key(
        bytes.fromhex(
            "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
        )
    )
    alice = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    public = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    secret = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert bob.public_key().public_bytes_raw().hex() == public
    assert crypto.agree(bob, bytes.fromhex(alice)).hex() == secret


def test_derivation_is_that_of_rfc_5869():
    # Test case 3: no salt and no info; its output is longer than a key.
    okm = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert crypto.derive(b"\x0b" * 22, b"").hex() == okm


def test_keys_of_two_purposes_differ():
    assert crypto.derive(KEY, b"mask") != crypto.derive(KEY, b"share")


def test_both_parties_agree():
    one, two = crypto.new_key(), crypto.new_key()
    assert crypto.agree(one, two.public_key().public_bytes_raw()) == crypto.agree(
        two, one.public_key().public_bytes_raw()
    )


@pytest.mark.parametrize("public", [bytes(32), b"short", b"\x01" + bytes(31)])
def test_a_key_that_would_make_the_secret_known_is_refused(public):
    with pytest.raises(SecureAggregationError, match="public key"):
        crypto.agree(crypto.new_key(), public)


def test_sealed_bytes_are_those_of_another_library():
    other = ChaCha20_Poly1305.new(key=KEY, nonce=bytes(12))
    other.update(b"about")
    text, tag = other.encrypt_and_digest(b"message")
    assert crypto.seal(KEY, b"message", b"about") == text + tag
    assert crypto.unseal(KEY, text + tag, b"about") == b"message"


@pytest.mark.parametrize("place", [0, 5, -1])
def test_a_changed_byte_is_noticed(place):
    sealed = bytearray(crypto.seal(KEY, b"message", b"about"))
    sealed[place] ^= 1
    with pytest.raises(SecureAggregationError, match="modified in transit"):
        crypto.unseal(KEY, bytes(sealed), b"about")


def test_a_share_of_another_round_is_noticed():
    with pytest.raises(SecureAggregationError, match="another round"):
        crypto.unseal(KEY, crypto.seal(KEY, b"message", b"round 1"), b"round 2")


def test_a_mask_is_the_key_stream_of_aes():
    found = crypto.mask(KEY, {"b": ((2, 3), 4), "a": ((5,), 8)})
    cipher = AES.new(KEY, AES.MODE_CTR, counter=Counter.new(128, initial_value=2))
    stream = cipher.encrypt(bytes(5 * 8 + 6 * 4))
    np.testing.assert_array_equal(found["a"], np.frombuffer(stream[:40], "<u8"))
    np.testing.assert_array_equal(
        found["b"], np.frombuffer(stream[40:], "<u4").reshape(2, 3)
    )


def test_masks_of_two_keys_are_not_alike():
    # 64,000 bits: a share of equal bits outside .5 +- .015 has a chance below 1e-13.
    first = crypto.mask(KEY, {"a": ((2000,), 4)})["a"]
    second = crypto.mask(KEY[::-1], {"a": ((2000,), 4)})["a"]
    equal = np.unpackbits((first ^ second).view(np.uint8)).mean()
    assert abs(equal - 0.5) < 0.015


def test_signatures():
    from skfedcal.federation.roster import SiteKey

    site = SiteKey.generate("hospital-a")
    signature = site.sign(b"text")
    assert crypto.verify(site.public, b"text", signature)
    assert not crypto.verify(site.public, b"other", signature)
    assert not crypto.verify(SiteKey.generate("b").public, b"text", signature)
    assert not crypto.verify(b"short", b"text", signature)
