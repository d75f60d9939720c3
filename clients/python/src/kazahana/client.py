"""The client for threads."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Literal, overload

from .base import Base
from .calls import IDOptions, Inspection, Moment, Options, Resolution
from .errors import RequestTimeoutError
from .executor import Activation, Executor, PlacementEvents
from .lock import Lock
from .prefetch import now
from .sync import Channel

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Client(Base[Channel]):
    """Calls the kazahana daemon of this host.

    socket is a path or a unix:///path URI (default: KAZAHANA_SOCKET, else the usual places); service
    names one of the daemon's services (default: the daemon's); timeout, in seconds, bounds every
    call, with all its tries. prefetch=N fetches N IDs at a time and hands them out one by one for
    at most max_age seconds: most calls of next_id then cost no system call.

    The connection is made by the first call, shared by all threads, and made again when the
    daemon restarts. A process that was forked makes its own. Not for use in signal handlers.
    """

    def _open(self, two_way: bool = False) -> Channel:
        return Channel(self._socket, two_way)

    def after_fork(self) -> None:
        self._refilling = threading.Lock()

    def close(self) -> None:
        """Close the connection; calls under way raise a ClientClosedError."""
        self._channel.close()
        self._prefetch.drop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def next_id(self, *, format: Literal["int"] = ..., **options: Unpack[IDOptions]) -> int: ...
    @overload
    def next_id(self, *, format: Literal["string", "external"], **options: Unpack[IDOptions]) -> str: ...
    def next_id(self, *, format: str = "int", **options: Unpack[IDOptions]) -> Any:
        """Return a new ID, greater than every ID that was returned before this call.

        format: int, string (decimal) or external. Options: service; timeout, in seconds;
        regular_only=True to raise a LeaseAcquisitionError instead of returning a fallback ID.
        """
        if options or format != "int":
            return self._ids(self._calls.next_id(format, **options))
        if not self._prefetching:
            return self._channel.perform(self._calls.plain)
        batch = self._prefetch.batch
        try:
            id = batch.pop()
        except IndexError:
            return self._refill()
        return id if now() < batch.expires else self._refill()

    @overload
    def next_ids(self, n: int, *, format: Literal["int"] = ..., **options: Unpack[IDOptions]) -> list[int]: ...
    @overload
    def next_ids(self, n: int, *, format: Literal["string", "external"], **options: Unpack[IDOptions]) -> list[str]: ...
    def next_ids(self, n: int, *, format: str = "int", **options: Unpack[IDOptions]) -> Any:
        """Return n new IDs, ascending; n is 1 to 65,536. Format and options as for next_id."""
        return self._ids(self._calls.next_ids(n, format, **options))

    def _ids(self, call: Any) -> Any:
        result = self._channel.perform(call)
        if self._prefetching:
            self._prefetch.drop()
        return result

    def _refill(self) -> int:
        prefetch, timeout, began = self._prefetch, self._calls.timeout, now()
        waited = not self._refilling.acquire(blocking=False)
        if waited and not self._refilling.acquire(timeout=timeout):
            raise RequestTimeoutError("no IDs in time", waited_ms=int(timeout * 1000), cause="answer")
        try:
            batch = prefetch.batch
            asked = now()
            with contextlib.suppress(IndexError):
                id = batch.pop()
                if asked < batch.expires:  # another thread has refilled it
                    return id
            remaining = max(timeout - (asked - began), 0.001) if waited else timeout
            call = self._calls.next_ids(prefetch.count(asked), timeout=remaining)
            return prefetch.install(batch, self._channel.perform(call), asked)
        finally:
            self._refilling.release()

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

    def uuid(self, version: int = 7, *, timeout: float | None = None) -> uuid.UUID:
        """Return a new UUID, version 4 or 7."""
        return self._channel.perform(self._calls.uuid(version, timeout))

    def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return what `kazahanad status --json` prints."""
        return self._channel.perform(self._calls.status(timeout))

    def ping(self, *, timeout: float | None = None) -> str:
        """Return "pong"."""
        return self._channel.perform(self._calls.ping(timeout))

    def next_sequence(self, key: str, *, timeout: float | None = None, **options: Any) -> int:
        """Return the next value of a sequence. Options are the daemon's: block, step, max_value, ..."""
        return self._channel.perform(self._calls.next_sequence(key, timeout, options))

    def next_sequences(self, key: str, n: int, *, timeout: float | None = None, **options: Any) -> list[int]:
        """Return the next n values, ascending; n is 1 to 65,536."""
        return self._channel.perform(self._calls.next_sequences(key, n, timeout, options))

    def lock(
        self,
        key: str,
        *,
        ttl: float = 30.0,
        wait: float = 0.0,
        on_lost: Callable[[str], object] | None = None,
    ) -> Lock:
        """Return a lock for a `with` block; see Lock."""
        return Lock(self._open, self._calls, key, ttl, wait, on_lost)

    def resolve(self, kind: str, identity: str, *, wait: float = 10.0) -> Resolution:
        """Return where the actor lives; activate it if that is this host and it is not active yet.

        wait, 0 to 600 s, limits the wait for an activation or passivation, here or on the actor's former host.
        """
        return self._channel.perform(self._calls.resolve(kind, identity, wait))

    def register(
        self,
        kinds: Sequence[str],
        activate: Callable[[Activation], str | None],
        passivate: Callable[[Activation], bytes | None],
        ended: Callable[[Activation], object] | None = None,
        *,
        workers: int = 4,
    ) -> Executor:
        """Run the actors of some kinds in this process; see Executor."""
        return Executor(self._open, self._calls, kinds, activate, passivate, ended, workers)

    def placement_events(self, events: Sequence[str] | None = None) -> PlacementEvents:
        """Watch events of actors on this host: those named, or all but resolved; see PlacementEvents."""
        return PlacementEvents(self._open, self._calls, events)

    def placement_snapshot(
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
        return self._channel.perform(self._calls.placement_snapshot(timeout, options))
