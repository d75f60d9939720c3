"""What the clients for threads and for asyncio have in common."""

from __future__ import annotations

import socket as sockets
import weakref
from typing import Any

from . import address, fork
from .calls import Calls
from .prefetch import Prefetch
from .protocol import Session, closed

CHUNK = 1 << 16  # bytes that are read at once
QUIET = int(getattr(sockets, "MSG_NOSIGNAL", 0))  # a number: arithmetic of the enumeration's members is slow


class AnyConnection:
    """One socket, until it is broken, and what is under way on it."""

    two_way = False  # whether the daemon may send requests, too

    def __init__(self, path: str) -> None:
        self.path = path
        self.broken = False
        self._session: Session[Any] = Session(self.two_way)  # for asyncio of lists: an empty one's waiter gave up
        self._socket = made = address.connect(path)  # a Unix socket connects at once or fails
        # A finalizer, so that a client that is never closed leaves no warning behind.
        self._close = weakref.finalize(self, made.close)
        fork.track(self)


class AnyChannel:
    """Connections that are made when they are needed, by `kind`, and made again after a loss."""

    def __init__(self, socket: str | None = None, single: bool = False, kind: Any = None) -> None:
        self._named, self._single, self._kind = socket, single, kind
        self._reached = self._closed = False
        self.after_fork()
        fork.track(self)

    def after_fork(self) -> None:
        """Forget all connections."""
        raise NotImplementedError

    def _dial(self, *arguments: Any) -> Any:
        if self._closed:
            raise closed()
        made = self._kind(address.find(self._named), *arguments)
        self._reached = True
        return made


class Base:
    """The options, prefetched IDs, and a channel."""

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
        self._channel = self._open()
        fork.track(self._prefetch)

    def _open(self, kind: Any = None) -> Any:
        """Return a new channel, of connections of this kind."""
        raise NotImplementedError
