"""The connections that hold locks."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from dataclasses import dataclass
from typing import Any, Callable, TypeVar

from . import aio, sync
from .base import QUIET
from .calls import record
from .clock import monotonic, now, sleep
from .errors import ClientClosedError, DaemonUnavailableError, KazahanaError, ShuttingDownError
from .lockerrors import LockLostError, LockNotFoundError
from .protocol import INF, MAX_TIMEOUT, Call, Unasked

T = TypeVar("T")

# Errors of the lock's own connection, with which the lock is lost.
GONE = (DaemonUnavailableError, ShuttingDownError)
LATE, MAX_LATE = 1.0, 10.0  # s, at least and at most, for the answer to a question that was not asked in time
LOOK = 1.0  # s; a sleep does not count time while the machine is suspended, so it is no longer than this
STALE = 3  # answers, in a row, that were over when they arrived


@dataclass(frozen=True)
class LockState:
    """A lock as the daemon reports it; times are by the store's clock."""

    lock_key: str
    lease_id: str
    owner_id: str
    fencing_token: int
    state: str
    """ACTIVE, RELEASED or EXPIRED"""
    acquired_at: str
    expires_at: str
    expires_in_ms: int
    tenant_id: str = ""


lock_state: Callable[[Any], LockState] = record(LockState)


def _reason(unasked: Unasked) -> str | None:
    """Return why the lock is lost, if the notification says that it is."""
    if unasked.method != "Lock.Lost":
        return None
    about = unasked.params[0] if isinstance(unasked.params, list) and unasked.params else None
    return str(about.get("reason", "lost")) if isinstance(about, dict) else "lost"


class Term:
    """How long the lock is certainly held, and when to ask for it: a daemon that is frozen says nothing.

    Times are those of clock.now, which counts on while the machine is suspended.
    """

    def __init__(self, state: LockState, asked: float) -> None:
        self.call = Call("Lock.Get", [state.lock_key], lock_state, MAX_TIMEOUT)
        self._lease = state.lease_id
        self._stale = 0
        self.asked: float | None = None  # when the request was sent that is not answered yet
        self._confirm(state, asked)

    def _confirm(self, state: LockState, asked: float) -> str | None:
        """Take an answer, which counts from before the request; return why the lock is lost, if it is."""
        self.asked, self._is_repeated = None, False
        self._length = state.expires_in_ms / 1000
        self.until = asked + self._length
        self.next = asked + self._length / 3  # when to ask, or while that is unanswered, to give up
        self._stale = self._stale + 1 if self.until <= now() else 0
        if state.lease_id != self._lease:
            return "taken_over"
        return state.state.lower() if state.state != "ACTIVE" else "expired" if self._stale >= STALE else None

    def ask(self) -> float:
        """Note that the daemon is asked now; return how long to wait for its answer."""
        self.asked, part = now(), self._length / 10
        self.next = self.until
        # This process may have been stopped, or nobody may have looked: the daemon may have renewed the lock.
        if self.asked + (0 if self._is_repeated else part) >= self.until:
            self.next = self.asked + min(max(part, LATE), MAX_LATE)
        return self.next - self.asked

    def take(self, error: KazahanaError | None, result: Any) -> str | None:
        """Take the outcome; return why the lock is lost, if it is."""
        at, asked = now(), self.asked or 0.0
        if error is None:
            return self._confirm(self.call.parse(result), asked)
        if isinstance(error, LockNotFoundError):
            return "expired"
        if asked >= self.until or at >= self.next:
            return "unavailable"
        self.asked, self.next, self._is_repeated = None, min(at + self._length / 10, self.until), True
        return None


