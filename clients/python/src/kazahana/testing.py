"""Clients for the unit tests of programs that use kazahana: deterministic, and without a daemon."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Callable

import msgpack

from .client import AsyncClient, Client
from .errors import InvalidExternalIDError, InvalidParamsError, KazahanaError, UnknownMethodError, closed
from .external import ExternalCodec
from .holding import LockState
from .lockerrors import LockHeldError, LockNotFoundError
from .protocol import MAX_BATCH, Call

# The layout of a daemon without configuration.
_EPOCH_MS, _LOW_BITS, _SEQUENCE_BITS = 1_767_225_600_000, 22, 8
_MACHINE_ID = 1
_FALLBACK_BIT = 1 << _LOW_BITS - 1
_START_MS = 1_800_000_000_000


class FakeDaemon:
    """The daemon of the fake clients. Its clock stands still unless advance moves it."""

    def __init__(self, secret: str | bytes | None = None) -> None:
        self.now_ms = _START_MS
        self.fallback = False
        """whether IDs are fallback IDs"""
        self.calls: list[tuple[str, list[Any]]] = []
        """the requests so far: method and parameters, in order"""
        self._codec = ExternalCodec.plain() if secret is None else ExternalCodec(secret)
        self._last = 0
        self._uuids = 0
        self._failures: list[tuple[str | None, KazahanaError, float]] = []
        self._sequences: dict[str, int] = {}
        self._locks: dict[str, dict[str, Any]] = {}
        self._tokens = 0
        self._mutex = threading.Lock()
        self._lost: dict[str, Callable[[str], None]] = {}

    def advance(self, ms: int) -> None:
        """Move the clock."""
        self.now_ms += ms

    def fail(self, error: KazahanaError, *, times: float = float("inf"), method: str | None = None) -> None:
        """Make the next `times` calls fail, of the method with that name on the wire ("NextID") or of any."""
        self._failures.append((method, error, times))

    def recover(self) -> None:
        """End the effects of fail."""
        self._failures.clear()

    def lose(self, key: str, reason: str = "expired") -> None:
        """Take a lock from its holder."""
        with self._mutex:
            lock = self._locks[key]
            lock["state"] = "EXPIRED"
            tell = self._lost.pop(lock["lease_id"], None)
        if tell is not None:
            tell(reason)

    def answer(self, method: str, params: Sequence[Any]) -> Any:
        """Carry out a request of the wire."""
        with self._mutex:
            given, options = self.note(method, params)
            handler = getattr(self, "_" + method.replace(".", "_").lower(), None)
            if handler is None:
                raise UnknownMethodError(f"there is no method {method!r}")
            return handler(*given, options)

    def note(self, method: str, params: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Note a request; raise the error that a test wants, or return parameters and options as they arrive."""
        given: list[Any] = msgpack.unpackb(msgpack.packb(list(params)))
        self.calls.append((method, list(given)))
        self._fail(method)
        return given, given.pop() if given and isinstance(given[-1], dict) else {}

    def _fail(self, method: str) -> None:
        for i, (only, error, times) in enumerate(self._failures):
            if only in (None, method):
                self._failures[i] = (only, error, times - 1)
                if times <= 1:
                    del self._failures[i]
                raise error

    def _nextids(self, count: int, options: dict[str, Any]) -> list[Any]:
        if not 1 <= count <= MAX_BATCH:
            raise InvalidParamsError(f"a count of {count} is out of range: 1 to {MAX_BATCH}")
        low = (_FALLBACK_BIT if self.fallback else 0) | _MACHINE_ID << _SEQUENCE_BITS
        ids: list[Any] = []
        for _ in range(count):
            first = self.now_ms - _EPOCH_MS << _LOW_BITS | low
            following = self._last + 1
            if following & (1 << _SEQUENCE_BITS) - 1 == 0:  # this millisecond is used up
                following = (following - 1 >> _LOW_BITS) + 1 << _LOW_BITS | low
            self._last = max(first, following)
            ids.append(self._last)
        formats: dict[str, Callable[[Any], Any]] = {"string": str, "external": self._codec.encode}
        convert = formats.get(options.get("format", "int"))
        return [convert(id) for id in ids] if convert else ids

    def _nextid(self, options: dict[str, Any]) -> Any:
        return self._nextids(1, options)[0]

    def _inspect(self, given: int | str, options: dict[str, Any]) -> dict[str, Any]:
        id = given if isinstance(given, int) else int(given, 0) if given[:1].isdigit() and len(given) != 11 else None
        id = self._codec.decode(str(given)) if id is None else id
        at, low = (id >> _LOW_BITS) + _EPOCH_MS, id & (1 << _LOW_BITS) - 1
        return {
            "id": id,
            "external": self._codec.encode(id),
            "timestamp_ms": at,
            "time": _rfc3339(at),
            "machine_id": (low & ~_FALLBACK_BIT) >> _SEQUENCE_BITS,
            "sequence": low & (1 << _SEQUENCE_BITS) - 1,
            "kind": "fallback" if low & _FALLBACK_BIT else "regular",
            "bit_id": _LOW_BITS - _SEQUENCE_BITS,
            "bit_seq": _SEQUENCE_BITS,
            "epoch_ms": _EPOCH_MS,
        }

    def _bounds(self, start: int, end: int, options: dict[str, Any]) -> list[int]:
        if end <= start:
            raise InvalidParamsError("the interval is empty")
        return [max(start - _EPOCH_MS, 0) << _LOW_BITS, (end - _EPOCH_MS << _LOW_BITS) - 1]

    def _toexternal(self, id: int, options: dict[str, Any]) -> str:
        return self._codec.encode(id)

    def _tointernal(self, external: str, options: dict[str, Any]) -> int:
        id = self._codec.decode(external)
        if (id >> _LOW_BITS) + _EPOCH_MS > options.get("latest_ms", float("inf")):
            raise InvalidExternalIDError(f"{external!r} would be of a later time than plausible")
        return id

    def _uuid(self, *given: Any) -> str:
        version = given[0] if len(given) > 1 else 7
        self._uuids += 1
        bits = (self.now_ms if version == 7 else 0) << 80 | self._uuids
        return str(uuid.UUID(int=bits & ~(0xF << 76 | 3 << 62) | version << 76 | 2 << 62))

    def _status(self, options: dict[str, Any]) -> dict[str, Any]:
        features = ["ids", "external", "uuid", "regular_only", "locks", "sequences", "placement"]
        return {"version": "fake", "features": features, "scope": "unverified", "mode": "regular"}

    def _ping(self, options: dict[str, Any]) -> str:
        return "pong"

    def _sequence_next(self, key: str, options: dict[str, Any]) -> int:
        return self._sequence_nextbatch(key, 1, options)[0]

    def _sequence_nextbatch(self, key: str, count: int, options: dict[str, Any]) -> list[int]:
        step = options.get("step", 1)
        last = self._sequences.get(key, options.get("start", step) - step)
        self._sequences[key] = last + step * count
        return [last + step * (i + 1) for i in range(count)]

    def _lock_acquire(self, key: str, options: dict[str, Any]) -> dict[str, Any]:
        held = self._locks.get(key)
        if held is not None and held["state"] == "ACTIVE":
            raise LockHeldError(f"the lock {key!r} is held", owner=held["owner_id"], retry_after_ms=options["ttl_ms"])
        self._tokens += 1
        self._locks[key] = {
            "tenant_id": "default",
            "lock_key": key,
            "lease_id": f"lease-{self._tokens}",
            "owner_id": "fake",
            "fencing_token": self._tokens,
            "state": "ACTIVE",
            "acquired_at": _rfc3339(self.now_ms),
            "expires_at": _rfc3339(self.now_ms + options["ttl_ms"]),
            "expires_in_ms": options["ttl_ms"],
        }
        return dict(self._locks[key])

    def _lock_get(self, key: str, options: dict[str, Any]) -> dict[str, Any]:
        if key not in self._locks:
            raise LockNotFoundError(f"no lock {key!r} is known")
        return dict(self._locks[key])

    _lock_watch = _lock_get

    def _lock_release(self, key: str, options: dict[str, Any]) -> dict[str, Any]:
        self._locks[key].update(state="RELEASED", expires_in_ms=0)
        self._lost.pop(options["lease_id"], None)
        return dict(self._locks[key])


