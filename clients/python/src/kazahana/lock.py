"""Locks."""

from __future__ import annotations

import asyncio
import os
import threading
from time import monotonic
from typing import Callable, Generic, TypeVar

from .aio import AsyncChannel
from .calls import Calls, LockState
from .errors import KazahanaError, LockExpiredError, LockLostError, RequestIDReusedError
from .sync import Channel

C = TypeVar("C")

# Results of a grant whose connection broke before the lock was watched: acquire asks again.
LOST_AT_ONCE = (LockLostError, LockExpiredError, RequestIDReusedError)


class Lost:
    """The loss of a lock, like a threading.Event. It reads the connection when it is asked."""

    def __init__(self, check: Callable[[float | None], str | None]) -> None:
        self._check = check
        self._reason: str | None = None
        self.given_back = False  # the daemon's reason is also "released" if another connection released the lock

    @property
    def reason(self) -> str | None:
        """expired, taken_over, refused, unavailable, disconnected, forked or released; None while the lock is held"""
        if self._reason is None:
            self._reason = self._check(0)
        return self._reason

    def is_set(self) -> bool:
        return self.reason is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lock is lost or released, at most timeout seconds; report whether it is."""
        if self._reason is None:
            self._reason = self._check(timeout)
        return self._reason is not None


class _Asked(Generic[C]):
    """The wanted and the granted lock, on a channel of type C."""

    def __init__(self, open_channel: Callable[[], C], calls: Calls, key: str, ttl: float, wait: float) -> None:
        self.key = key
        self._open, self._calls, self._ttl, self._wait = open_channel, calls, ttl, wait
        self._channel: C | None = None
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
        if self._channel is not None:
            raise RuntimeError(f"the lock {self.key!r} is held by this object already")
        self._reused = False
        return monotonic() + self._calls.timeout + self._wait

    def _may_ask_again(self, error: BaseException, deadline: float) -> bool:
        """Report whether a new request may succeed. One that is refused as reused again says why to the caller."""
        if not isinstance(error, LOST_AT_ONCE) or monotonic() >= deadline:
            return False
        before, self._reused = self._reused, self._reused or isinstance(error, RequestIDReusedError)
        return not (before and isinstance(error, RequestIDReusedError))


class Lock(_Asked[Channel]):
    """A lock that the daemon holds and renews while this object's own connection lives.

    Send `token`, which grows with every holder, with each write to the resource that the lock protects,
    and let the resource refuse smaller tokens. `lost` is set when the lock is lost; on_lost(reason),
    if given, is called then, in a thread of its own. Leaving the block raises a LockLostError if
    the lock was lost inside.
    """

    def __init__(
        self,
        open_channel: Callable[[], Channel],
        calls: Calls,
        key: str,
        ttl: float,
        wait: float,
        on_lost: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__(open_channel, calls, key, ttl, wait)
        self._on_lost = on_lost
        self._pid = 0
        self.lost = Lost(self._check)

    def acquire(self) -> Lock:
        """Take the lock, or raise a LockHeldError when it is not free within `wait` seconds."""
        deadline = self._deadline()
        while True:
            channel = self._open()
            try:
                state = channel.perform(self._calls.acquire(self.key, self._ttl, self._wait))
                channel.pin()
                self._state = channel.perform(self._calls.watch(self.key, state.lease_id))
                break
            except BaseException as error:
                channel.close()  # which gives back what was granted
                if not self._may_ask_again(error, deadline):
                    raise
        self._channel, self._pid, self.lost = channel, os.getpid(), Lost(self._check)
        if self._on_lost is not None:
            threading.Thread(target=self._report, args=(self.lost,), name=f"lock {self.key}", daemon=True).start()
        return self

    def release(self) -> None:
        """Give the lock back, or raise a LockLostError if it was lost before."""
        channel, reason = self._channel, self.lost.reason
        if channel is None:
            return
        self.lost.given_back = reason is None
        self._channel = None
        try:
            if reason is None:
                channel.perform(self._calls.release(self.key, self.state.lease_id))
            elif reason != "forked":
                raise LockLostError(f"the lock {self.key!r} was lost before it was released", reason=reason)
        finally:
            channel.close()

    def __enter__(self) -> Lock:
        return self.acquire()

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.release()
        except KazahanaError:
            if kind is None:  # an error of the block tells more
                raise

    def _check(self, timeout: float | None) -> str | None:
        channel = self._channel
        if channel is None:
            return "released"
        if os.getpid() != self._pid:
            return "forked"
        reason = channel.listen(timeout)
        return "released" if self._channel is None else reason

    def _report(self, lost: Lost) -> None:
        lost.wait()
        if not lost.given_back and self._on_lost is not None:
            self._on_lost(lost.reason or "lost")


class AsyncLock(_Asked[AsyncChannel]):
    """A lock that the daemon holds, and renews, for as long as this object's own connection lives.

    Like Lock, for `async with`. `lost` is set when the lock is lost, and `lost_reason` says why.
    """

    def __init__(
        self, open_channel: Callable[[], AsyncChannel], calls: Calls, key: str, ttl: float, wait: float
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
            channel = self._open()
            try:
                state = await channel.perform(self._calls.acquire(self.key, self._ttl, self._wait))
                channel.pin()
                self._state = await channel.perform(self._calls.watch(self.key, state.lease_id))
                break
            except BaseException as error:
                channel.close()  # which gives back what was granted
                if not self._may_ask_again(error, deadline):
                    raise
        self._channel, self._lost, self.lost_reason = channel, asyncio.Event(), None
        self._listening = asyncio.ensure_future(self._listen(channel))
        return self

    async def release(self) -> None:
        """Give the lock back, or raise a LockLostError if it was lost before."""
        channel, self._channel = self._channel, None
        if channel is None or self._listening is None:
            return
        self._listening.cancel()
        try:
            if self.lost_reason is not None:
                raise LockLostError(f"the lock {self.key!r} was lost before it was released", reason=self.lost_reason)
            await channel.perform(self._calls.release(self.key, self.state.lease_id))
        finally:
            channel.close()

    async def __aenter__(self) -> AsyncLock:
        return await self.acquire()

    async def __aexit__(self, kind: object, *_: object) -> None:
        try:
            await self.release()
        except KazahanaError:
            if kind is None:  # an error of the block tells more
                raise

    async def _listen(self, channel: AsyncChannel) -> None:
        self.lost_reason = await channel.listen()
        self.lost.set()
