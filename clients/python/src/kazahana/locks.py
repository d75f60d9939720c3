"""Locks and sequences."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable
from functools import partial
from typing import Any, Callable, Generic, TypeVar

from . import fork
from .connections import run
from .errors import InvalidParamsError, KazahanaError
from .holding import AsyncHolding, Holding, LockState as LockState, lock_state
from .lockerrors import LockExpiredError, LockLostError, RequestIDReusedError
from .protocol import MAX_TIMEOUT, Call, Calls, exactly, values

H = TypeVar("H", Holding, AsyncHolding)


def request_id() -> str:
    """Return a random ID."""
    return uuid.uuid4().hex


def _next(calls: Calls, key: str, timeout: float | None, options: Any) -> Call[int]:
    return calls.make("Sequence.Next", [key], partial(exactly, int), timeout, **{"request_id": request_id(), **options})


def _batch(calls: Calls, key: str, n: int, timeout: float | None, options: Any) -> Call[list[int]]:
    options = {"request_id": request_id(), **options}
    return calls.make("Sequence.NextBatch", [key, n], partial(values, int, n), timeout, **options)


class Locks:
    """The locks and sequences of a Client."""

    _calls: Calls
    _perform: Callable[[Call[Any]], Any]

    def next_sequence(self, key: str, *, timeout: float | None = None, **options: Any) -> int:
        """Return the next value of a sequence. Options are the daemon's: block, step, max_value, ..."""
        return int(self._perform(_next(self._calls, key, timeout, options)))

    def next_sequences(self, key: str, n: int, *, timeout: float | None = None, **options: Any) -> list[int]:
        """Return the next n values, ascending; n is 1 to 65,536."""
        return list(self._perform(_batch(self._calls, key, n, timeout, options)))

    def lock(self, key: str, *, ttl: float = 30.0, wait: float = 0.0) -> Lock:
        """Return a lock for a `with` block; see Lock."""
        return Lock(self, key, ttl, wait)


class AsyncLocks:
    """The locks and sequences of an AsyncClient."""

    _calls: Calls
    _perform: Callable[[Call[Any]], Awaitable[Any]]

    async def next_sequence(self, key: str, *, timeout: float | None = None, **options: Any) -> int:
        """Return the next value of a sequence. Options are the daemon's: block, step, max_value, ..."""
        return int(await self._perform(_next(self._calls, key, timeout, options)))

    async def next_sequences(self, key: str, n: int, *, timeout: float | None = None, **options: Any) -> list[int]:
        """Return the next n values, ascending; n is 1 to 65,536."""
        return list(await self._perform(_batch(self._calls, key, n, timeout, options)))

    def lock(self, key: str, *, ttl: float = 30.0, wait: float = 0.0) -> AsyncLock:
        """Return a lock for an `async with` block; see AsyncLock."""
        return AsyncLock(self, key, ttl, wait)


class Lost:
    """The loss of a lock, like a threading.Event. It reads the connection when it is asked."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding

    @property
    def reason(self) -> str | None:
        """expired, taken_over, refused, unavailable, disconnected, forked or released; None while the lock is held"""
        return self._holding.reason

    def is_set(self) -> bool:
        return self.reason is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lock is lost or released, at most timeout seconds; report whether it is."""
        return self._holding.listen(timeout) is not None


