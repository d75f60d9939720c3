"""The common base of the clients for threads and for asyncio."""

from __future__ import annotations

from typing import Generic, TypeVar

from . import address, fork
from .calls import Calls
from .prefetch import Prefetch

C = TypeVar("C")


class Base(Generic[C]):
    """The options, prefetched IDs, and a channel of type C."""

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
        """Return a channel; two_way says whether a caller will receive notifications and requests of the daemon."""
        raise NotImplementedError

    def after_fork(self) -> None:
        """Make new objects for those that a lock of the parent may guard; the constructor calls it, too."""
        raise NotImplementedError