class Holding(sync.Connection):
    """The connection that holds a lock. After the lock is watched, any thread may listen."""

    _term: Term

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._reason: str | None = None  # why the lock is lost
        self._reading = threading.Lock()  # nobody waits for anything while holding it
        self._silent = False

    def watch(self, call: Call[LockState], deadline: float) -> LockState:
        """Perform Lock.Watch."""
        asked = now()
        state = self.perform(call, deadline)
        self._term = Term(state, asked)
        return state

    def listen(self, timeout: float | None) -> str | None:
        """Wait for the loss of the lock; return the reason, None if there is none in time.

        It takes longer, but not much, if nobody has asked for so long that only the daemon can tell.
        """
        deadline = monotonic() + (threading.TIMEOUT_MAX if timeout is None else timeout)
        while True:
            with self._reading:
                if self._reason is None and not self._silent:
                    self._look()
                if self._reason is not None or self._silent:
                    return self._reason
                at = now()
                pause, is_certain = self._term.next - at, at < self._term.until
            remaining = deadline - monotonic()
            if is_certain and remaining <= 0:
                return None
            self._readable(max(0.0, min(pause, remaining if is_certain else INF, LOOK)))

    def release(self, call: Call[T]) -> T:
        """Perform the lock's last call. Nobody else reads from now on."""
        with self._reading:
            self._silent = True
            self._session.waiting.clear()
        return self.perform(call)

    def perform(self, call: Call[T], deadline: float = INF) -> T:
        """Perform a call that cannot be repeated on another connection."""
        try:
            return call.parse(self.call(call, min(deadline, monotonic() + call.timeout)))
        except GONE as error:
            raise LockLostError("the connection that held the lock was lost", reason="disconnected") from error

    def _look(self) -> None:
        """Read what is there; ask if it is time. A lost lock's connection is stopped, which wakes all who listen."""
        at = now()
        try:
            self._take()
            if self._reason is None and at >= self._term.next:
                if self._term.asked is None:
                    self._term.ask()
                    self._at_once(self._socket.send, self._session.request(self._term.call, self), QUIET)
                else:
                    self._reason = "unavailable"
        except (OSError, KazahanaError):
            self._reason = "disconnected"
        if self._reason is not None:
            self.stop()

    def _take(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._reason is None:
                data = self._at_once(self._socket.recv, 4096, 0)
                if not data:
                    raise OSError
                answers = self._session.feed(data)
                self.notice()
                for _, error, result in answers:
                    self._reason = self._reason or self._term.take(error, result)

    def _at_once(self, operate: Callable[[Any, int], T], what: Any, flags: int) -> T:
        """Send or receive without waiting, also where sockets are green: they look at their timeout, not at flags."""
        if self._is_native:
            return operate(what, flags | socket.MSG_DONTWAIT)
        self._socket.settimeout(0.0)
        try:
            return operate(what, flags)
        finally:
            self._socket.settimeout(None)

    def notice(self) -> None:
        for unasked in self._session.unasked:
            self._reason = self._reason or _reason(unasked)
        self._session.unasked.clear()

    def _readable(self, timeout: float) -> None:
        with contextlib.suppress(OSError, ValueError):  # it is closed
            if hasattr(select, "poll"):  # which knows no limit of descriptors, and which eventlet takes away
                poller = select.poll()
                poller.register(self._socket, select.POLLIN)
                poller.poll(timeout * 1000 + 1)
            else:
                select.select([self._socket], [], [], timeout)


class AsyncHolding(aio.Connection):
    """The connection that holds a lock."""

    _term: Term

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(path, loop)
        self._lost: asyncio.Future[str] = loop.create_future()

    def notice(self, unasked: Unasked) -> None:
        self._lose(_reason(unasked))

    def fail(self, error: KazahanaError) -> None:
        super().fail(error)
        if not self.loop.is_closed():
            self._lose("disconnected")

    def _lose(self, reason: str | None) -> None:
        if reason is not None and not self._lost.done():
            self._lost.set_result(reason)

    async def watch(self, call: Call[LockState], deadline: float) -> LockState:
        """Perform Lock.Watch."""
        asked = now()
        state = await self.perform(call, deadline)
        self._term = Term(state, asked)
        return state

    async def listen(self) -> str:
        asking = asyncio.ensure_future(self._ask())
        try:
            return await asyncio.shield(self._lost)
        finally:
            asking.cancel()

    async def _ask(self) -> None:
        """Ask for the lock from time to time."""
        term = self._term
        while not self._lost.done():
            while (left := term.next - now()) > 0:
                await sleep(min(left, LOOK))
            deadline = term.ask() + monotonic()
            try:
                self._lose(term.take(None, await self.call(term.call, deadline)))
            except KazahanaError as error:
                self._lose(term.take(error, None))

    async def perform(self, call: Call[T], deadline: float = INF) -> T:
        """Perform a call that cannot be repeated on another connection."""
        try:
            return call.parse(await self.call(call, min(deadline, monotonic() + call.timeout)))
        except GONE as error:
            raise LockLostError("the connection that held the lock was lost", reason="disconnected") from error

    def close(self) -> None:
        self.fail(ClientClosedError("the lock was released"))
