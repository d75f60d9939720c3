"""Locks and sequences."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any, Callable, Generic, TypeVar, cast

from . import aio, fork, sync
from .calls import Calls, count, integer, list_of
from .clock import monotonic
from .errors import InvalidParamsError, KazahanaError
from .holding import AsyncHolding, Holding, LockState as LockState, lock_state
from .lockerrors import LockExpiredError, LockLostError, RequestIDReusedError
from .protocol import MAX_TIMEOUT, Call

C = TypeVar("C")


def request_id() -> str:
    """Return a random ID."""
    return uuid.uuid4().hex


# Results of a grant whose connection broke before the lock was watched: acquire asks again.
LOST_AT_ONCE = (LockLostError, LockExpiredError, RequestIDReusedError)


def _active(value: Any) -> LockState:
    state = lock_state(value)
    if state.state != "ACTIVE":
        raise LockLostError(f"the lock {state.lock_key!r} was lost as soon as it was granted")
    return state


def _acquire(calls: Calls, key: str, ttl: float, wait: float, timeout: float) -> Call[LockState]:
    if not (ttl > 0 and wait >= 0):
        raise InvalidParamsError(f"ttl={ttl} or wait={wait} is out of range: more than 0 s, and at least 0 s")
    options = {
        "ttl_ms": max(1, int(ttl * 1000)),
        "wait_ms": int(wait * 1000),
        "request_id": request_id(),
        "hold": "connection",
    }
    return calls.make("Lock.Acquire", [key], lock_state, timeout, options)


def _watch(calls: Calls, state: LockState) -> Call[LockState]:
    return calls.make("Lock.Watch", [state.lock_key], _active, None, {"lease_id": state.lease_id})


def _release(calls: Calls, state: LockState) -> Call[LockState]:
    options = {"lease_id": state.lease_id, "request_id": request_id()}
    return calls.make("Lock.Release", [state.lock_key], lock_state, None, options)


def _sequence(calls: Calls, key: str, timeout: float | None, options: Mapping[str, Any]) -> Call[int]:
    return calls.make("Sequence.Next", [key], integer, timeout, {"request_id": request_id(), **options})


def _sequences(calls: Calls, key: str, n: int, timeout: float | None, options: Mapping[str, Any]) -> Call[list[int]]:
    options = {"request_id": request_id(), **options}
    return calls.make("Sequence.NextBatch", [key, count(n)], list_of(int, n), timeout, options)


class Locks:
    """The locks and sequences of a Client."""

    _calls: Calls
    _channel: sync.Channel
    _open: Callable[..., sync.Channel]

    def next_sequence(self, key: str, *, timeout: float | None = None, **options: Any) -> int:
        """Return the next value of a sequence. Options are the daemon's: block, step, max_value, ..."""
        return self._channel.perform(_sequence(self._calls, key, timeout, options))

    def next_sequences(self, key: str, n: int, *, timeout: float | None = None, **options: Any) -> list[int]:
        """Return the next n values, ascending; n is 1 to 65,536."""
        return self._channel.perform(_sequences(self._calls, key, n, timeout, options))

    def lock(
        self,
        key: str,
        *,
        ttl: float = 30.0,
        wait: float = 0.0,
        on_lost: Callable[[str], object] | None = None,
    ) -> Lock:
        """Return a lock for a `with` block; see Lock."""
        return Lock(self._open, self._calls, key, ttl, wait, on_lost)


class AsyncLocks:
    """The locks and sequences of an AsyncClient."""

    _calls: Calls
    _channel: aio.AsyncChannel
    _open: Callable[..., aio.AsyncChannel]

    async def next_sequence(self, key: str, *, timeout: float | None = None, **options: Any) -> int:
        """Return the next value of a sequence. Options are the daemon's: block, step, max_value, ..."""
        return await self._channel.perform(_sequence(self._calls, key, timeout, options))

    async def next_sequences(self, key: str, n: int, *, timeout: float | None = None, **options: Any) -> list[int]:
        """Return the next n values, ascending; n is 1 to 65,536."""
        return await self._channel.perform(_sequences(self._calls, key, n, timeout, options))

    def lock(self, key: str, *, ttl: float = 30.0, wait: float = 0.0) -> AsyncLock:
        """Return a lock for an `async with` block; see AsyncLock."""
        return AsyncLock(self._open, self._calls, key, ttl, wait)


