"""A connection for asyncio, on which calls are pipelined. Deadlines are times of clock.monotonic."""

from __future__ import annotations

import asyncio
from typing import Any

from . import fork
from .base import CHUNK, QUIET, AnyConnection
from .clock import Alarm, monotonic
from .errors import KazahanaError, OverloadedError, PermissionDeniedError, copy_of, late, lost
from .protocol import ANSWER, Call

MAX_MSGID = (1 << 32) - 1
INF = float("inf")


class AsyncConnection(AnyConnection):
    """A socket of the running loop; each caller waits for a future. The calls of one turn of the loop share a write."""

    def __init__(self, path: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.error: KazahanaError | None = None  # what it ended with
        self._refusal: KazahanaError | None = None
        self._msgid = 0
        self._waiting: dict[int, tuple[asyncio.Future[Any], Call[Any], float]] = {}  # with the deadline
        self._alarm: Alarm | None = None  # for all that wait: one for each call would cost a sixth of the call
        self._rings = INF  # when the alarm does
        self._unsent: dict[int, bytes] = {}  # whole requests
        self._rest = b""  # of what the socket did not take all of
        super().__init__(path)  # from then on, another thread may fork
        self.loop.add_reader(self._socket.fileno(), self._readable)

    async def call(self, call: Call[Any], deadline: float) -> Any:
        """Send, and return the result, or raise the daemon's error.

        Without an answer, raise a RequestTimeoutError at the deadline (see _expire), or an error of lost when the
        connection ends (see _readable and fail).
        """
        if self.error is not None:
            raise copy_of(self.error)
        msgid = self._msgid = self._msgid % MAX_MSGID + 1  # never one whose answer may still come
        answer = self.loop.create_future()
        self._waiting[msgid] = answer, call, deadline
        self._ring_by(deadline)
        self.write(msgid, call.request(msgid))
        try:
            return await answer
        finally:
            self._waiting.pop(msgid, None)
            self._unsent.pop(msgid, None)

    def write(self, key: int, data: bytes) -> None:
        """Send at once if nothing else is under way, else together with what this turn of the loop still asks."""
        self._unsent[key] = data
        if len(self._waiting) == 1:
            self._flush()
        elif len(self._unsent) == 1:
            self.loop.call_soon(self._flush)

    def notice(self, message: list[Any]) -> None:
        """Take what is not an answer."""

    def fail(self, error: KazahanaError) -> None:
        """End the connection; whoever waits gets the error."""
        fork.look()  # a child does not touch its parent's loop: see _after_fork
        if self.broken:
            return
        self.error, self.broken = error, True
        if not self.loop.is_closed():
            if self._alarm is not None:
                self._alarm.cancel()
            for answer, _, _ in self._waiting.values():
                if not answer.done():
                    answer.set_exception(copy_of(error))
            self.loop.remove_reader(self._socket.fileno())
            self.loop.remove_writer(self._socket.fileno())
        self._close()

    def _after_fork(self) -> None:
        """Close the child's copy of the socket. The loop and its selector are the parent's: they are not touched."""
        self.error, self.broken = self.error or lost(self.path), True
        self._close()

    def _ring_by(self, deadline: float) -> None:
        if deadline < self._rings:
            if self._alarm is not None:
                self._alarm.cancel()
            self._rings, self._alarm = deadline, Alarm(self.loop, deadline, self._expire)

    def _expire(self) -> None:
        """End the calls whose deadline is over, and wait for the next deadline."""
        self._rings = INF
        for answer, call, deadline in self._waiting.values():
            if deadline > monotonic():
                self._ring_by(deadline)
            elif not answer.done():
                answer.set_exception(late(call.timeout, f"no answer to {call.method} from {self.path}"))

    def _flush(self) -> None:
        """Send what the socket takes; call back when it takes more."""
        if self.broken:
            return
        was_blocked = bool(self._rest)
        try:
            while self._rest or self._unsent:
                if not self._rest:
                    self._rest = b"".join(self._unsent.values())
                    self._unsent.clear()
                self._rest = self._rest[self._socket.send(self._rest, QUIET) :]
        except BlockingIOError:
            pass
        except OSError:
            self._rest = b""  # the daemon's last word, or the end, can be read
        if self._rest and not was_blocked:
            self.loop.add_writer(self._socket.fileno(), self._flush)
        elif was_blocked and not self._rest:
            self.loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        try:
            data = self._socket.recv(CHUNK)
            if not data:
                raise self._refusal or lost(self.path)
            for message in self._reader.feed(data):
                self._take(message)
        except BlockingIOError:
            pass
        except KazahanaError as error:
            self.fail(error)
        except OSError as error:
            self.fail(self._refusal or lost(self.path, error))

    def _take(self, message: list[Any]) -> None:
        if message[0] != ANSWER:
            self.notice(message)
            return
        _, msgid, error, result = message
        # A daemon that turns a client away answers one request, and closes.
        self._refusal = error if isinstance(error, (OverloadedError, PermissionDeniedError)) else None
        if msgid in self._waiting and not (answer := self._waiting[msgid][0]).done():
            answer.set_result(result) if error is None else answer.set_exception(error)
