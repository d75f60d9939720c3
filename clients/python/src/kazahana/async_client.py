"""The client for asyncio."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any, Literal, overload

from . import fork
from .aio import AsyncChannel, Connection
from .base import Base
from .calls import AsText, IDOptions, Inspection, Moment, Options
from .clock import monotonic, now, within
from .locks import AsyncLocks

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncClient(AsyncLocks, Base):
    """Calls the kazahana daemon of this host from coroutines, like Client.

    All tasks share one connection, which belongs to the running event loop; under another loop, a new
    one is made. With prefetch, most calls of next_id return without going through the loop.
    """

    def _open(self, kind: Any = None) -> AsyncChannel:
        return AsyncChannel(self._socket, self._single_attempt, kind or Connection)

    async def close(self) -> None:
        """Close the connection; calls under way raise a ClientClosedError."""
        self._channel.close()
        self._prefetch.drop()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

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
            return await self._ids(self._calls.next_id(format, **options))
        if not self._prefetch.size:
            return await self._channel.perform(self._calls.plain)
        fork.look()
        id = self._prefetch.pop()
        return await self._refill() if id is None else id

    @overload
    async def next_ids(self, n: int, *, format: Literal["int"] = ..., **options: Unpack[IDOptions]) -> list[int]: ...
    @overload
    async def next_ids(self, n: int, *, format: AsText, **options: Unpack[IDOptions]) -> list[str]: ...
    async def next_ids(self, n: int, *, format: str = "int", **options: Unpack[IDOptions]) -> Any:
        """Return n new IDs, ascending; n is 1 to 65,536. Format and options as for next_id."""
        return await self._ids(self._calls.next_ids(n, format, **options))

    async def _ids(self, call: Any) -> Any:
        result = await self._channel.perform(call)
        self._prefetch.drop()
        return result

    async def _refill(self) -> int:
        loop, prefetch, timeout = asyncio.get_running_loop(), self._prefetch, self._calls.timeout
        began, deadline, left = now(), monotonic() + timeout, timeout
        while True:
            is_mine, refill = prefetch.join(loop.create_future, loop)
            if is_mine:
                with prefetch.refilling(refill, left):
                    batch, asked = prefetch.batch, now()
                    call = self._calls.next_ids(prefetch.count(asked), timeout=left)
                    return prefetch.install(batch, await self._channel.perform(call), asked)
            await within(left, refill)
            left = deadline - monotonic()
            if (id := prefetch.waited(refill, began, timeout, left)) is not None:
                return id

    async def inspect(self, id: int | str, **options: Unpack[Options]) -> Inspection:
        """Explain an ID: a number, decimal or hexadecimal (0x) text, or external. Options: service, timeout."""
        return await self._channel.perform(self._calls.inspect(id, **options))

    async def is_fallback(self, id: int | str, **options: Unpack[Options]) -> bool:
        """Report whether the ID was made without a valid lease."""
        return (await self.inspect(id, **options)).is_fallback

    async def bounds(self, start: Moment, end: Moment, **options: Unpack[Options]) -> tuple[int, int]:
        """Return the smallest and the largest possible ID in [start, end) (Unix ms, or datetimes with a zone)."""
        return await self._channel.perform(self._calls.bounds(start, end, **options))

    async def to_external(self, id: int, **options: Unpack[Options]) -> str:
        """Return the external ID, made with the service's secret."""
        return await self._channel.perform(self._calls.to_external(id, **options))

    async def to_internal(self, external: str, latest: Moment | None = None, **options: Unpack[Options]) -> int:
        """Return the ID of an external ID. An ID with a time after latest is refused as forged."""
        return await self._channel.perform(self._calls.to_internal(external, latest, **options))

    async def uuid(self, version: int | None = None, *, timeout: float | None = None) -> uuid.UUID:
        """Return a new UUID of version 4 or 7; without a version, the daemon's configuration decides (7 by default)."""
        return await self._channel.perform(self._calls.uuid(version, timeout))

    async def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return what `kazahanad status --json` prints."""
        return await self._channel.perform(self._calls.status(timeout))

    async def ping(self, *, timeout: float | None = None) -> str:
        """Return "pong"."""
        return await self._channel.perform(self._calls.ping(timeout))