class Lost:
    """The loss of a lock, like a threading.Event. It reads the connection when it is asked."""

    def __init__(self, check: Callable[[float | None], str | None]) -> None:
        self._check = check
        self._reason: str | None = None
        self.given_back = False  # the daemon's reason is also "released" if another connection released the lock

    @property
    def reason(self) -> str | None:
        """expired, taken_over, refused, unavailable, disconnected, forked or released; None while the lock is held"""
        self.wait(0)
        return self._reason

    def is_set(self) -> bool:
        return self.reason is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lock is lost or released, at most timeout seconds; report whether it is."""
        if self._reason is None:
            self._reason = self._check(timeout)
        return self._reason is not None


class _Asked(Generic[C]):
    """The wanted and the granted lock, on a connection of type C."""

    def __init__(self, open_channel: Callable[..., Any], calls: Calls, key: str, ttl: float, wait: float) -> None:
        self.key = key
        self._open, self._calls, self._ttl, self._wait = open_channel, calls, ttl, wait
        self._connection: C | None = None
        self._state: LockState | None = None
        self._reused = False

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every earlier holder."""
        return self.state.fencing_token

    @property
    def state(self) -> LockState:
        """The daemon's answer when the lock was taken."""
        if self._state is None:
            raise RuntimeError(f"the lock {self.key!r} has not been acquired")
        return self._state

    def _deadline(self) -> float:
        """Return the deadline of acquire."""
        if self._connection is not None:
            raise RuntimeError(f"the lock {self.key!r} is held by this object already")
        self._reused = False
        return monotonic() + min(self._calls.timeout + self._wait, MAX_TIMEOUT)

    def _request(self, deadline: float) -> Call[LockState]:
        return _acquire(self._calls, self.key, self._ttl, self._wait, max(deadline - monotonic(), 0.001))

    def _may_ask_again(self, error: BaseException, deadline: float) -> bool:
        """Report whether a new request may succeed. One that is refused as reused again says why to the caller."""
        if not isinstance(error, LOST_AT_ONCE) or monotonic() >= deadline:
            return False
        before, self._reused = self._reused, self._reused or isinstance(error, RequestIDReusedError)
        return not (before and isinstance(error, RequestIDReusedError))


