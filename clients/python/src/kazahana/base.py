"""What the clients for threads and for asyncio have in common.

Both run the same coroutines: _refill here, and those of locks. What these await are methods that each client has for
itself: _performed, and _join. In an AsyncClient they let other tasks run. In a Client they block the thread and never
suspend the coroutine, so that `run` takes it to its end in one step. A call without prefetch has no such step, which
costs a twentieth of it: so each client has a _perform of its own.
"""

from __future__ import annotations

import random
import socket as sockets
import weakref
from collections.abc import Awaitable, Coroutine
from typing import Any, Callable, TypeVar

from . import address, fork
from .clock import monotonic, now
from .errors import ClientClosedError, KazahanaError, late
from .prefetch import Prefetch
from .protocol import Call, Calls, Reader

C = TypeVar("C")
T = TypeVar("T")

CHUNK = 1 << 16  # bytes that are read at once
QUIET = int(getattr(sockets, "MSG_NOSIGNAL", 0))  # a number: arithmetic of the enumeration's members is slow
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.2  # s between tries: from, to, doubling
FIRST_CONTACT = 1.0  # s after the first call: so long a daemon that was never reached may be starting


def run(steps: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a Client to its end: nothing that it awaits suspends it."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a call of a Client waits for an event loop")


class AnyConnection:
    """One socket. A broken connection is only good to be closed: another one takes its place."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.broken = False
        self._reader = Reader()
        self._socket = made = address.connect(path)  # a Unix socket connects at once or fails
        # A finalizer, so that a client that is never closed leaves no warning behind.
        self._close = weakref.finalize(self, made.close)
        fork.track(self)


class AnyClient:
    """A client's options and state, its tries, and its prefetched IDs."""

    def __init__(
        self,
        socket: str | None = None,
        *,
        service: str | None = None,
        timeout: float = 10.0,
        prefetch: int = 0,
        max_age: float = 0.05,
        single_attempt: bool = False,
    ) -> None:
        self._path = None if socket is None else address.parse(socket)
        self._single_attempt = single_attempt
        self._calls = Calls(service, timeout)
        self._prefetch = Prefetch(prefetch, max_age)
        self._reached = self._closed = False
        self._gives_up = float("inf")  # when a daemon that was never reached is not waited for any more
        self._after_fork()  # a new client has as little as one in a child
        fork.track(self)

    # Each client has its own.
    _performed: Callable[..., Awaitable[Any]]  # performs a call, as its _perform
    _refill_future: Callable[[], tuple[Any, Any]]  # a new one, and the event loop that it belongs to
    _join: Callable[[Any, float], Awaitable[object]]  # waits until a future is done, so many seconds at most

    def _after_fork(self) -> None:
        """Begin without connections and IDs: the present ones belong to the parent."""
        self._prefetch.after_fork()

    def _connect(self, kind: Callable[[str], C]) -> C:
        """Return a new connection of this kind."""
        if self._closed:
            raise closed()
        made = kind(self._path or address.find())
        self._reached = True
        return made

    async def _refill(self) -> int:
        """Return an ID of a batch that this caller fetches, or that it waits for while another caller fetches it.

        Each caller has its own deadline: after a refill that failed, one of those that waited begins another.
        """
        prefetch, timeout = self._prefetch, self._calls.timeout
        began, deadline, left = now(), monotonic() + timeout, timeout
        while True:
            mine, loop = self._refill_future()
            refill = prefetch.join(mine, loop)
            if refill is mine:
                try:
                    before, asked = prefetch.batch, now()
                    if (id := prefetch.pop(began)) is not None:  # another thread has refilled it
                        return id
                    call = self._calls.ids(prefetch.count(asked), timeout=left)
                    return prefetch.install(before, await self._performed(call), asked)
                finally:
                    prefetch.leave(loop)
            await self._join(refill, left)
            id, left = prefetch.pop(began), deadline - monotonic()
            if id is not None:
                return id
            if left <= 0:
                raise late(timeout, "no IDs")

    def _pause(self, error: KazahanaError, call: Call[Any], started: float, tries: int) -> float:
        """Return how many seconds to wait before the next try, or raise the error if there is none before the deadline.

        All calls may be repeated: an ID that was made and not received leaves a gap, and calls with effects have a
        request ID. So a restart of the daemon costs time, but no error.
        """
        pause = delay(tries if self._reached else tries + 1)
        if not self._reached:
            self._gives_up = min(self._gives_up, started + FIRST_CONTACT)
        limit = started + call.timeout if self._reached else min(started + call.timeout, self._gives_up)
        if self._single_attempt or not error.transient or monotonic() + pause >= limit:
            raise error
        return pause


def closed() -> ClientClosedError:
    return ClientClosedError("the client was closed")


def delay(tries: int) -> float:
    """Return how many seconds to wait after so many tries. The first wait is none: a new daemon may listen already."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tries - 1, 16)) * random.uniform(0.5, 1) if tries else 0.0
