"""The calls beside those for IDs: what is in an ID, external IDs, UUIDs, and the daemon's state."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Union

from .errors import InvalidParamsError, ProtocolError
from .protocol import Call, Calls, Options, an_id, exactly, text, values

if TYPE_CHECKING:
    from typing_extensions import Unpack

Moment = Union[int, datetime]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Inspection:
    """The content of an ID. Machine ID and sequence are read with the service's present layout."""

    id: int
    external: str
    timestamp_ms: int
    """Unix time"""
    time: str
    """the same as RFC 3339"""
    machine_id: int
    sequence: int
    kind: str
    """regular or fallback"""
    bit_id: int
    bit_seq: int
    epoch_ms: int

    @property
    def datetime(self) -> datetime:
        return _EPOCH + timedelta(milliseconds=self.timestamp_ms)

    @property
    def is_fallback(self) -> bool:
        return self.kind == "fallback"


table = partial(exactly, dict)


def record(kind: Any) -> Callable[[Any], Any]:
    """Return a function that reads a map as the dataclass `kind`, of integers and texts. It ignores unknown keys."""
    types = {field.name: {"int": int, "str": str}[str(field.type)] for field in fields(kind)}

    def parse(value: Any) -> Any:
        known = {name: member for name, member in table(value).items() if name in types}
        for name, member in known.items():
            if type(member) is not types[name]:
                raise ProtocolError(f"the daemon answered {name}={member!r:.40}: {types[name].__name__} is due")
        try:
            return kind(**known)
        except TypeError as error:
            raise ProtocolError(f"the daemon's answer is not complete: {error}") from error

    return parse


_inspection = record(Inspection)


def _pair(value: Any) -> tuple[int, int]:
    low, high = values(int, 2, value)
    return low, high


def _uuid(value: Any) -> uuid.UUID:
    try:
        return uuid.UUID(text(value))
    except ValueError as error:
        raise ProtocolError("the daemon answered a text that is not a UUID") from error


def milliseconds(moment: Moment) -> int:
    """Convert a time: Unix milliseconds, or a datetime with a zone."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidParamsError(f"{moment!r} has no time zone: add one, for example tzinfo=timezone.utc")
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    return moment


def _inspect(calls: Calls, id: int | str, options: Any) -> Call[Inspection]:
    return calls.of_service("Inspect", [id], _inspection, **options)


def _bounds(calls: Calls, start: Moment, end: Moment, options: Any) -> Call[tuple[int, int]]:
    return calls.of_service("Bounds", [milliseconds(start), milliseconds(end)], _pair, **options)


def _to_internal(calls: Calls, external: str, latest: Moment | None, options: Any) -> Call[int]:
    latest_ms = None if latest is None else milliseconds(latest)
    return calls.of_service("ToInternal", [external], an_id, latest_ms=latest_ms, **options)


def _new_uuid(calls: Calls, version: int | None, timeout: float | None) -> Call[uuid.UUID]:
    return calls.make("UUID", [] if version is None else [version], _uuid, timeout)


class OtherCalls:
    """Those of a Client."""

    _calls: Calls
    _perform: Callable[[Call[Any]], Any]

    def inspect(self, id: int | str, **options: Unpack[Options]) -> Inspection:
        """Explain an ID: a number, decimal or hexadecimal (0x) text, or external. Options: service, timeout."""
        inspection: Inspection = self._perform(_inspect(self._calls, id, options))
        return inspection

    def is_fallback(self, id: int | str, **options: Unpack[Options]) -> bool:
        """Report whether the ID was made without a valid lease."""
        return self.inspect(id, **options).is_fallback

    def bounds(self, start: Moment, end: Moment, **options: Unpack[Options]) -> tuple[int, int]:
        """Return the smallest and the largest possible ID in [start, end) (Unix ms, or datetimes with a zone)."""
        low, high = self._perform(_bounds(self._calls, start, end, options))
        return low, high

    def to_external(self, id: int, **options: Unpack[Options]) -> str:
        """Return the external ID, made with the service's secret."""
        return str(self._perform(self._calls.of_service("ToExternal", [id], text, **options)))

    def to_internal(self, external: str, latest: Moment | None = None, **options: Unpack[Options]) -> int:
        """Return the ID of an external ID. An ID with a time after latest is refused as forged."""
        return int(self._perform(_to_internal(self._calls, external, latest, options)))

    def uuid(self, version: int | None = None, *, timeout: float | None = None) -> uuid.UUID:
        """Return a new UUID of version 4 or 7; without a version, the daemon's configuration decides (7 by default)."""
        made: uuid.UUID = self._perform(_new_uuid(self._calls, version, timeout))
        return made

    def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return what `kazahanad status --json` prints."""
        return dict(self._perform(self._calls.make("Status", [], table, timeout)))

    def ping(self, *, timeout: float | None = None) -> str:
        """Return "pong"."""
        return str(self._perform(self._calls.make("Ping", [], text, timeout)))


class AsyncOtherCalls:
    """Those of an AsyncClient."""

    _calls: Calls
    _perform: Callable[[Call[Any]], Awaitable[Any]]

    async def inspect(self, id: int | str, **options: Unpack[Options]) -> Inspection:
        """Explain an ID: a number, decimal or hexadecimal (0x) text, or external. Options: service, timeout."""
        inspection: Inspection = await self._perform(_inspect(self._calls, id, options))
        return inspection

    async def is_fallback(self, id: int | str, **options: Unpack[Options]) -> bool:
        """Report whether the ID was made without a valid lease."""
        return (await self.inspect(id, **options)).is_fallback

    async def bounds(self, start: Moment, end: Moment, **options: Unpack[Options]) -> tuple[int, int]:
        """Return the smallest and the largest possible ID in [start, end) (Unix ms, or datetimes with a zone)."""
        low, high = await self._perform(_bounds(self._calls, start, end, options))
        return low, high

    async def to_external(self, id: int, **options: Unpack[Options]) -> str:
        """Return the external ID, made with the service's secret."""
        return str(await self._perform(self._calls.of_service("ToExternal", [id], text, **options)))

    async def to_internal(self, external: str, latest: Moment | None = None, **options: Unpack[Options]) -> int:
        """Return the ID of an external ID. An ID with a time after latest is refused as forged."""
        return int(await self._perform(_to_internal(self._calls, external, latest, options)))

    async def uuid(self, version: int | None = None, *, timeout: float | None = None) -> uuid.UUID:
        """Return a new UUID of version 4 or 7; without a version, the daemon's configuration decides (7 by default)."""
        made: uuid.UUID = await self._perform(_new_uuid(self._calls, version, timeout))
        return made

    async def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return what `kazahanad status --json` prints."""
        return dict(await self._perform(self._calls.make("Status", [], table, timeout)))

    async def ping(self, *, timeout: float | None = None) -> str:
        """Return "pong"."""
        return str(await self._perform(self._calls.make("Ping", [], text, timeout)))
