"""The errors of locks and sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import KazahanaError


class LockHeldError(KazahanaError, code="LOCK_HELD"):
    """Another owner holds the lock."""

    retry_after_ms: int = 0
    owner: str = ""


class LockNotOwnedError(KazahanaError, code="LOCK_NOT_OWNED"):
    """The lock is held, but not by this lease."""


class LockExpiredError(KazahanaError, code="LOCK_EXPIRED"):
    """The lock's term is over."""


class LockLostError(KazahanaError, code="LOCK_LOST"):
    """A lock was lost before it was released: another holder may have acted at the same time."""

    reason: str = ""


class LockNotFoundError(KazahanaError, code="LOCK_NOT_FOUND"):
    """The lock was never held."""


class LockFencedError(KazahanaError, code="LOCK_FENCED"):
    """The store may have forgotten locks: none is granted before `until_ms` (Unix time)."""

    until_ms: int = 0


class SequenceExhaustedError(KazahanaError, code="SEQUENCE_EXHAUSTED"):
    """The sequence has reached its largest value."""

    max_value: int = 0


class SequenceFencedError(KazahanaError, code="SEQUENCE_FENCED"):
    """The store may have forgotten values: none is given before `until_ms` (Unix time)."""

    until_ms: int = 0


class RequestIDReusedError(KazahanaError, code="REQUEST_ID_REUSED"):
    """A request ID was reused for another request."""


class StoreUnavailableError(KazahanaError, code="STORE_UNAVAILABLE"):
    """The store of locks and sequences does not answer the daemon."""

    cause: str = ""


class StoreFullError(KazahanaError, code="STORE_FULL"):
    """The store has no room for a new key: `setting` is max_keys, max_disk, or "" where the disk is full."""

    setting: str = ""
    limit: int = 0


class NoStoreError(KazahanaError, code="NO_STORE"):
    """The daemon keeps no locks and sequences."""


if not TYPE_CHECKING:  # see errors
    __all__ = [name for name in dir() if name.endswith("Error")]
