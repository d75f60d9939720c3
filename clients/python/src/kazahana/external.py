"""External IDs without the daemon: 11 characters that hide an ID's time and sequence."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct

from .errors import InvalidExternalIDError, InvalidParamsError

_MASK = (1 << 64) - 1
_MAX_ID = (1 << 63) - 1
_INFO = b"kazahana external id v1"
# moremur (Pelle Evensen, 2019): a bijection of 64 bits that mixes well. It hides, it does not encrypt.
_FIRST, _SECOND = 0x3C79AC492BA7B653, 0x1C69B3F74AC4AE35
_FIRST_INVERSE, _SECOND_INVERSE = pow(_FIRST, -1, 1 << 64), pow(_SECOND, -1, 1 << 64)
_DELTA, _CYCLES = 0x9E3779B9, 32


def _mix(x: int) -> int:
    x = (x ^ x >> 27) * _FIRST & _MASK
    x = (x ^ x >> 33) * _SECOND & _MASK
    return x ^ x >> 27


def _unmix(x: int) -> int:
    x ^= x >> 27 ^ x >> 54  # the inverse of x ^ x >> 27
    x = x * _SECOND_INVERSE & _MASK
    x ^= x >> 33
    x = x * _FIRST_INVERSE & _MASK
    return x ^ x >> 27 ^ x >> 54


def _schedule(secret: bytes, service: str) -> list[tuple[int, int]]:
    """Return the two round keys of each XTEA cycle, from HKDF-SHA256(secret, no salt, 16 bytes)."""
    info = _INFO if service == "default" else _INFO + b"/" + service.encode()
    prk = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    key = struct.unpack(">4I", hmac.new(prk, info + b"\x01", hashlib.sha256).digest()[:16])
    sums = [_DELTA * i & 0xFFFFFFFF for i in range(_CYCLES + 1)]
    return [(s + key[s & 3] & 0xFFFFFFFF, t + key[t >> 11 & 3] & 0xFFFFFFFF) for s, t in zip(sums, sums[1:])]


class ExternalCodec:
    """Turns IDs into external IDs and back, as a daemon with the same secret does.

    The secret is the content of the daemon's external_secret_file: bytes, or text as UTF-8. Anyone who
    has it can decode every external ID; with another secret, published IDs cannot be decoded any more.
    The service is part of the key, so that services that share a secret cannot be linked.
    """

    def __init__(self, secret: str | bytes, service: str = "default") -> None:
        raw = secret.encode() if isinstance(secret, str) else bytes(secret)
        if not raw:
            raise InvalidParamsError("the secret is empty: use ExternalCodec.plain() to go without one")
        self._rounds: list[tuple[int, int]] | None = _schedule(raw, service)

    @classmethod
    def plain(cls) -> ExternalCodec:
        """Return the codec of a service without a secret: anyone can decode its external IDs."""
        codec = cls.__new__(cls)
        codec._rounds = None
        return codec

    def encode(self, id: int) -> str:
        """Return the external ID, 11 characters of base64url."""
        if not 0 <= id <= _MAX_ID:
            raise InvalidParamsError(f"{id} is no ID: want 0 to 2^63 - 1")
        return base64.urlsafe_b64encode(struct.pack(">Q", self._encrypt(id)))[:11].decode()

    def decode(self, text: str, *, max_id: int | None = None) -> int:
        """Return the ID. Each ID has one external form only; other texts raise an InvalidExternalIDError.

        With max_id (see Client.bounds), a larger ID is refused too: a forged text then fails
        with high probability.
        """
        try:
            raw = base64.b64decode(text.encode("ascii") + b"=", altchars=b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error):
            raise InvalidExternalIDError(f"{text[:64]!r} is not 11 characters of base64url") from None
        if len(raw) != 8 or base64.urlsafe_b64encode(raw)[:11].decode() != text:
            raise InvalidExternalIDError(f"{text[:64]!r} is not an external ID in its one spelling")
        id: int = self._decrypt(struct.unpack(">Q", raw)[0])
        if id > _MAX_ID:
            raise InvalidExternalIDError(f"{text!r} is no external ID: its reserve bit is set")
        if max_id is not None and id > max_id:
            raise InvalidExternalIDError(f"{text!r} is no external ID: it would be of a later time than plausible")
        return id

    def _encrypt(self, x: int) -> int:
        if self._rounds is None:
            return _mix(x)
        high, low = x >> 32, x & 0xFFFFFFFF
        for first, second in self._rounds:
            high = high + (((low << 4 ^ low >> 5) + low & 0xFFFFFFFF) ^ first) & 0xFFFFFFFF
            low = low + (((high << 4 ^ high >> 5) + high & 0xFFFFFFFF) ^ second) & 0xFFFFFFFF
        return high << 32 | low

    def _decrypt(self, x: int) -> int:
        if self._rounds is None:
            return _unmix(x)
        high, low = x >> 32, x & 0xFFFFFFFF
        for first, second in reversed(self._rounds):
            low = low - (((high << 4 ^ high >> 5) + high & 0xFFFFFFFF) ^ second) & 0xFFFFFFFF
            high = high - (((low << 4 ^ low >> 5) + low & 0xFFFFFFFF) ^ first) & 0xFFFFFFFF
        return high << 32 | low
