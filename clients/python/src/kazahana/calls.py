"""The calls of the daemon, and the Python types of their results."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from itertools import islice
from operator import lt
from typing import Any, Callable, Literal, TypedDict, Union

from .errors import InvalidParamsError, ProtocolError
from .protocol import Call

MAX_BATCH = 65_536
MAX_ID = (1 << 63) - 1

_TIMED = ("NextID", "NextIDs")  # the calls that tell the daemon their timeout
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TEXT_FORMATS = ("string", "external")

Moment = Union[int, datetime]
AsText = Literal["string", "external"]


class Options(TypedDict, total=False):
    """Options of nearly every call; the defaults are the client's."""

    service: str | None
    timeout: float | None


class IDOptions(Options, total=False):
    regular_only: bool


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


def _exactly(kind: Any, what: str) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not kind:
            raise ProtocolError(f"the daemon answered {type(value).__name__} where {what} was due")
        return value

    return parse


integer, text, table = _exactly(int, "an integer"), _exactly(str, "a text"), _exactly(dict, "a map")


def _id(value: Any) -> int:
    if type(value) is not int or not 0 < value <= MAX_ID:
        raise ProtocolError(f"the daemon answered {value!r:.40} where an ID was due: 1 to {MAX_ID}")
    return value


def _ascending(ids: list[int]) -> list[int]:
    if not (ids[0] > 0 and ids[-1] <= MAX_ID and all(map(lt, ids, islice(ids, 1, None)))):
        raise ProtocolError(f"the daemon answered IDs that do not ascend from 1 to {MAX_ID}")
    return ids


def _uuid(value: Any) -> uuid.UUID:
    try:
        return uuid.UUID(text(value))
    except ValueError as error:
        raise ProtocolError("the daemon answered a text that is not a UUID") from error


def list_of(kind: Any, count: int) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not list or len(value) != count or not set(map(type, value)) <= {kind}:
            raise ProtocolError(f"the daemon did not answer {count} values of type {kind.__name__}")
        return value

    return parse


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


_two, _inspection = list_of(int, 2), record(Inspection)


def milliseconds(moment: Moment) -> int:
    """Convert a time: Unix milliseconds, or a datetime with a zone."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidParamsError(f"{moment!r} has no time zone: add one, for example tzinfo=timezone.utc")
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    return moment


def count(n: int) -> int:
    if not 1 <= n <= MAX_BATCH:
        raise InvalidParamsError(f"a count of {n} is out of range: 1 to {MAX_BATCH}")
    return n


class Calls:
    """Makes the calls, with a client's service and timeout as defaults."""

    def __init__(self, service: str | None, timeout: float) -> None:
        self.service = service
        self.timeout = timeout
        self.plain: Call[int] = self.next_id()

    def make(self, method: str, params: list[Any], parse: Any, timeout: float | None, options: Any = None) -> Call[Any]:
        return Call(method, params, parse, self.timeout if timeout is None else timeout, options, method in _TIMED)

    def next_id(self, format: str = "int", **options: Any) -> Call[Any]:
        return self._ids("NextID", [], text if format in _TEXT_FORMATS else _id, format, **options)

    def next_ids(self, n: int, format: str = "int", **options: Any) -> Call[Any]:
        is_text = format in _TEXT_FORMATS
        listed = list_of(str if is_text else int, count(n))
        parse = listed if is_text else lambda value: _ascending(listed(value))
        return self._ids("NextIDs", [n], parse, format, **options)

    def _ids(
        self, method: str, params: list[Any], parse: Any, format: str, regular_only: bool = False, **options: Any
    ) -> Call[Any]:
        wanted = {"format": None if format == "int" else format, "regular_only": regular_only or None}
        return self._of(method, params, parse, wanted, **options)

    def _of(
        self, method: str, params: list[Any], parse: Any, wanted: Any = None, service: Any = None, timeout: Any = None
    ) -> Call[Any]:
        options = {"service": self.service if service is None else service, **(wanted or {})}
        return self.make(method, params, parse, timeout, options)

    def inspect(self, id: int | str, **options: Any) -> Call[Inspection]:
        return self._of("Inspect", [id], _inspection, **options)

    def bounds(self, start: Moment, end: Moment, **options: Any) -> Call[tuple[int, int]]:
        return self._of("Bounds", [milliseconds(start), milliseconds(end)], lambda value: tuple(_two(value)), **options)

    def to_external(self, id: int, **options: Any) -> Call[str]:
        return self._of("ToExternal", [id], text, **options)

    def to_internal(self, external: str, latest: Moment | None, **options: Any) -> Call[int]:
        limit = {"latest_ms": None if latest is None else milliseconds(latest)}
        return self._of("ToInternal", [external], _id, limit, **options)

    def uuid(self, version: int | None, timeout: float | None) -> Call[uuid.UUID]:
        return self.make("UUID", [] if version is None else [version], _uuid, timeout)

    def status(self, timeout: float | None) -> Call[dict[str, Any]]:
        return self.make("Status", [], table, timeout)

    def ping(self, timeout: float | None) -> Call[str]:
        return self.make("Ping", [], text, timeout)
