"""Calls for IDs, with a client's defaults, and the checks of what the daemon answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from operator import lt
from typing import Any, Literal, TypedDict, TypeVar

from .errors import InvalidParamsError, ProtocolError
from .protocol import Call

T = TypeVar("T")

MAX_BATCH = 65_536
MAX_ID = (1 << 63) - 1
AsText = Literal["string", "external"]


class Options(TypedDict, total=False):
    """Options of nearly every call; the defaults are the client's."""

    service: str | None
    timeout: float | None


class IDOptions(Options, total=False):
    regular_only: bool


def exactly(kind: type[T], value: Any) -> T:
    """Return the value if it has this type, and not only one that is derived from it, as a bool is an int."""
    if type(value) is not kind:
        raise ProtocolError(f"the daemon answered {value!r:.40} where {kind.__name__} was due")
    return value


def an_id(value: Any) -> int:
    if type(value) is not int or not 0 < value <= MAX_ID:
        raise ProtocolError(f"the daemon answered {value!r:.40} where an ID was due: 1 to {MAX_ID}")
    return value


def values(kind: type[T], count: int, value: Any) -> list[T]:
    """Return the value if it is a list of so many values of this type."""
    if type(value) is not list or len(value) != count or set(map(type, value)) != {kind}:
        raise ProtocolError(f"the daemon did not answer {count} values of type {kind.__name__}")
    return value


def ids(count: int, value: Any) -> list[int]:
    """Return the value if it is a list of so many IDs, ascending."""
    found = values(int, count, value)
    if not (found[0] > 0 and found[-1] <= MAX_ID and all(map(lt, found, islice(found, 1, None)))):
        raise ProtocolError(f"the daemon answered IDs that do not ascend from 1 to {MAX_ID}")
    return found


text = partial(exactly, str)


def at_most(n: int) -> int:
    """Return a count that the daemon allows."""
    if not 1 <= n <= MAX_BATCH:
        raise InvalidParamsError(f"a count of {n} is out of range: 1 to {MAX_BATCH}")
    return n


class Calls:
    """Makes calls, with a client's service and timeout as defaults."""

    def __init__(self, service: str | None, timeout: float) -> None:
        self.service, self.timeout = service, timeout
        self.plain: Call[int] = self.ids(None)

    def make(
        self, method: str, params: Sequence[Any], parse: Any, timeout: float | None = None, **options: Any
    ) -> Call[Any]:
        """Return a call whose options are the daemon's."""
        return Call(method, params, parse, self.timeout if timeout is None else timeout, options)

    def of_service(
        self, method: str, params: Sequence[Any], parse: Any, service: str | None = None, **options: Any
    ) -> Call[Any]:
        return self.make(method, params, parse, service=self.service if service is None else service, **options)

    def ids(self, n: int | None, format: str = "int", regular_only: bool = False, **options: Any) -> Call[Any]:
        """Return a call for n IDs, None: for one that is not in a list."""
        is_text = format in ("string", "external")
        wanted = {"format": None if format == "int" else format, "regular_only": regular_only or None, **options}
        if n is None:
            return self.of_service("NextID", [], text if is_text else an_id, **wanted)
        parse = partial(values, str, at_most(n)) if is_text else partial(ids, at_most(n))
        return self.of_service("NextIDs", [n], parse, **wanted)
