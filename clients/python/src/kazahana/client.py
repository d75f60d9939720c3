"""The client for threads."""

from __future__ import annotations

import time
from concurrent import futures
from typing import TYPE_CHECKING, Any, Callable, Literal, TypeVar, overload

from . import fork
from .base import AnyClient, run
from .clock import monotonic
from .connection import Connection
from .errors import KazahanaError
from .locks import Locks
from .other import OtherCalls
from .protocol import AsText, Call, IDOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

IDLE = 16  # connections that are kept at most while no call uses them


class Client(OtherCalls, Locks, AnyClient):
    """Calls the kazahana daemon of this host.

    socket is a path or a unix:///path URI (default: KAZAHANA_SOCKET, else the usual places); service
    names one of the daemon's services (default: the daemon's); timeout, in seconds, bounds every
    call, with all its tries. prefetch=N fetches N IDs at a time and hands them out one by one for
    at most max_age seconds: most calls of next_id then cost no system call.

    single_attempt=True makes a call fail at once when the daemon is away, instead of trying again.

    A call takes an idle connection, or opens another, and puts it back; so there are as many as calls at the same
    time. They are made again when the daemon restarts. A process that was forked makes its own. Not for use in
    signal handlers.
    """

    def _after_fork(self) -> None:
        super()._after_fork()
        self._idle: list[Connection] = []  # to add one or to take one is atomic

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A call that another thread has under way ends as if the client were open."""
        self._closed = True
        self._prefetch.drop()
        self._close_idle()

    @overload
    def next_id(self, *, format: Literal["int"] = ..., **options: Unpack[IDOptions]) -> int: ...
    @overload
    def next_id(self, *, format: AsText, **options: Unpack[IDOptions]) -> str: ...
    def next_id(self, *, format: str = "int", **options: Unpack[IDOptions]) -> Any:
        """Return a new ID, greater than every ID that was returned before this call.

        format: int, string (decimal) or external. Options: service; timeout, in seconds;
        regular_only=True to raise a LeaseAcquisitionError instead of returning a fallback ID.
        """
        if options or format != "int":
            return self._ids(self._calls.ids(None, format, **options))
        if not self._prefetch.size:
            return self._perform(self._calls.plain)
        fork.look()
        id = self._prefetch.pop()
        return run(self._refill()) if id is None else id

    @overload
    def next_ids(self, n: int, *, format: Literal["int"] = ..., **options: Unpack[IDOptions]) -> list[int]: ...
    @overload
    def next_ids(self, n: int, *, format: AsText, **options: Unpack[IDOptions]) -> list[str]: ...
    def next_ids(self, n: int, *, format: str = "int", **options: Unpack[IDOptions]) -> Any:
        """Return n new IDs, ascending; n is 1 to 65,536. Format and options as for next_id."""
        return self._ids(self._calls.ids(n, format, **options))

    def _ids(self, call: Call[Any]) -> Any:
        result = self._perform(call)
        self._prefetch.drop()
        return result

    def _perform(self, call: Call[T], exchange: Callable[[Call[T], float], Any] | None = None) -> Any:
        """Return the result of a call. Repeat it until its deadline while the daemon is away: see _pause.

        Locks have an exchange of their own.
        """
        exchange = exchange or self._exchange
        started, tries = monotonic(), 0
        while True:
            fork.look()
            try:
                return exchange(call, started + call.timeout)
            except KazahanaError as error:
                time.sleep(self._pause(error, call, started, tries))
            tries += 1

    def _exchange(self, call: Call[T], deadline: float) -> T:
        """Perform a call once, on an idle connection or a new one."""
        try:
            idle = self._idle.pop()
        except IndexError:
            idle = None
        connection = idle or self._connect(Connection)
        try:
            return call.parse(connection.call(call, deadline))
        finally:
            if connection.broken:
                self._close_idle()  # they lead to the same daemon: the next try is to make a new one
            if connection.broken or self._closed or len(self._idle) >= IDLE:
                connection.close()
            else:
                self._idle.append(connection)

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # What coroutines await here (see base) blocks this thread, or this green thread.
    async def _performed(self, call: Call[T], exchange: Callable[[Call[T], float], Any] | None = None) -> Any:
        return self._perform(call, None if exchange is None else lambda *about: run(exchange(*about)))

    def _refill_future(self) -> tuple[Any, Any]:
        return futures.Future(), None

    async def _join(self, refill: futures.Future[None], seconds: float) -> None:
        futures.wait([refill], seconds)
