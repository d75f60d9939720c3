"""The connections that hold locks."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import threading
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Callable

from . import fork
from .clock import INF, monotonic, now, within
from .connections import CHUNK, MAX_SHORT_MSGID, QUIET, AsyncConnection, Connection
from .errors import ClientClosedError, DaemonUnavailableError, KazahanaError, ShuttingDownError
from .lockerrors import LockLostError, LockNotFoundError
from .other import record
from .protocol import ANSWER, MAX_TIMEOUT, Call

QUESTION = MAX_SHORT_MSGID + 1  # the msgid of what listen asks: one at a time, and no call has it
LATE = 3.0  # s, for the answer to a question that was not asked in time
LOOK = 1.0  # s; a sleep does not count time while the machine is suspended, so it is no longer than this


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


class Term:
    """How long the lock is certainly held, and when to ask for it: a daemon that is frozen says nothing.

    Times are those of clock.now, which counts on while the machine is suspended.
    """

    def __init__(self, state: LockState, asked: float) -> None:
        self.call = Call("Lock.Get", [state.lock_key], lock_state, MAX_TIMEOUT, {})
        self._lease = state.lease_id
        self._confirm(state, asked)

    def _confirm(self, state: LockState, asked: float) -> str | None:
        self.asked: float | None = None  # when the request was sent that is not answered yet
        self._length = state.expires_in_ms / 1000
        self.until = asked + self._length  # an answer counts from before the request
        self.next = asked + self._length / 3  # when to ask, or while that is unanswered, to give up
        if state.lease_id != self._lease:
            return "taken_over"
        if state.state != "ACTIVE":
            return state.state.lower()
        return None if self._length > 0 else "expired"

    def ask(self) -> None:
        """Note that the daemon is asked now."""
        self.asked = now()
        # This process may have been stopped, or nobody may have looked: the daemon may have renewed the lock.
        is_late = self.asked + self._length / 10 >= self.until
        self.next = self.asked + LATE if is_late else self.until

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


def told(notification: list[Any]) -> str | None:
    """Return why the lock is lost, if the daemon tells that it is."""
    _, method, params = notification
    try:
        return str(params[0]["reason"]) if method == "Lock.Lost" else None
    except (LookupError, TypeError):
        return "lost"


class AnyHolding:
    """What the connections of both clients have in common."""

    state: LockState
    term: Term
    answer: Callable[[Call[Any], float], Awaitable[Any]]  # sends a call; returns the result before a deadline

    async def perform(self, call: Call[Any], deadline: float = INF) -> Any:
        """Perform a call that cannot be repeated on another connection."""
        try:
            return call.parse(await self.answer(call, min(deadline, monotonic() + call.timeout)))
        except (DaemonUnavailableError, ShuttingDownError) as error:  # with it, the lock is lost
            what = f"the connection that held the lock was lost: {error.message}"
            raise LockLostError(what, reason="disconnected") from error

    async def watch(self, call: Call[LockState], deadline: float) -> None:
        """Perform Lock.Watch. From then on, the loss of the lock is noticed."""
        asked = now()
        self.state = state = await self.perform(call, deadline)
        if state.state != "ACTIVE":
            raise LockLostError(f"the lock {state.lock_key!r} was lost as soon as it was granted")
        self.term = Term(state, asked)


class Holding(AnyHolding, Connection):
    """The connection that holds a lock. After the lock is watched, any thread may listen."""

    def __init__(self, path: str) -> None:
        self._reason: str | None = None  # why the lock is lost
        self._reading = threading.Lock()  # its holder waits for nothing
        super().__init__(path)

    async def answer(self, call: Call[Any], deadline: float) -> Any:
        return self.call(call, deadline)

    @property
    def reason(self) -> str | None:
        """Why the lock is lost; None while it is held."""
        return self.listen(0)

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

    async def release(self, call: Call[Any]) -> None:
        """Perform Lock.Release. Nobody else reads from now on."""
        with self._reading:
            self._reason = "released"
        await self.perform(call)

    def end(self) -> None:
        """Wake whoever listens, and close."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.close()

    def notice(self, message: list[Any]) -> None:
        if self._reason is None:
            if message[0] != ANSWER:
                self._reason = told(message)
            elif message[1] == QUESTION:
                self._reason = self.term.take(*message[2:])

    def _after_fork(self) -> None:
        self._reason, self._reading = self._reason or "forked", threading.Lock()
        self.close()

    def _look(self) -> None:
        """Read what is there without waiting, and ask if it is time."""
        try:
            with contextlib.suppress(BlockingIOError):
                while True:
                    for message in self._reader.feed(self._socket.recv(CHUNK, socket.MSG_DONTWAIT)):
                        self.notice(message)
            if self._reason is None and now() >= self.term.next:
                if self.term.asked is None:
                    self.term.ask()
                    self._socket.send(self.term.call.request(QUESTION), QUIET | socket.MSG_DONTWAIT)
                else:
                    self._reason = "unavailable"
        except (OSError, KazahanaError):
            self._reason = self._reason or "disconnected"

    def _wait(self, timeout: float) -> None:
        """Wait until there is something to read."""
        with contextlib.suppress(OSError, ValueError), selectors.DefaultSelector() as selector:  # or it is closed
            selector.register(self._socket, selectors.EVENT_READ)
            selector.select(timeout)


class AsyncHolding(AnyHolding, AsyncConnection):
    """The connection that holds a lock. `lost` is set when the lock is lost, and `reason` says why."""

    answer = AsyncConnection.call
    release = AnyHolding.perform

    def __init__(self, path: str) -> None:
        self.lost = asyncio.Event()
        self.reason: str | None = None
        self._asking: asyncio.Future[None] | None = None
        super().__init__(path)

    async def watch(self, call: Call[LockState], deadline: float) -> None:
        """Perform Lock.Watch; from then on, ask for the lock from time to time."""
        await super().watch(call, deadline)
        self._asking = asyncio.ensure_future(self._ask())

    def end(self) -> None:
        """Close. Whoever waits for the loss is told that the lock was released."""
        self._lose("released")
        self.fail(ClientClosedError("the lock was released"))

    def notice(self, message: list[Any]) -> None:
        self._lose(told(message))

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
                await within(min(left, LOOK))
            if term.asked is not None:
                return self._lose("unavailable")
            term.ask()
            try:
                self._lose(term.take(None, await self.call(term.call, monotonic() + term.next - now())))
            except KazahanaError as error:
                self._lose(term.take(error, None))
        return None
