"""The protocol without I/O: a call as bytes, and bytes as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, Generic, TypeVar

import msgpack

from .errors import InvalidParamsError, KazahanaError, ProtocolError, from_wire

T = TypeVar("T")

ANSWER, NOTIFICATION = 1, 2  # what the first element of a message says it is
MAX_RESPONSE = 4 << 20  # bytes; 65,536 IDs as decimal text are 1.4 MB
MAX_TIMEOUT = 3600.0  # s; the daemon's limit for timeout_ms
DAEMON_TIMEOUT = 10.0  # s; the daemon's default
ANSWER_GRACE = 0.05  # s
TIMED = ("NextID", "NextIDs")  # the calls that tell the daemon their timeout

_HEAD = b"\x94\x00"  # an array of four elements, a request
_HEADS = [_HEAD + msgpack.packb(msgid) for msgid in range(1024)]


class Call(Generic[T]):
    """One request, without its msgid, and how to read the result."""

    __slots__ = ("method", "params", "parse", "tail", "timeout")

    def __init__(
        self, method: str, params: Sequence[Any], parse: Callable[[Any], T], timeout: float, options: Mapping[str, Any]
    ) -> None:
        """timeout, in seconds, is how long to wait. Options that are None are left out."""
        if not 0 < timeout <= MAX_TIMEOUT:
            raise InvalidParamsError(f"a timeout of {timeout} s is out of range: more than 0, up to {MAX_TIMEOUT:.0f}")
        given = {name: value for name, value in options.items() if value is not None}
        if method in TIMED:
            if timeout != DAEMON_TIMEOUT:
                given["timeout_ms"] = max(1, int(timeout * 1000))
            timeout += min(timeout / 10, ANSWER_GRACE)  # the daemon's own error says what it waited for
        self.method, self.parse, self.timeout = method, parse, timeout
        self.params = [*params, given] if given else list(params)
        try:
            self.tail: bytes = msgpack.packb(method) + msgpack.packb(self.params)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidParamsError(f"{method}: cannot send {self.params!r:.200}: {error}") from error

    def request(self, msgid: int) -> bytes:
        """Return what to send."""
        head: bytes = _HEADS[msgid] if msgid < len(_HEADS) else _HEAD + msgpack.packb(msgid)
        return head + self.tail


class Reader:
    """Makes messages of the bytes that one connection receives. After an exception, the connection is of no use."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(max_buffer_size=MAX_RESPONSE, strict_map_key=False, raw=False)
        self._fed = self._end = 0  # bytes: all, and up to the end of the last whole message

    def feed(self, data: bytes) -> list[list[Any]]:
        """Take bytes; return the messages that are whole now: [ANSWER, msgid, error, result] or a notification.

        It raises the daemon's last word (an error with msgid 0) or a ProtocolError.
        """
        # A single answer to NextID: nearly everything that a client without batches reads.
        if len(data) == 13 and self._end == self._fed and data[:2] == b"\x94\x01" and data[3:5] == b"\xc0\xcf":
            return [[ANSWER, data[2], None, int.from_bytes(data[5:], "big")]]
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
