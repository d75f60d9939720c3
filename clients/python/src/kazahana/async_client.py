"""The client for asyncio."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Callable, Literal, overload

from .aio import AsyncChannel
from .async_executor import AsyncActivation, AsyncExecutor, AsyncPlacementEvents
from .base import Base
from .calls import IDOptions, Inspection, Moment, Options, Resolution
from .lock import AsyncLock
from .prefetch import now

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncClient(Base[AsyncChannel]):
    """Calls the kazahana daemon of this host from coroutines, like Client.

    All tasks share one connection, which belongs to the running event loop; under another loop, a new
    one is made. With prefetch, most calls of next_id return without going through the loop.
    """

    def _open(self, two_way: bool = False) -> AsyncChannel:
        return AsyncChannel(self._socket, two_way)

    def after_fork(self) -> None:
        self._refilling: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of _refilling

    async def close(self) -> None:
        """Close the connection; calls under way raise a ClientClosedError."""
        self._channel.close()
        self._prefetch.drop()
        await asyncio.sleep(0)  # the loop closes the socket now

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @overload
    async def next_id(self, *, format: Literal["int"] = ..., **options: Unpack[IDOptions]) -> int: ...
    @overload
    async def next_id(self, *, format: Literal["string", "external"], **options: Unpack[IDOptions]) -> str: ...
    async def next_id(self, *, format: str = "int", **options: Unpack[IDOptions]) -> Any:
        """Return a new ID, greater than every ID that was returned before this call.

        format: int, string (decimal) or external. Options: service; timeout, in seconds;
        regular_only=True to raise a LeaseAcquisitionError instead of returning a fallback ID.
        """
        if options or format != "int":
            return await self._ids(self._calls.next_id(format, **options))
        if not self._prefetching:
            return await self._channel.perform(self._calls.plain)
        batch = self._prefetch.batch
        id = batch.pop() if batch else None
        return id if id is not None and now() < batch.expires else await self._refill()

    @overload
    async def next_ids(self, n: int, *, format: Literal["int"] = ..., **options: Unpack[IDOptions]) -> list[int]: ...
    @overload
    async def next_ids(
        self, n: int, *, format: Literal["string", "external"], **options: Unpack[IDOptions]
    ) -> list[str]: ...
    async def next_ids(self, n: int, *, format: str = "int", **options: Unpack[IDOptions]) -> Any:
        """Return n new IDs, ascending; n is 1 to 65,536. Format and options as for next_id."""
        return await self._ids(self._calls.next_ids(n, format, **options))

    async def _ids(self, call: Any) -> Any:
        result = await self._channel.perform(call)
        if self._prefetching:
            self._prefetch.drop()
        return result

    async def _refill(self) -> int:
        prefetch, timeout, began = self._prefetch, self._calls.timeout, now()
        loop = asyncio.get_running_loop()
        if self._refilling is None or self._loop is not loop:
            self._refilling, self._loop = asyncio.Lock(), loop
        waited = self._refilling.locked()
        async with self._refilling:
            batch = prefetch.batch
            asked = now()
            if batch and asked < batch.expires:  # another task has refilled it
                return batch.pop()
            remaining = max(timeout - (asked - began), 0.001) if waited else timeout
            call = self._calls.next_ids(prefetch.count(asked), timeout=remaining)
            return prefetch.install(batch, await self._channel.perform(call), asked)

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

    async def uuid(self, version: int = 7, *, timeout: float | None = None) -> uuid.UUID:
        """Return a new UUID, version 4 or 7."""
        return await self._channel.perform(self._calls.uuid(version, timeout))

    async def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return what `kazahanad status --json` prints."""
        return await self._channel.perform(self._calls.status(timeout))

    async def ping(self, *, timeout: float | None = None) -> str:
        """Return "pong"."""
        return await self._channel.perform(self._calls.ping(timeout))

    async def next_sequence(self, key: str, *, timeout: float | None = None, **options: Any) -> int:
        """Return the next value of a sequence. Options are the daemon's: block, step, max_value, ..."""
        return await self._channel.perform(self._calls.next_sequence(key, timeout, options))

    async def next_sequences(self, key: str, n: int, *, timeout: float | None = None, **options: Any) -> list[int]:
        """Return the next n values, ascending; n is 1 to 65,536."""
        return await self._channel.perform(self._calls.next_sequences(key, n, timeout, options))

    def lock(self, key: str, *, ttl: float = 30.0, wait: float = 0.0) -> AsyncLock:
        """Return a lock for an `async with` block; see AsyncLock."""
        return AsyncLock(self._open, self._calls, key, ttl, wait)

    async def resolve(self, kind: str, identity: str, *, wait: float = 10.0) -> Resolution:
        """Return where the actor lives; activate it if that is this host and it is not active yet.

        wait, 0 to 600 s, limits the wait for an activation or passivation, here or on the actor's former host.
        """
        return await self._channel.perform(self._calls.resolve(kind, identity, wait))

    def register(
        self,
        kinds: Sequence[str],
        activate: Callable[[AsyncActivation], Awaitable[str | None]],
        passivate: Callable[[AsyncActivation], Awaitable[bytes | None]],
        ended: Callable[[AsyncActivation], Awaitable[object]] | None = None,
    ) -> AsyncExecutor:
        """Run the actors of some kinds in this process; see AsyncExecutor."""
        return AsyncExecutor(self._open, self._calls, kinds, activate, passivate, ended)

    def placement_events(self, events: Sequence[str] | None = None) -> AsyncPlacementEvents:
        """Watch events of actors on this host: those named, or all but resolved; see AsyncPlacementEvents."""
        return AsyncPlacementEvents(self._open, self._calls, events)

    async def placement_snapshot(
        self,
        *,
        after: str | None = None,
        limit: int | None = None,
        kind: str | None = None,
        identity: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Return members, kinds and activations as the daemon knows them.

        A page has limit activations (0 to 1000, default 100), with keys after "kind/identity". kind and
        identity together select one actor, with its record in the store.
        """
        options = {"after": after, "limit": limit, "kind": kind, "identity": identity}
        return await self._channel.perform(self._calls.placement_snapshot(timeout, options))
