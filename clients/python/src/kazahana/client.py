"""The clients: what both have in common, the one for threads, and the one for asyncio.

Both run the same coroutines: _performed, _ids and _refill here, and those of locks. What these await are methods that
each client has for itself: _exchange and _wait. In an AsyncClient they let other tasks run. In a Client they block the
thread and never suspend the coroutine, so that `run` takes it to its end in one step.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable
from concurrent import futures
from typing import TYPE_CHECKING, Any, Callable, Literal, overload

from . import address, fork
from .clock import INF, monotonic, now, within
from .connections import AsyncConnection, Connection, run
from .errors import KazahanaError, closed, copy_of, late
from .locks import AsyncLocks, Locks
from .other import AsyncOtherCalls, OtherCalls
from .prefetch import Prefetch
from .protocol import AsText, Call, Calls, IDOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

IDLE = 16  # connections that a Client keeps at most while no call uses them
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.2  # s between tries: from, to, doubling
FIRST_CONTACT = 1.0  # s; a daemon that was never reached may be starting: it is waited for after the first failure

Exchange = Callable[[Call[Any], float], Awaitable[Any]]  # performs a call once, before a deadline


class AnyClient:
    """A client's options and state, when a call is repeated, and how IDs are prefetched."""

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
        self._closed = False
        self._away: KazahanaError | None = None  # why the last try failed; None once there is a connection
        self._gives_up: float | None = None  # when a daemon that was never reached is not waited for any more
        self._idle: list[Connection] = []  # a Client's, which no call uses; to add one or to take one is atomic
        self._of_loop: dict[Any, AsyncConnection] = {}  # an AsyncClient's, by event loop

    # Each client has its own.
    _exchange: Exchange
    _wait: Callable[..., Awaitable[object]]  # so many seconds, or until a future is done
    _refill_future: Callable[[], tuple[Any, Any]]  # for the end of a refill, and its event loop; None for threads

    async def _performed(self, call: Call[Any], exchange: Exchange | None = None) -> Any:
        """Return the result of a call. Repeat it until its deadline while the daemon is away: see _pause.

        The deadline ends a call here between two tries, in a connection while it waits for the answer (see
        Connection._within and AsyncConnection._expire), and in _refill while it waits for the IDs of another caller.
        Locks have an exchange of their own.
        """
        exchange = exchange or self._exchange
        deadline, tries = monotonic() + call.timeout, 0
        while True:
            fork.look()
            try:
                return await exchange(call, deadline)
            except KazahanaError as error:
                pause = self._pause(error, deadline, tries)
            await self._wait(pause)
            tries += 1
            call = call.again(deadline - monotonic())

    async def _ids(self, call: Call[Any]) -> Any:
        """Perform a call for IDs. The prefetched ones are older, so they are dropped."""
        result = await self._performed(call)
        self._prefetch.drop()
        return result

    async def _refill(self) -> int:
        """Return an ID of a batch that this caller fetches, or that it waits for while another caller fetches it.

        Each caller has its own deadline: after a refill that failed, one of those that waited begins another. While the
        daemon is away, their errors say why.
        """
        prefetch, timeout = self._prefetch, self._calls.timeout
        began, deadline, left = now(), monotonic() + timeout, timeout
        while left > 0:
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
                    prefetch.refills.pop(loop).set_result(None)  # with IDs or without: all who wait look for themselves
            await self._wait(left, refill)
            id, left = prefetch.pop(began), deadline - monotonic()
            if id is not None:
                return id
        raise copy_of(away) if (away := self._away) else late(timeout, "no IDs")

    def _connect(self, kind: Callable[[str], Any]) -> Any:
        """Return a new connection of this kind."""
        if self._closed:
            raise closed()
        made = kind(self._path or address.find())
        self._gives_up, self._away = INF, None
        return made

    def _pause(self, error: KazahanaError, deadline: float, tries: int) -> float:
        """Return how many seconds to wait before the next try, or raise the error if there is none before the deadline.

        A call is repeated after a transient error: the daemon is away, or stops. Any call may be: an ID that was made
        and not received leaves a gap, and calls with effects have a request ID. So a restart of the daemon costs time,
        but no error. With a single attempt a call is repeated once, without a pause: its connection may have been lost
        long ago. After any other error a call is not repeated: the daemon has answered, the time is over, the peer is
        no daemon, or a person has to change something. Calls on a lock's connection never are: see AnyHolding.perform.
        """
        at, pause = monotonic(), delay(tries)
        if self._gives_up is None:
            self._gives_up = at + FIRST_CONTACT
        if (self._single_attempt and tries) or not error.transient or at + pause >= min(deadline, self._gives_up):
            raise error
        self._away = error.with_traceback(None)  # or it would keep the frames of the caller
        return pause