class Lock(_Asked[Holding]):
    """A lock that the daemon holds and renews while this object's own connection lives.

    Send `token`, which grows with every holder, with each write to the resource that the lock protects,
    and let the resource refuse smaller tokens. `lost` is set when the lock is lost; on_lost(reason),
    if given, is called then, in a thread of its own. Leaving the block raises a LockLostError if
    the lock was lost inside.
    """

    def __init__(
        self,
        open_channel: Callable[..., sync.Channel],
        calls: Calls,
        key: str,
        ttl: float,
        wait: float,
        on_lost: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__(open_channel, calls, key, ttl, wait)
        self._on_lost = on_lost
        self._pid = 0
        self.lost = Lost(partial(self._check, None))

    def acquire(self) -> Lock:
        """Take the lock, or raise a LockHeldError when it is not free within `wait` seconds."""
        deadline = self._deadline()
        while True:
            channel = self._open(Holding)
            connection: Holding | None = None
            try:
                state = channel.perform(self._request(deadline))
                connection = cast(Holding, channel.detach())
                self._state = connection.watch(_watch(self._calls, state), deadline)
                break
            except BaseException as error:
                (connection or channel).close()  # which gives back what was granted
                if not self._may_ask_again(error, deadline):
                    raise
        self._connection, self._pid, self.lost = connection, os.getpid(), Lost(partial(self._check, connection))
        if self._on_lost is not None:
            threading.Thread(target=self._report, args=(self.lost,), name=f"lock {self.key}", daemon=True).start()
        return self

    def release(self) -> None:
        """Give the lock back, or raise a LockLostError if it was lost before."""
        connection, reason = self._connection, self.lost.reason
        if connection is None:
            return
        self.lost.given_back = reason is None
        self._connection = None
        try:
            if reason is None:
                connection.release(_release(self._calls, self.state))
            elif reason != "forked":
                raise LockLostError(f"the lock {self.key!r} was lost before it was released", reason=reason)
        finally:
            connection.stop()  # which wakes those who listen
            connection.close()

    def __enter__(self) -> Lock:
        return self.acquire()

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.release()
        except KazahanaError:
            if kind is None:  # an error of the block tells more
                raise

    def _check(self, connection: Holding | None, timeout: float | None) -> str | None:
        if connection is None or connection is not self._connection:
            return "released"
        fork.look()  # the daemon must notice when the parent ends
        if os.getpid() != self._pid:
            return "forked"
        reason = connection.listen(timeout)
        return reason if connection is self._connection else "released"

    def _report(self, lost: Lost) -> None:
        lost.wait()
        if not lost.given_back and self._on_lost is not None:
            self._on_lost(lost.reason or "lost")


class AsyncLock(_Asked[AsyncHolding]):
    """A lock that the daemon holds, and renews, for as long as this object's own connection lives.

    Like Lock, for `async with`. `lost` is set when the lock is lost, and `lost_reason` says why.
    """

    def __init__(
        self, open_channel: Callable[..., aio.AsyncChannel], calls: Calls, key: str, ttl: float, wait: float
    ) -> None:
        super().__init__(open_channel, calls, key, ttl, wait)
        self.lost_reason: str | None = None
        self._lost: asyncio.Event | None = None  # made by acquire, in its loop
        self._listening: asyncio.Task[None] | None = None

    @property
    def lost(self) -> asyncio.Event:
        if self._lost is None:
            raise RuntimeError(f"the lock {self.key!r} has not been acquired")
        return self._lost

    async def acquire(self) -> AsyncLock:
        """Take the lock, or raise a LockHeldError when it is not free within `wait` seconds."""
        deadline = self._deadline()
        while True:
            channel = self._open(AsyncHolding)
            connection: AsyncHolding | None = None
            try:
                state = await channel.perform(self._request(deadline))
                connection = cast(AsyncHolding, channel.detach())
                self._state = await connection.watch(_watch(self._calls, state), deadline)
                break
            except BaseException as error:
                (connection or channel).close()  # which gives back what was granted
                if not self._may_ask_again(error, deadline):
                    raise
        self._connection, self._lost, self.lost_reason = connection, asyncio.Event(), None
        self._listening = asyncio.ensure_future(self._listen(connection))
        return self

    async def release(self) -> None:
        """Give the lock back, or raise a LockLostError if it was lost before."""
        fork.look()  # the lock stays with the parent
        connection, self._connection = self._connection, None
        if connection is None or self._listening is None:
            return
        self._listening.cancel()
        try:
            if self.lost_reason is not None:
                raise LockLostError(f"the lock {self.key!r} was lost before it was released", reason=self.lost_reason)
            await connection.perform(_release(self._calls, self.state))
        finally:
            connection.close()

    async def __aenter__(self) -> AsyncLock:
        return await self.acquire()

    async def __aexit__(self, kind: object, *_: object) -> None:
        try:
            await self.release()
        except KazahanaError:
            if kind is None:  # an error of the block tells more
                raise

    async def _listen(self, connection: AsyncHolding) -> None:
        self.lost_reason = await connection.listen()
        self.lost.set()