class _Wanted(Generic[H]):
    """The lock that is wanted, and the connection of type H that holds it.

    Its coroutines serve both clients, as those of AnyClient do.
    """

    _kind: type[H]

    def __init__(self, client: Any, key: str, ttl: float, wait: float) -> None:
        self.key = key
        self._client, self._ttl, self._wait = client, ttl, wait
        self._is_held = False
        self._last: H | None = None  # the connection that holds it, or that did last

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every earlier holder."""
        return self.state.fencing_token

    @property
    def state(self) -> LockState:
        """The daemon's answer when the lock was taken."""
        return self._holding.state

    @property
    def _holding(self) -> H:
        if self._last is None:
            raise RuntimeError(f"the lock {self.key!r} has not been acquired")
        return self._last

    async def _take(self) -> None:
        if self._is_held:
            raise RuntimeError(f"the lock {self.key!r} is held by this object already")
        # Anew is a request for what an earlier one was granted and lost.
        self._is_anew, self._request_id = False, request_id()
        self._last = await self._client._performed(self._acquire(), self._begin)
        self._is_held = True

    async def _begin(self, _: Any, deadline: float) -> H:
        """Take the lock on a new connection, and watch it."""
        holding: H = self._client._connect(self._kind)
        try:
            state = lock_state(await holding.answer(self._acquire(), deadline))
            await holding.watch(self._call("Lock.Watch", lease_id=state.lease_id), deadline)
        except BaseException as error:
            holding.end()  # which gives the lease back
            # The connection may have broken before the lock was watched: ask again, with a new request.
            if isinstance(error, (LockLostError, LockExpiredError, RequestIDReusedError)):
                # A new ID is not in use: to hear that it is would say no more the next time.
                error.transient = not (self._is_anew and isinstance(error, RequestIDReusedError))
                self._is_anew, self._request_id = True, request_id()
            raise
        return holding

    async def _give_back(self) -> None:
        fork.look()  # the lock stays with the parent
        if not self._is_held:
            return
        self._is_held = False
        try:
            reason = self._holding.reason
            if reason is None:
                release = self._call("Lock.Release", lease_id=self.state.lease_id, request_id=request_id())
                await self._holding.release(release)
            elif reason != "forked":
                raise LockLostError(f"the lock {self.key!r} was lost before it was released", reason=reason)
        finally:
            self._holding.end()

    async def _leave(self, kind: object) -> None:
        """Give the lock back at the end of a block."""
        try:
            await self._give_back()
        except KazahanaError:
            if kind is None:  # an error of the block tells more
                raise

    def _acquire(self) -> Call[LockState]:
        if not (self._ttl > 0 and self._wait >= 0):
            raise InvalidParamsError(f"ttl={self._ttl} s or wait={self._wait} s is out of range: above 0, at least 0")
        times = {"ttl_ms": max(1, int(self._ttl * 1000)), "wait_ms": int(self._wait * 1000)}
        timeout = min(self._client._calls.timeout + self._wait, MAX_TIMEOUT)
        return self._call("Lock.Acquire", timeout, request_id=self._request_id, hold="connection", **times)

    def _call(self, method: str, timeout: float | None = None, **options: Any) -> Call[LockState]:
        call: Call[LockState] = self._client._calls.make(method, [self.key], lock_state, timeout, **options)
        return call


class Lock(_Wanted[Holding]):
    """A lock that the daemon holds and renews while this object's own connection lives.

    Send `token`, which grows with every holder, with each write to the resource that the lock protects,
    and let the resource refuse smaller tokens. `lost` is set when the lock is lost. Leaving the block raises a
    LockLostError if the lock was lost inside.
    """

    _kind = Holding

    @property
    def lost(self) -> Lost:
        return Lost(self._holding)

    def acquire(self) -> Lock:
        """Take the lock, or raise a LockHeldError when it is not free within `wait` seconds."""
        run(self._take())
        return self

    def release(self) -> None:
        """Give the lock back, or raise a LockLostError if it was lost before."""
        run(self._give_back())

    def __enter__(self) -> Lock:
        return self.acquire()

    def __exit__(self, kind: object, *_: object) -> None:
        run(self._leave(kind))


class AsyncLock(_Wanted[AsyncHolding]):
    """A lock that the daemon holds, and renews, for as long as this object's own connection lives.

    Like Lock, for `async with`. `lost` is set when the lock is lost or released, and `lost_reason` says why.
    """

    _kind = AsyncHolding

    @property
    def lost(self) -> asyncio.Event:
        return self._holding.lost

    @property
    def lost_reason(self) -> str | None:
        return None if self._last is None else self._last.reason

    async def acquire(self) -> AsyncLock:
        """Take the lock, or raise a LockHeldError when it is not free within `wait` seconds."""
        await self._take()
        return self

    async def release(self) -> None:
        """Give the lock back, or raise a LockLostError if it was lost before."""
        await self._give_back()

    async def __aenter__(self) -> AsyncLock:
        return await self.acquire()

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self._leave(kind)
