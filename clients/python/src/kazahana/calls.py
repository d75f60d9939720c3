"""The calls of the daemon, and the Python types of their results."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from itertools import islice
from operator import lt
from typing import Any, Callable, TypedDict, Union

from .errors import InvalidParamsError, LockLostError, ProtocolError
from .protocol import MAX_TIMEOUT, Call

MAX_BATCH = 65_536


def request_id() -> str:
    """A UUID of version 7: it tells its time, so that the store of locks can refuse it once its receipt is dropped."""
    return f"{time.time_ns() // 1_000_000:012x}7{uuid.uuid4().hex[13:]}"


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TEXT_FORMATS = ("string", "external")

Moment = Union[int, datetime]


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


@dataclass(frozen=True)
class LockState:
    """A lock as the daemon reports it; times are by the store's clock."""

    lock_key: str
    lease_id: str
    owner_id: str
    fencing_token: int
    state: str
    """ACTIVE, RELEASED or EXPIRED"""
    acquired_at: str
    expires_at: str
    expires_in_ms: int
    tenant_id: str = ""


MAX_ID = (1 << 63) - 1


def _exactly(kind: Any, what: str) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not kind:
            raise ProtocolError(f"the daemon answered {type(value).__name__} where {what} was due")
        return value

    return parse


_integer, _text, _table = _exactly(int, "an integer"), _exactly(str, "a text"), _exactly(dict, "a map")


def _id(value: Any) -> int:
    if type(value) is not int or not 0 < value <= MAX_ID:
        raise ProtocolError(f"the daemon answered {value!r:.40} where an ID was due: 1 to {MAX_ID}")
    return value


def _ids(count: int) -> Callable[[Any], Any]:
    parse = _list_of(int, count)

    def parse_ids(value: Any) -> Any:
        ids = parse(value)
        if not (ids[0] > 0 and ids[-1] <= MAX_ID and all(map(lt, ids, islice(ids, 1, None)))):
            raise ProtocolError(f"the daemon answered IDs that do not ascend from 1 to {MAX_ID}")
        return ids

    return parse_ids


def _uuid(value: Any) -> uuid.UUID:
    try:
        return uuid.UUID(_text(value))
    except ValueError as error:
        raise ProtocolError("the daemon answered a text that is not a UUID") from error


def _list_of(kind: Any, count: int) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not list or len(value) != count or not set(map(type, value)) <= {kind}:
            raise ProtocolError(f"the daemon did not answer {count} values of type {kind.__name__}")
        return value

    return parse


def record(kind: Any) -> Callable[[Any], Any]:
    """Return a function that reads a map as the dataclass `kind`, of integers and texts. It ignores unknown keys."""
    types = {field.name: {"int": int, "str": str}[str(field.type)] for field in fields(kind)}

    def parse(value: Any) -> Any:
        known = {name: member for name, member in _table(value).items() if name in types}
        for name, member in known.items():
            if type(member) is not types[name]:
                raise ProtocolError(f"the daemon answered {name}={member!r:.40}: {types[name].__name__} is due")
        try:
            return kind(**known)
        except TypeError as error:
            raise ProtocolError(f"the daemon's answer is not complete: {error}") from error

    return parse


@dataclass(frozen=True)
class Resolution:
    """Where an actor lives. Of a remote actor only the authority is known: pid is "", version and token are 0."""

    kind: str
    identity: str
    authority: str
    """host:port of the member that is responsible for the actor"""
    locality: str
    """local or remote"""
    pid: str
    """the process's name for the actor"""
    version: int
    token: int
    """the fencing token of the activation: greater than that of every earlier one"""
    observed_ms: int
    """Unix time"""

    @property
    def is_local(self) -> bool:
        return self.locality == "local"


_pair, _inspection, _lock_state = _list_of(int, 2), record(Inspection), record(LockState)


_resolution = record(Resolution)


def _valid_ms(value: Any) -> int:
    return int(_integer(_table(value).get("valid_ms")))


def _active(value: Any) -> LockState:
    state: LockState = _lock_state(value)
    if state.state != "ACTIVE":
        raise LockLostError(f"the lock {state.lock_key!r} was lost as soon as it was granted")
    return state


