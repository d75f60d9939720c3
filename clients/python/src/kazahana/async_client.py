"""The client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Callable, Literal, TypeVar, overload

from . import fork
from .aio import Connection
from .base import Base, closed
from .calls import AsText, IDOptions
from .clock import monotonic, now, sleep, within
from .errors import ClientClosedError, KazahanaError, ShuttingDownError, late, lost
from .locks import AsyncLocks
from .other import AsyncOtherCalls
from .protocol import Call

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class AsyncClient(AsyncOtherCalls, AsyncLocks, Base):
    """Calls the kazahana daemon of this host from coroutines, like Client.

    All tasks share one connection, which belongs to the running event loop; under another loop, a new
    one is made. With prefetch, most calls of next_id return without going through the loop.
    """

    def _after_fork(self) -> None:
        super()._after_fork()
        self._connection: Connection | None = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls under way raise a ClientClosedError."""
        self._closed = True
        self._prefetch.drop()
        if self._connection is not None:
            self._connection.fail(closed())

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

    async def _ids(self, call: Call[Any]) -> Any:
        result = await self._perform(call)
        self._prefetch.drop()
        return result

    async def _refill(self) -> int:
        """Return an ID of a batch that this task asks for, or waits for while another does."""
        loop, prefetch, timeout = asyncio.get_running_loop(), self._prefetch, self._calls.timeout
        began, deadline, left = now(), monotonic() + timeout, timeout
        while True:
            refill, is_mine = prefetch.join(loop.create_future, loop)
            if is_mine:
                try:
                    before, asked = prefetch.batch, now()
                    call = self._calls.ids(prefetch.count(asked), timeout=left)
                    return prefetch.install(before, await self._perform(call), asked)
                finally:
                    prefetch.leave(refill)
            await within(left, refill)
            id, left = prefetch.pop(began), deadline - monotonic()
            if id is not None:
                return id
            if left <= 0:
                raise late(timeout, "no IDs")

    async def _perform(self, call: Call[T], exchange: Callable[[Call[T], float], Awaitable[Any]] | None = None) -> Any:
        """Return the result of a call, or of this exchange. Repeat it while the daemon is away and there is time."""
        exchange = exchange or self._exchange
        started, tries = monotonic(), 0
        while True:
            fork.look()
            try:
                return await exchange(call, started + call.timeout)
            except KazahanaError as error:
                pause = self._pause(error, call, started, tries)
            await sleep(pause)
            tries += 1

    async def _exchange(self, call: Call[T], deadline: float) -> T:
        connection = self._connection
        if connection is None or connection.broken or connection.loop is not asyncio.get_running_loop():
            connection = self._reconnect()
        try:
            return call.parse(await connection.call(call, deadline))
        except ShuttingDownError as error:
            connection.fail(lost(connection.path, error))
            raise

    def _reconnect(self) -> Connection:
        before, loop = self._connection, asyncio.get_running_loop()
        if before is not None and before.loop is not loop:
            with contextlib.suppress(RuntimeError):  # that loop may be closed
                moved = ClientClosedError("another event loop has taken this client over: use one client for each")
                before.loop.call_soon_threadsafe(before.fail, moved)
        made: Connection = self._connect(Connection, loop)
        self._connection = made
        return made
