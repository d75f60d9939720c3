"""The errors of locks and sequences."""

from __future__ import annotations

from .errors import KazahanaError


class LockHeldError(KazahanaError):
    """Another owner holds the lock."""

    code = "LOCK_HELD"
    retry_after_ms: int = 0
    owner: str = ""


class LockNotOwnedError(KazahanaError):
    """The lock is held, but not by this lease."""

    code = "LOCK_NOT_OWNED"


class LockExpiredError(KazahanaError):
    """The lock's term is over."""

    code = "LOCK_EXPIRED"


class LockLostError(KazahanaError):
    """A lock was lost before it was released: another holder may have acted at the same time."""

    code = "LOCK_LOST"
    reason: str = ""


class LockNotFoundError(KazahanaError):
    """The lock was never held."""

    code = "LOCK_NOT_FOUND"


class LockFencedError(KazahanaError):
    """The store may have forgotten locks: none is granted before `until_ms` (Unix time)."""

    code = "LOCK_FENCED"
    until_ms: int = 0


class SequenceExhaustedError(KazahanaError):
    """The sequence has reached its largest value."""

    code = "SEQUENCE_EXHAUSTED"
    max_value: int = 0


class SequenceFencedError(KazahanaError):
    """The store may have forgotten values: none is given before `until_ms` (Unix time)."""

    code = "SEQUENCE_FENCED"
    until_ms: int = 0


class RequestIDReusedError(KazahanaError):
    """A request ID was reused for another request."""

    code = "REQUEST_ID_REUSED"


class StoreUnavailableError(KazahanaError):
    """The store of locks and sequences does not answer the daemon."""

    code = "STORE_UNAVAILABLE"
    cause: str = ""


class NoStoreError(KazahanaError):
    """The daemon keeps no locks and sequences."""

    code = "NO_STORE"
