"""The client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Callable, Literal, TypeVar, overload

from . import fork
from .async_connection import AsyncConnection
from .base import AnyClient, closed
from .clock import monotonic, sleep, within
from .errors import ClientClosedError, KazahanaError, ShuttingDownError, lost
from .locks import AsyncLocks
from .other import AsyncOtherCalls
from .protocol import AsText, Call, IDOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class AsyncClient(AsyncOtherCalls, AsyncLocks, AnyClient):
    """Calls the kazahana daemon of this host from coroutines, like Client.

    All tasks share one connection, which belongs to the running event loop; under another loop, a new
    one is made. With prefetch, most calls of next_id return without going through the loop.
    """

    def _after_fork(self) -> None:
        super()._after_fork()
        self._connection: AsyncConnection | None = None

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

    async def _perform(self, call: Call[T], exchange: Callable[[Call[T], float], Awaitable[Any]] | None = None) -> Any:
        """Return the result of a call. Repeat it until its deadline while the daemon is away: see _pause.

        Locks have an exchange of their own.
        """
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
        """Perform a call once, on the loop's connection."""
        connection = self._connection
        if connection is None or connection.broken or connection.loop is not asyncio.get_running_loop():
            connection = self._reconnect()
        try:
            return call.parse(await connection.call(call, deadline))
        except ShuttingDownError as error:
            connection.fail(lost(connection.path, error))
            raise

    def _reconnect(self) -> AsyncConnection:
        before, self._connection = self._connection, self._connect(AsyncConnection)
        if before is not None and before.loop is not self._connection.loop:
            with contextlib.suppress(RuntimeError):  # that loop may be closed
                moved = ClientClosedError("another event loop has taken this client over: use one client for each")
                before.loop.call_soon_threadsafe(before.fail, moved)
        return self._connection

    # What coroutines await here (see base) lets other tasks run.
    _performed = _perform

    def _refill_future(self) -> tuple[Any, Any]:
        loop = asyncio.get_running_loop()
        return loop.create_future(), loop

    async def _join(self, refill: asyncio.Future[None], seconds: float) -> None:
        await within(seconds, refill)
