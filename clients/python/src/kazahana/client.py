"""The client for threads."""

from __future__ import annotations

import uuid
from concurrent import futures
from typing import TYPE_CHECKING, Any, Literal, overload

from . import fork
from .base import Base
from .calls import AsText, IDOptions, Inspection, Moment, Options
from .clock import monotonic, now
from .locks import Locks
from .sync import Channel, Connection

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Client(Locks, Base):
    """Calls the kazahana daemon of this host.

    socket is a path or a unix:///path URI (default: KAZAHANA_SOCKET, else the usual places); service
    names one of the daemon's services (default: the daemon's); timeout, in seconds, bounds every
    call, with all its tries. prefetch=N fetches N IDs at a time and hands them out one by one for
    at most max_age seconds: most calls of next_id then cost no system call.

    single_attempt=True makes a call fail at once when the daemon is away, instead of trying again.

    Connections are made when they are needed, a few of them if several threads call at once, and
    made again when the daemon restarts. A process that was forked makes its own. Not for use in
    signal handlers.
    """

    def _open(self, kind: Any = None) -> Channel:
        return Channel(self._socket, self._single_attempt, kind or Connection)

    def close(self) -> None:
        """Close the connections; calls under way raise a ClientClosedError."""
        self._channel.close()
        self._prefetch.drop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            return self._ids(self._calls.next_id(format, **options))
        if not self._prefetch.size:
            return self._channel.perform(self._calls.plain)
        fork.look()
        id = self._prefetch.pop()
        return self._refill() if id is None else id

    @overload
    def next_ids(self, n: int, *, format: Literal["int"] = ..., **options: Unpack[IDOptions]) -> list[int]: ...
    @overload
    def next_ids(self, n: int, *, format: AsText, **options: Unpack[IDOptions]) -> list[str]: ...
    def next_ids(self, n: int, *, format: str = "int", **options: Unpack[IDOptions]) -> Any:
        """Return n new IDs, ascending; n is 1 to 65,536. Format and options as for next_id."""
        return self._ids(self._calls.next_ids(n, format, **options))

    def _ids(self, call: Any) -> Any:
        result = self._channel.perform(call)
        self._prefetch.drop()
        return result

    def _refill(self) -> int:
        prefetch, timeout = self._prefetch, self._calls.timeout
        began, deadline, left = now(), monotonic() + timeout, timeout
        while True:
            is_mine, refill = prefetch.join(futures.Future)
            if is_mine:
                with prefetch.refilling(refill, left):
                    batch, asked = prefetch.batch, now()
                    if (id := prefetch.pop(began)) is not None:  # another thread has refilled it
                        return id
                    call = self._calls.next_ids(prefetch.count(asked), timeout=left)
                    return prefetch.install(batch, self._channel.perform(call), asked)
            futures.wait([refill], left)
            left = deadline - monotonic()
            if (id := prefetch.waited(refill, began, timeout, left)) is not None:
                return id

    def inspect(self, id: int | str, **options: Unpack[Options]) -> Inspection:
        """Explain an ID: a number, decimal or hexadecimal (0x) text, or external. Options: service, timeout."""
        return self._channel.perform(self._calls.inspect(id, **options))

    def is_fallback(self, id: int | str, **options: Unpack[Options]) -> bool:
        """Report whether the ID was made without a valid lease."""
        return self.inspect(id, **options).is_fallback

    def bounds(self, start: Moment, end: Moment, **options: Unpack[Options]) -> tuple[int, int]:
        """Return the smallest and the largest possible ID in [start, end) (Unix ms, or datetimes with a zone)."""
        return self._channel.perform(self._calls.bounds(start, end, **options))

    def to_external(self, id: int, **options: Unpack[Options]) -> str:
        """Return the external ID, made with the service's secret."""
        return self._channel.perform(self._calls.to_external(id, **options))

    def to_internal(self, external: str, latest: Moment | None = None, **options: Unpack[Options]) -> int:
        """Return the ID of an external ID. An ID with a time after latest is refused as forged."""
        return self._channel.perform(self._calls.to_internal(external, latest, **options))

    def uuid(self, version: int | None = None, *, timeout: float | None = None) -> uuid.UUID:
        """Return a new UUID of version 4 or 7; without a version, the daemon's configuration decides (7 by default)."""
        return self._channel.perform(self._calls.uuid(version, timeout))

    def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return what `kazahanad status --json` prints."""
        return self._channel.perform(self._calls.status(timeout))

    def ping(self, *, timeout: float | None = None) -> str:
        """Return "pong"."""
        return self._channel.perform(self._calls.ping(timeout))
