"""The common base of the clients for threads and for asyncio."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

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
        single_attempt: bool = False,
    ) -> None:
        self._socket = None if socket is None else address.parse(socket)
        self._single_attempt = single_attempt
        self._calls = Calls(service, timeout)
        self._prefetch = Prefetch(prefetch, max_age)
        self._prefetching = prefetch > 0
        self._channel = self._open()
        if prefetch:
            fork.track(self._prefetch)

    def _open(self, kind: Any = None) -> C:
        """Return a new channel, of connections of this kind."""
        raise NotImplementedError
