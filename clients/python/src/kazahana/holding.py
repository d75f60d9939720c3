"""The connections that hold locks."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from dataclasses import dataclass
from typing import Any, Callable, TypeVar

from . import aio, fork, sync
from .base import CHUNK, QUIET
from .clock import monotonic, now, sleep
from .errors import ClientClosedError, DaemonUnavailableError, KazahanaError, ShuttingDownError, lost
from .lockerrors import LockLostError, LockNotFoundError
from .other import record
from .protocol import ANSWER, MAX_TIMEOUT, Call

T = TypeVar("T")

INF = float("inf")
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


def active(state: LockState) -> LockState:
    if state.state != "ACTIVE":
        raise LockLostError(f"the lock {state.lock_key!r} was lost as soon as it was granted")
    return state


def disconnected(error: KazahanaError) -> LockLostError:
    return LockLostError(f"the connection that held the lock was lost: {error.message}", reason="disconnected")


class Term:
    """How long the lock is certainly held, and when to ask for it: a daemon that is frozen says nothing.

    Times are those of clock.now, which counts on while the machine is suspended.
    """

    def __init__(self, state: LockState, asked: float) -> None:
        self.call = Call("Lock.Get", [state.lock_key], lock_state, MAX_TIMEOUT, {})
        self._lease = state.lease_id
        self._stale = 0
        self._confirm(state, asked)

    def _confirm(self, state: LockState, asked: float) -> str | None:
        self.asked: float | None = None  # when the request was sent that is not answered yet
        self._length = state.expires_in_ms / 1000
        self.until = asked + self._length  # an answer counts from before the request
        self.next = asked + self._length / 3  # when to ask, or while that is unanswered, to give up
        self._stale = self._stale + 1 if self.until <= now() else 0
        if state.lease_id != self._lease:
            return "taken_over"
        if state.state != "ACTIVE":
            return state.state.lower()
        return "expired" if self._stale >= STALE else None

    def ask(self) -> None:
        """Note that the daemon is asked now."""
        self.asked, part = now(), self._length / 10
        self.next = self.until
        if self.asked + part >= self.until:
            # This process may have been stopped, or nobody may have looked: the daemon may have renewed the lock.
            self.next = self.asked + min(max(part, LATE), MAX_LATE)

    def take(self, error: KazahanaError | None, result: Any) -> str | None:
        """Take the answer; return why the lock is lost, if it is."""
        if error is None:
            return self._confirm(self.call.parse(result), self.asked or 0.0)
        if isinstance(error, LockNotFoundError):
            return "expired"
        again = now() + self._length / 10
        if again < self.until:
            self.asked, self.next = None, again
        return None

    def loss(self, message: list[Any]) -> str | None:
        """Return why the lock is lost, if the message of the daemon says that it is."""
        if message[0] == ANSWER:
            return self.take(message[2], message[3])
        about = message[2][0] if isinstance(message[2], list) and message[2] else None
        if message[1] != "Lock.Lost":
            return None
        return str(about.get("reason", "lost")) if isinstance(about, dict) else "lost"


class Holding(sync.Connection):
    """The connection that holds a lock. After the lock is watched, any thread may listen."""

    term: Term
    state: LockState

    def __init__(self, path: str) -> None:
        self._reason: str | None = None  # why the lock is lost
        self._reading = threading.Lock()  # nobody waits for anything while holding it
        self.is_given_back = False
        super().__init__(path)

    def watch(self, call: Call[LockState], deadline: float) -> None:
        """Perform Lock.Watch."""
        asked = now()
        self.state = active(self.perform(call, deadline))
        self.term = Term(self.state, asked)

    def listen(self, timeout: float | None) -> str | None:
        """Wait for the loss of the lock; return the reason, None if there is none in time.

        It takes longer, but not much, if nobody has asked for so long that only the daemon can tell.
        """
        fork.look()
        deadline = INF if timeout is None else monotonic() + timeout
        while True:
            with self._reading:
                if self._reason is None:
                    self._look()
                if self._reason is not None:
                    return self._reason
                at = now()
                pause, is_certain = self.term.next - at, at < self.term.until
            remaining = deadline - monotonic()
            if is_certain and remaining <= 0:
                return None
            self._wait(max(0.0, min(pause, remaining if is_certain else INF, LOOK)))

    def release(self, call: Call[T]) -> None:
        """Perform Lock.Release, and close. Nobody else reads from now on."""
        with self._reading:
            self._reason, self.is_given_back = "released", True
        try:
            self.perform(call)
        finally:
            self.end()

    def end(self) -> None:
        """Wake whoever listens, and close."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.close()

    def perform(self, call: Call[T], deadline: float = INF) -> T:
        """Perform a call that cannot be repeated on another connection."""
        try:
            return call.parse(self.call(call, min(deadline, monotonic() + call.timeout)))
        except GONE as error:
            raise disconnected(error) from error

    def notice(self, message: list[Any]) -> None:
        if self._reason is None:
            self._reason = self.term.loss(message)

    def _after_fork(self) -> None:
        self._reason, self._reading = self._reason or "forked", threading.Lock()
        self.close()

    def _look(self) -> None:
        """Read what is there without waiting, and ask if it is time."""
        try:
            self._socket.settimeout(0.0)
            with contextlib.suppress(BlockingIOError):
                while data := self._socket.recv(CHUNK):
                    for message in self._reader.feed(data):
                        self.notice(message)
                raise lost(self.path)
            if self._reason is None and now() >= self.term.next:
                if self.term.asked is None:
                    self.term.ask()
                    self._socket.send(self._request(self.term.call), QUIET)
                else:
                    self._reason = "unavailable"
        except (OSError, KazahanaError):
            self._reason = self._reason or "disconnected"
        finally:
            with contextlib.suppress(OSError):
                self._socket.settimeout(None)

    def _wait(self, timeout: float) -> None:
        """Wait until there is something to read."""
        with contextlib.suppress(OSError, ValueError):  # it is closed
            if hasattr(select, "poll"):  # which knows no limit of descriptors, and which eventlet takes away
                poller = select.poll()
                poller.register(self._socket, select.POLLIN)
                poller.poll(timeout * 1000 + 1)
            else:
                select.select([self._socket], [], [], timeout)


