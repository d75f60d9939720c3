"""The protocol without I/O: a call as bytes, bytes as messages, and what a result has to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import lt
from typing import Any, Callable, Generic, Literal, TypedDict, TypeVar

import msgpack

from .errors import InvalidParamsError, KazahanaError, ProtocolError, from_wire

T = TypeVar("T")

ANSWER, NOTIFICATION = 1, 2  # what the first element of a message says it is
MAX_RESPONSE = 4 << 20  # bytes; 65,536 IDs as decimal text are 1.4 MB
MAX_BATCH = 65_536
MAX_ID = (1 << 63) - 1
MAX_TIMEOUT = 3600.0  # s; the daemon's limit for timeout_ms
DAEMON_TIMEOUT = 10.0  # s; the daemon's default
ANSWER_GRACE = 0.05  # s
AsText = Literal["string", "external"]

# How an answer with an ID begins, by its length: the msgid has one to four bytes.
_ID_ANSWERS = {13: b"\x94\x01", 14: b"\x94\x01\xcc", 15: b"\x94\x01\xcd", 17: b"\x94\x01\xce"}


class Options(TypedDict, total=False):
    """Options of nearly every call; the defaults are the client's."""

    service: str | None
    timeout: float | None


class IDOptions(Options, total=False):
    regular_only: bool


class Call(Generic[T]):
    """One request, without its msgid, and how to read the result."""

    def __init__(
        self, method: str, params: Sequence[Any], parse: Callable[[Any], T], timeout: float, options: Mapping[str, Any]
    ) -> None:
        """timeout is how many seconds the call may take. Options that are None are left out.

        A call for IDs tells the daemon its timeout, and then waits a little longer: the error of the daemon says what
        the daemon waited for.
        """
        if not 0 < timeout <= MAX_TIMEOUT:
            raise InvalidParamsError(f"a timeout of {timeout} s is out of range: more than 0, up to {MAX_TIMEOUT:.0f}")
        given = {name: value for name, value in options.items() if value is not None}
        if method in ("NextID", "NextIDs"):
            if timeout != DAEMON_TIMEOUT:  # the daemon is fastest without options
                given["timeout_ms"] = max(1, int(timeout * 1000))
            timeout += min(timeout / 10, ANSWER_GRACE)
        self.method, self.parse, self.timeout = method, parse, timeout
        self._args, self._options = params, options
        self.params = [*params, given] if given else list(params)
        try:
            self.tail: bytes = msgpack.packb(method) + msgpack.packb(self.params)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidParamsError(f"{method}: cannot send {self.params!r:.200}: {error}") from error

    def request(self, msgid: int) -> bytes:
        """Return what to send: an array of four elements, which are a 0, the msgid in four bytes, and the tail."""
        return b"\x94\x00\xce" + msgid.to_bytes(4, "big") + self.tail

    def again(self, left: float) -> Call[T]:
        """Return the call for another try, with so many seconds left. Those include what __init__ adds."""
        timeout = max(left - ANSWER_GRACE, left / 1.1, 0.001)
        return Call(self.method, self._args, self.parse, timeout, self._options)


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
        return self.of_service("NextIDs", [n], partial(values, str, n) if is_text else partial(ids, n), **wanted)


class Reader:
    """Makes messages of the bytes that one connection receives. After an exception, the connection is of no use."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(max_buffer_size=MAX_RESPONSE, strict_map_key=False, raw=False)
        self._fed = self._end = 0  # bytes: all, and up to the end of the last whole message

    def feed(self, data: bytes) -> list[list[Any]]:
        """Take bytes; return the messages that are whole now: [ANSWER, msgid, error, result] or a notification.

        It raises the daemon's last word (an error with msgid 0) or a ProtocolError; at the end, a ConnectionError.
        """
        # A single answer to NextID: nearly everything that a client without batches reads.
        head = _ID_ANSWERS.get(len(data))
        if head and self._end == self._fed and data.startswith(head) and data[-10:-8] == b"\xc0\xcf":
            return [[ANSWER, int.from_bytes(data[len(head) : -10], "big"), None, int.from_bytes(data[-8:], "big")]]
        if not data:
            raise ConnectionResetError("the end of the connection")
        messages = []
        try:
            self._unpacker.feed(data)
            self._fed += len(data)
            for message in self._unpacker:
                self._end = self._unpacker.tell()
                messages.append(self.checked(message))
        except KazahanaError:
            raise
        except Exception as error:  # the unpacker raises many kinds
            raise ProtocolError(f"the answer is not MessagePack-RPC: {error}") from error
        return messages

    def checked(self, message: Any) -> list[Any]:
        """Return a message of the daemon. Its error, if it has one, becomes an exception."""
        if isinstance(message, list) and len(message) == 3 and message[0] == NOTIFICATION:
            return message
        if not (isinstance(message, list) and len(message) == 4 and message[0] == ANSWER and type(message[1]) is int):
            raise ProtocolError("the answer is not MessagePack-RPC: is this the socket of a kazahana daemon?")
        if message[2] is not None:
            _, text = message[2]
            message[2] = from_wire(text)
            if message[1] == 0:
                raise message[2]
        return message


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
    if not (found[0] > 0 and found[-1] <= MAX_ID and all(map(lt, found, found[1:]))):
        raise ProtocolError(f"the daemon answered IDs that do not ascend from 1 to {MAX_ID}")
    return found


text = partial(exactly, str)
