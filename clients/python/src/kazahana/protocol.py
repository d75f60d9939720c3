"""The protocol without I/O: encoding, decoding, and whether to try again.

Nothing here reads a clock, sleeps or touches a socket; the sync and the asyncio client
are two thin shells around it.
"""

from __future__ import annotations

import random
from copy import copy
from typing import Any, Callable, Generic, NamedTuple, TypeVar

import msgpack

from .errors import (
    ClientClosedError,
    DaemonUnavailableError,
    InvalidParamsError,
    KazahanaError,
    ProtocolError,
    RequestTimeoutError,
    ShuttingDownError,
    from_wire,
)

T = TypeVar("T")
W = TypeVar("W")
Parse = Callable[[Any], T]

INF = float("inf")
MAX_REQUEST = 256 << 10  # the daemon accepts no larger one
MAX_RESPONSE = 4 << 20  # 65,536 IDs as decimal text are 1.4 MB
DAEMON_TIMEOUT = 10.0  # s; the daemon's default
ANSWER_GRACE = 0.05  # s
MAX_TIMEOUT = 3600.0  # s; the daemon's limit for timeout_ms
_MAX_MSGID = (1 << 32) - 1
_SMALL_MSGIDS = 127  # those that take one byte

_HEAD = b"\x94\x00"  # an array of four, a request
_HEADS = [_HEAD + bytes([msgid]) for msgid in range(_SMALL_MSGIDS + 1)]


class Call(Generic[T]):
    """One request, without its msgid, and how to read the result."""

    __slots__ = ("method", "params", "parse", "timeout", "tail")

    def __init__(
        self, method: str, params: Any, parse: Parse[T], timeout: float, options: Any = None, timed: bool = False
    ) -> None:
        """timeout, in seconds, is how long to wait. A timed call tells the daemon its timeout, and waits a
        moment longer, since the daemon's own error says what it waited for.
        """
        if not 0 < timeout <= MAX_TIMEOUT:
            raise InvalidParamsError(f"a timeout of {timeout} s is out of range: more than 0, up to {MAX_TIMEOUT:.0f}")
        options = {name: value for name, value in (options or {}).items() if value is not None}
        if timed and timeout != DAEMON_TIMEOUT:
            options["timeout_ms"] = max(1, int(timeout * 1000))
        self.method = method
        self.params = [*params, options] if options else list(params)
        self.parse = parse
        self.timeout = timeout + min(timeout / 10, ANSWER_GRACE) if timed else timeout
        try:
            self.tail: bytes = msgpack.packb(method) + msgpack.packb(self.params)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidParamsError(f"{method}: cannot send {params!r}: {error}") from error
        if len(self.tail) > MAX_REQUEST - 16:
            raise InvalidParamsError(f"{method}: a request of {len(self.tail)} bytes is too large: up to {MAX_REQUEST}")


class Unasked(NamedTuple):
    """A notification of the daemon, or a request, which must be answered."""

    msgid: int | None  # of a request
    method: str
    params: Any


