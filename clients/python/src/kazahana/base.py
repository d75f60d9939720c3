"""What the clients for threads and for asyncio have in common."""

from __future__ import annotations

import random
import socket as sockets
import weakref
from typing import Any

from . import address, fork
from .calls import Calls
from .clock import monotonic
from .errors import ClientClosedError, KazahanaError
from .prefetch import Prefetch
from .protocol import Call, Reader

CHUNK = 1 << 16  # bytes that are read at once
QUIET = int(getattr(sockets, "MSG_NOSIGNAL", 0))  # a number: arithmetic of the enumeration's members is slow
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.2  # s between tries: from, to, doubling
FIRST_CONTACT = 1.0  # s after the first call: so long a daemon that was never reached may be starting


class AnyConnection:
    """One socket, until it is broken."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.broken = False
        self._reader = Reader()
        self._socket = made = address.connect(path)  # a Unix socket connects at once or fails
        # A finalizer, so that a client that is never closed leaves no warning behind.
        self._close = weakref.finalize(self, made.close)
        fork.track(self)


class Base:
    """A client's options and state."""

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
        self._socket = None if socket is None else address.parse(socket)
        self._single_attempt = single_attempt
        self._calls = Calls(service, timeout)
        self._prefetch = Prefetch(prefetch, max_age)
        self._reached = self._closed = False
        self._gives_up = float("inf")  # when a daemon that was never reached is not waited for any more
        self._after_fork()
        fork.track(self)

    def _after_fork(self) -> None:
        """Forget what is the parent's."""
        self._prefetch.after_fork()

    def _connect(self, kind: Any, *arguments: Any) -> Any:
        """Return a new connection of this kind."""
        if self._closed:
            raise closed()
        made = kind(address.find(self._socket), *arguments)
        self._reached = True
        return made

    def _pause(self, error: KazahanaError, call: Call[Any], started: float, tries: int) -> float:
        """Return how many seconds to wait before the next try, or raise the error if there will be none.

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