class AsyncHolding(aio.Connection):
    """The connection that holds a lock. `lost` is set when the lock is lost, and `reason` says why."""

    term: Term
    state: LockState

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self.lost = asyncio.Event()
        self.reason: str | None = None
        self._asking: asyncio.Future[None] | None = None
        super().__init__(path, loop)

    async def watch(self, call: Call[LockState], deadline: float) -> None:
        """Perform Lock.Watch; from then on, ask for the lock from time to time."""
        asked = now()
        self.state = active(await self.perform(call, deadline))
        self.term = Term(self.state, asked)
        self._asking = asyncio.ensure_future(self._ask())

    def end(self) -> None:
        """Close. Whoever waits for the loss is told that the lock was released."""
        self._lose("released")
        self.fail(ClientClosedError("the lock was released"))

    async def perform(self, call: Call[T], deadline: float = INF) -> T:
        """Perform a call that cannot be repeated on another connection."""
        try:
            return call.parse(await self.call(call, min(deadline, monotonic() + call.timeout)))
        except GONE as error:
            raise disconnected(error) from error

    def notice(self, message: list[Any]) -> None:
        self._lose(self.term.loss(message))

    def fail(self, error: KazahanaError) -> None:
        super().fail(error)
        if not self.loop.is_closed():
            self._lose("disconnected")
            if self._asking is not None:
                self._asking.cancel()

    def _lose(self, reason: str | None) -> None:
        if reason is not None and self.reason is None:
            self.reason = reason
            self.lost.set()

    async def _ask(self) -> None:
        """Ask for the lock from time to time."""
        term = self.term
        while self.reason is None:
            while (left := term.next - now()) > 0:
                await sleep(min(left, LOOK))
            if term.asked is not None:
                return self._lose("unavailable")
            term.ask()
            try:
                self._lose(term.take(None, await self.call(term.call, monotonic() + term.next - now())))
            except KazahanaError as error:
                self._lose(term.take(error, None))
        return None