def delay(tries: int) -> float:
    """Return how many seconds to wait after so many tries. The first wait is none: a new daemon may listen already."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tries - 1, 16)) * random.uniform(0.5, 1) if tries else 0.0


class Client(OtherCalls, Locks, AnyClient):
    """Calls the kazahana daemon of this host.

    socket is a path or a unix:///path URI (default: KAZAHANA_SOCKET, else the usual places); service
    names one of the daemon's services (default: the daemon's); timeout, in seconds, bounds every
    call, with all its tries. prefetch=N fetches N IDs at a time, up to 16 N while they are used up fast,
    and hands them out one by one for at most max_age seconds: most calls of next_id then cost no
    system call. A call of next_id with options asks the daemon, and drops what is fetched.

    single_attempt=True makes a call fail at once when the daemon is away, instead of waiting for it. A
    connection that turns out to be lost is made again.

    A call takes an idle connection, or opens another, and puts it back; so there are as many as calls at the same
    time. They are made again when the daemon restarts. A process that was forked makes its own. Not for use in
    signal handlers.
    """

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
            return run(self._ids(self._calls.ids(None, format, **options)))
        if not self._prefetch.size:
            return run(self._performed(self._calls.plain))
        fork.look()
        id = self._prefetch.pop()
        return run(self._refill()) if id is None else id

    @overload
    def next_ids(self, n: int, *, format: Literal["int"] = ..., **options: Unpack[IDOptions]) -> list[int]: ...
    @overload
    def next_ids(self, n: int, *, format: AsText, **options: Unpack[IDOptions]) -> list[str]: ...
    def next_ids(self, n: int, *, format: str = "int", **options: Unpack[IDOptions]) -> Any:
        """Return n new IDs, ascending; n is 1 to 65,536. Format and options as for next_id."""
        return run(self._ids(self._calls.ids(n, format, **options)))

    def _perform(self, call: Call[Any], exchange: Exchange | None = None) -> Any:
        return run(self._performed(call, exchange))

    async def _exchange(self, call: Call[Any], deadline: float) -> Any:
        """Perform a call once, on an idle connection or a new one.

        Nobody looks at an idle connection: that its daemon has gone is noticed by the next call on it.
        """
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = None
        if connection is None or connection.broken:  # a forked child finds its parent's, which are closed
            connection = self._connect(Connection)
        try:
            return call.parse(connection.call(call, deadline))
        finally:
            self._idle.append(connection)
            del self._idle[IDLE:]  # too many: one that nobody refers to any more closes itself
            if connection.broken or self._closed:
                self._close_idle()  # they lead to the same daemon: the next try is to make a new one

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _refill_future(self) -> tuple[Any, Any]:
        return futures.Future(), None

    async def _wait(self, seconds: float, *refills: futures.Future[None]) -> None:
        futures.wait(refills, seconds) if refills else time.sleep(seconds)  # noqa: ASYNC251 - no loop runs it


class AsyncClient(AsyncOtherCalls, AsyncLocks, AnyClient):
    """Calls the kazahana daemon of this host from coroutines, like Client.

    All tasks of an event loop share one connection. With prefetch, most calls of next_id return without going through
    the loop.
    """

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; calls under way raise a ClientClosedError."""
        self._closed = True
        self._prefetch.drop()
        fork.look()
        for loop, connection in self._of_loop.copy().items():
            if not connection.broken and not loop.is_closed():
                loop.call_soon_threadsafe(connection.fail, closed())
        await asyncio.sleep(0)  # until that of this loop is closed

    @overload
    async def next_id(self, *, format: Literal["int"] = ..., **options: Unpack[IDOptions]) -> int: ...
    @overload
    async def next_id(self, *, format: AsText, **options: Unpack[IDOptions]) -> str: ...
    async def next_id(self, *, format: str = "int", **options: Unpack[IDOptions]) -> Any:
        """Return a new ID, greater than every ID that was returned before this call.

        format: int, string (decimal) or external. Options: service; timeout, in seconds;
        regular_only=True to raise a LeaseAcquisitionError instead of returning a fallback ID.
        """
        if options or format != "int":
            return await self._ids(self._calls.ids(None, format, **options))
        if not self._prefetch.size:
            return await self._perform(self._calls.plain)
        fork.look()
        id = self._prefetch.pop()
        return await self._refill() if id is None else id

    @overload
    async def next_ids(self, n: int, *, format: Literal["int"] = ..., **options: Unpack[IDOptions]) -> list[int]: ...
    @overload
    async def next_ids(self, n: int, *, format: AsText, **options: Unpack[IDOptions]) -> list[str]: ...
    async def next_ids(self, n: int, *, format: str = "int", **options: Unpack[IDOptions]) -> Any:
        """Return n new IDs, ascending; n is 1 to 65,536. Format and options as for next_id."""
        return await self._ids(self._calls.ids(n, format, **options))

    _perform = AnyClient._performed

    async def _exchange(self, call: Call[Any], deadline: float) -> Any:
        """Perform a call once, on the connection of the running loop or a new one."""
        loop = asyncio.get_running_loop()
        connection = self._of_loop.get(loop)
        if connection is None or connection.broken:
            for other in [one for one in list(self._of_loop) if one.is_closed()]:
                self._of_loop.pop(other, None)
            connection = self._of_loop[loop] = self._connect(AsyncConnection)
        return call.parse(await connection.call(call, deadline))

    def _refill_future(self) -> tuple[Any, Any]:
        loop = asyncio.get_running_loop()
        return loop.create_future(), loop

    _wait = staticmethod(within)
