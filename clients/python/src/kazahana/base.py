"""What the clients for threads and for asyncio have in common."""

from __future__ import annotations

from typing import Generic, TypeVar

from . import address, fork
from .calls import Calls
from .prefetch import Prefetch

C = TypeVar("C")


class Base(Generic[C]):
    """The options, what is fetched ahead, and a channel of type C."""

    def __init__(
        self,
        socket: str | None = None,
        *,
        service: str | None = None,
        timeout: float = 10.0,
        prefetch: int = 0,
        max_age: float = 0.05,
    ) -> None:
        self._socket = None if socket is None else address.parse(socket)
        self._calls = Calls(service, timeout)
        self._prefetch = Prefetch(prefetch, max_age)
        self._prefetching = prefetch > 0
        self._channel = self._open()
        self.after_fork()
        fork.track(self)

    def _open(self, two_way: bool = False) -> C:
        """Return a channel; two_way tells whether somebody will receive what the daemon sends unasked."""
        raise NotImplementedError

    def after_fork(self) -> None:
        """Begin anew what a lock of the parent may guard; also at the very beginning."""
        raise NotImplementedError