class Session(Generic[W]):
    """One connection: requests under way, each with its waiter, and bytes not yet read.

    Not synchronised. After an exception of feed, the connection cannot be used any more.
    """

    def __init__(self, two_way: bool = False) -> None:
        """two_way says whether the daemon may send requests, too."""
        self.waiting: dict[int, W] = {}  # by msgid; of one that gave up it stays taken until its answer
        self.unasked: list[Unasked] = []  # for the caller to take away
        self._two_way = two_way
        self._last = 0
        self._wide = _SMALL_MSGIDS
        self._unpacker = msgpack.Unpacker(max_buffer_size=MAX_RESPONSE, strict_map_key=False, raw=False)
        self._fed = self._end = 0  # bytes: all, and up to the end of the last whole message

    def request(self, call: Call[Any], waiter: W) -> bytes:
        """Register the waiter and return what to send."""
        msgid = self._last = self._last % _SMALL_MSGIDS + 1
        while msgid in self.waiting:  # the next that is free of those that take more bytes
            msgid = self._wide = max((self._wide + 1) & _MAX_MSGID, _SMALL_MSGIDS + 1)
        self.waiting[msgid] = waiter
        return (_HEADS[msgid] if msgid <= _SMALL_MSGIDS else _HEAD + msgpack.packb(msgid)) + call.tail

    def feed(self, data: bytes) -> list[tuple[W, KazahanaError | None, Any]]:
        """Read bytes; return the waiters with an answer, each with an error or a result.

        It raises the daemon's last word (an error with msgid 0) or a ProtocolError.
        """
        # A single answer to NextID: nearly everything that a client without batches reads.
        if len(data) == 13 and self._end == self._fed and data[:2] == b"\x94\x01" and data[3:5] == b"\xc0\xcf":
            waiter = self.waiting.pop(data[2], None)
            return [] if waiter is None else [(waiter, None, int.from_bytes(data[5:], "big"))]
        answers = []
        try:
            self._unpacker.feed(data)
            self._fed += len(data)
            for message in self._unpacker:
                self._end = self._unpacker.tell()
                answer = self._take(message)
                if answer is not None:
                    answers.append(answer)
        except Exception as error:  # the unpacker raises many kinds
            # With the connection, the calls fail whose answers came just before.
            self.waiting.update((-i, waiter) for i, (waiter, _, _) in enumerate(answers, 1))
            if isinstance(error, KazahanaError):
                raise
            raise ProtocolError(f"the answer is not MessagePack-RPC: {error}") from error
        return answers

    def _take(self, message: Any) -> tuple[W, KazahanaError | None, Any] | None:
        if isinstance(message, list) and len(message) == 3 and message[0] == 2:
            if isinstance(message[1], str):
                self.unasked.append(Unasked(None, *message[1:]))
            return None
        whole = isinstance(message, list) and len(message) == 4 and type(message[1]) is int
        if whole and message[0] == 0 and self._two_way and isinstance(message[2], str):
            self.unasked.append(Unasked(*message[1:]))
            return None
        if not whole or message[0] != 1:
            raise ProtocolError("the answer is not MessagePack-RPC: is this the socket of a kazahana daemon?")
        _, msgid, problem, result = message
        error = None
        if problem is not None:
            if not isinstance(problem, list) or len(problem) != 2 or not isinstance(problem[1], str):
                raise ProtocolError("an error of the daemon is not [kind, text]")
            error = from_wire(problem[1])
            if msgid == 0:
                raise error
        waiter = self.waiting.pop(msgid, None)
        return None if waiter is None else (waiter, error, result)


class Retry:
    """Decides whether a failed call is tried again, and when. One per call.

    All calls may be repeated: an ID that was made and not received leaves a gap, and calls with
    effects have a request ID. So a restart of the daemon costs time, but no error. Without
    arguments there is no deadline: for the delays alone.
    """

    FIRST, LONGEST = 0.005, 0.2  # s between tries: from, to, doubling
    FIRST_CONTACT = 1.0  # s for a daemon that was never reached: it may be starting

    def __init__(self, started: float = 0.0, timeout: float = INF, reached: bool = True, single: bool = False) -> None:
        """reached says whether the daemon was ever reached; single, that there is no second try."""
        self._single = single
        self._limit = started + (timeout if reached else min(timeout, self.FIRST_CONTACT))
        self._tries = 0 if reached else 1

    def pause(self, error: KazahanaError, now: float, chance: Callable[[], float] = random.random) -> float:
        """Return how many seconds to wait before the next try, or raise the error if there will be none."""
        transient = isinstance(error, ShuttingDownError) or getattr(error, "transient", False)
        delay = self.delay(chance)
        if self._single or not transient or now + delay >= self._limit:
            raise error
        return delay

    def delay(self, chance: Callable[[], float] = random.random) -> float:
        """Return how many seconds to wait before the next try, if there is one."""
        # The first try after a lost connection comes at once: a new daemon may listen already.
        delay = min(self.LONGEST, self.FIRST * 2 ** (self._tries - 1)) * (1 - chance() / 2) if self._tries else 0.0
        self._tries = min(self._tries + 1, 16)
        return delay


def lost(path: str, cause: BaseException | None = None) -> DaemonUnavailableError:
    error = DaemonUnavailableError(f"the daemon at {path} closed the connection", path=path)
    error.__cause__ = cause
    return error


def unanswered(call: Call[Any], path: str) -> RequestTimeoutError:
    return late(call.timeout, f"no answer to {call.method} from {path} in time")


def late(timeout: float, message: str = "no IDs in time") -> RequestTimeoutError:
    return RequestTimeoutError(message, waited_ms=int(timeout * 1000), cause="answer")


def copy_of(error: KazahanaError) -> KazahanaError:
    """Return a copy of the error: one instance must not be raised in several threads."""
    made = copy(error)
    made.__cause__ = error.__cause__
    return made


def closed() -> ClientClosedError:
    return ClientClosedError("the client was closed")