def _rfc3339(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Connection:
    """A connection of a FakeClient. Any may hold a lock."""

    path = "the fake daemon"
    broken = False
    state: LockState

    def __init__(self, daemon: FakeDaemon) -> None:
        self._daemon = daemon
        self._lease = ""
        self.reason: str | None = None
        self._told = threading.Event()

    def call(self, call: Call[Any], deadline: float) -> Any:
        answer = self._daemon.answer(call.method, call.params)
        if call.method == "Lock.Acquire":
            self._lease = answer["lease_id"]
            self._daemon._lost[self._lease] = self.tell
        return answer

    async def answer(self, call: Call[Any], deadline: float) -> Any:
        return self.call(call, deadline)

    def tell(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._told.set()

    async def watch(self, call: Call[LockState], deadline: float) -> None:
        self.state = call.parse(await self.answer(call, deadline))

    def listen(self, timeout: float | None) -> str | None:
        self._told.wait(timeout)
        return self.reason

    async def release(self, call: Call[Any]) -> None:
        await self.answer(call, 0.0)

    def end(self) -> None:
        """Take back the lock, as the daemon does at the end of a connection."""
        self.tell("released")
        with self._daemon._mutex:
            for lock in self._daemon._locks.values():
                if lock["lease_id"] == self._lease and lock["state"] == "ACTIVE":
                    lock.update(state="RELEASED", expires_in_ms=0)

    def close(self) -> None:
        """Do nothing: there is no socket."""


class _AsyncConnection(_Connection):
    """A connection of an AsyncFakeClient."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self.loop = asyncio.get_running_loop()
        self.lost = asyncio.Event()
        super().__init__(daemon)

    def tell(self, reason: str) -> None:
        super().tell(reason)
        self.lost.set()

    async def call(self, call: Call[Any], deadline: float) -> Any:
        return await self.answer(call, deadline)

    async def answer(self, call: Call[Any], deadline: float) -> Any:
        await asyncio.sleep(0)  # let other tasks run, as with a real daemon
        return super().call(call, deadline)

    def fail(self, error: KazahanaError) -> None:
        self.broken = True


class FakeClient(Client):
    """A Client of a FakeDaemon, its own or one that several clients share."""

    def __init__(self, daemon: FakeDaemon | None = None, **options: Any) -> None:
        self.daemon = daemon or FakeDaemon()
        super().__init__(**options)

    def _connect(self, kind: Any) -> Any:
        if self._closed:
            raise closed()
        return _Connection(self.daemon)

    def _pause(self, error: KazahanaError, *_: Any) -> float:
        raise error  # as it was told to fail, and at once


class AsyncFakeClient(AsyncClient):
    """An AsyncClient of a FakeDaemon, its own or one that several clients share."""

    def __init__(self, daemon: FakeDaemon | None = None, **options: Any) -> None:
        self.daemon = daemon or FakeDaemon()
        super().__init__(**options)

    def _connect(self, kind: Any) -> Any:
        if self._closed:
            raise closed()
        return _AsyncConnection(self.daemon)

    def _pause(self, error: KazahanaError, *_: Any) -> float:
        raise error