def milliseconds(moment: Moment) -> int:
    """Convert a time: Unix milliseconds, or a datetime with a zone."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidParamsError(f"{moment!r} has no time zone: add one, for example tzinfo=timezone.utc")
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    return moment


def _count(n: int) -> int:
    if not 1 <= n <= MAX_BATCH:
        raise InvalidParamsError(f"a count of {n} is out of range: 1 to {MAX_BATCH}")
    return n


class Calls:
    """Makes the calls, with a client's service and timeout as defaults."""

    def __init__(self, service: str | None, timeout: float) -> None:
        self.service = service
        self.timeout = timeout
        self.plain: Call[int] = self.next_id()

    def _make(
        self,
        method: str,
        params: list[Any],
        parse: Any,
        timeout: float | None,
        options: Mapping[str, Any] | None = None,
        *,
        timed: bool = False,
    ) -> Call[Any]:
        return Call(method, params, parse, self.timeout if timeout is None else timeout, options, timed=timed)

    def next_id(
        self,
        format: str = "int",
        service: str | None = None,
        timeout: float | None = None,
        regular_only: bool = False,
    ) -> Call[Any]:
        parse = _text if format in _TEXT_FORMATS else _id
        return self._make("NextID", [], parse, timeout, self._wanted(format, service, regular_only), timed=True)

    def next_ids(
        self,
        n: int,
        format: str = "int",
        service: str | None = None,
        timeout: float | None = None,
        regular_only: bool = False,
    ) -> Call[Any]:
        parse = _list_of(str, _count(n)) if format in _TEXT_FORMATS else _ids(_count(n))
        return self._make("NextIDs", [n], parse, timeout, self._wanted(format, service, regular_only), timed=True)

    def _wanted(self, format: str, service: str | None, regular_only: bool) -> dict[str, Any]:
        format_option = None if format == "int" else format
        return {**self._of(service), "format": format_option, "regular_only": regular_only or None}

    def _of(self, service: str | None) -> dict[str, Any]:
        return {"service": self.service if service is None else service}

    def inspect(self, id: int | str, service: str | None = None, timeout: float | None = None) -> Call[Inspection]:
        return self._make("Inspect", [id], _inspection, timeout, self._of(service))

    def bounds(
        self, start: Moment, end: Moment, service: str | None = None, timeout: float | None = None
    ) -> Call[tuple[int, int]]:
        params = [milliseconds(start), milliseconds(end)]
        return self._make("Bounds", params, lambda value: tuple(_pair(value)), timeout, self._of(service))

    def to_external(self, id: int, service: str | None = None, timeout: float | None = None) -> Call[str]:
        return self._make("ToExternal", [id], _text, timeout, self._of(service))

    def to_internal(
        self,
        external: str,
        latest: Moment | None,
        service: str | None = None,
        timeout: float | None = None,
    ) -> Call[int]:
        limit = None if latest is None else milliseconds(latest)
        return self._make("ToInternal", [external], _id, timeout, {**self._of(service), "latest_ms": limit})

    def uuid(self, version: int, timeout: float | None) -> Call[uuid.UUID]:
        return self._make("UUID", [version], _uuid, timeout)

    def status(self, timeout: float | None) -> Call[dict[str, Any]]:
        return self._make("Status", [], _table, timeout)

    def ping(self, timeout: float | None) -> Call[str]:
        return self._make("Ping", [], _text, timeout)

    def next_sequence(self, key: str, timeout: float | None, options: Mapping[str, Any]) -> Call[int]:
        options = {"request_id": request_id(), **options}
        return self._make("Sequence.Next", [key], _integer, timeout, options)

    def next_sequences(self, key: str, n: int, timeout: float | None, options: Mapping[str, Any]) -> Call[list[int]]:
        options = {"request_id": request_id(), **options}
        return self._make("Sequence.NextBatch", [key, _count(n)], _list_of(int, n), timeout, options)

    def acquire(self, key: str, ttl: float, wait: float) -> Call[LockState]:
        if not (ttl > 0 and wait >= 0):
            raise InvalidParamsError(f"ttl={ttl} or wait={wait} is out of range: more than 0 s, and at least 0 s")
        options = {
            "ttl_ms": max(1, int(ttl * 1000)),
            "wait_ms": int(wait * 1000),
            "request_id": request_id(),
            "hold": "connection",
        }
        return self._make("Lock.Acquire", [key], _lock_state, min(self.timeout + wait, MAX_TIMEOUT), options)

    def release(self, key: str, lease_id: str) -> Call[LockState]:
        return self._make("Lock.Release", [key], _lock_state, None, {"lease_id": lease_id, "request_id": request_id()})

    def watch(self, key: str, lease_id: str) -> Call[LockState]:
        return self._make("Lock.Watch", [key], _active, None, {"lease_id": lease_id})

    def resolve(self, kind: str, identity: str, wait: float) -> Call[Resolution]:
        if not 0 <= wait <= MAX_TIMEOUT:
            raise InvalidParamsError(f"wait={wait} is out of range: 0 to 600 s")
        options = {"wait_ms": int(wait * 1000)}
        timeout = min(self.timeout + wait, MAX_TIMEOUT)
        return self._make("Placement.Resolve", [kind, identity], _resolution, timeout, options)

    def register(self, kinds: Sequence[str]) -> Call[dict[str, Any]]:
        return self._make("Placement.Register", [[kinds] if isinstance(kinds, str) else list(kinds)], _table, None)

    def unregister(self) -> Call[dict[str, Any]]:
        return self._make("Placement.Unregister", [], _table, None)

    def check(self, kind: str, identity: str, token: int, timeout: float) -> Call[int]:
        return self._make("Placement.Check", [kind, identity, token], _valid_ms, timeout)

    def placement_watch(self, events: Sequence[str] | None) -> Call[dict[str, Any]]:
        options = {"events": None if events is None else list(events)}
        return self._make("Placement.Watch", [], _table, None, options)

    def placement_snapshot(self, timeout: float | None, options: Mapping[str, Any]) -> Call[dict[str, Any]]:
        return self._make("Placement.Snapshot", [], _table, timeout, options)
