"""The connections. For threads one blocks, and carries one call at a time; for asyncio one carries all calls at once.

Both notice here that an answer is lost, because the connection ends or the deadline is over. Deadlines are times of
clock.monotonic.
"""

from __future__ import annotations

import _socket
import asyncio
import socket
import struct
import weakref
from collections.abc import Coroutine
from typing import Any, Callable

from . import address, fork
from .clock import Alarm, monotonic
from .errors import KazahanaError, OverloadedError, PermissionDeniedError, copy_of, late, lost
from .protocol import ANSWER, Call, Reader

CHUNK = 1 << 16  # bytes that are read at once
QUIET = int(getattr(socket, "MSG_NOSIGNAL", 0))  # a number: arithmetic of the enumeration's members is slow
MAX_MSGID, MAX_SHORT_MSGID = (1 << 32) - 1, 127  # the latter takes one byte
# How long an operation blocks in the system before the deadline is looked at. Answers usually come sooner, and then a
# read takes one system call instead of two.
_PATIENCE = struct.pack("@ll", 0, 2000)  # s, µs


def run(steps: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine of a Client, or of its locks, to its end: a Connection blocks, and so nothing suspends it."""
    try:
        steps.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a call of a Client waits for an event loop")


class AnyConnection:
    """One socket. A broken connection is only good to be closed: another one takes its place."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.broken = False
        self._msgid = 0  # of the last request
        self._reader = Reader()
        self._socket = made = address.connect(path)  # a Unix socket connects at once or fails
        # A finalizer, so that a client that is never closed leaves no warning behind.
        self._close = weakref.finalize(self, made.close)
        fork.track(self)

    def notice(self, message: list[Any]) -> None:
        """Take what is not the answer to a call."""


class Connection(AnyConnection):
    """One for threads. After an error that is not the daemon's answer it is broken."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        # gevent and eventlet replace the system's sockets with their own. With a timeout of 0 those never wait; _within
        # gives them one, during which other green threads run. The system's wait for _PATIENCE at most.
        self._timeout = None if type(self._socket).recv is _socket.socket.recv else 0.0
        self._socket.settimeout(self._timeout)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _PATIENCE)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)

    def call(self, call: Call[Any], deadline: float) -> Any:
        """Send, and return the result, or raise the daemon's error.

        If no answer comes, raise a RequestTimeoutError at the deadline, or a DaemonUnavailableError when the connection
        ends.
        """
        msgid = self._msgid = self._msgid % MAX_SHORT_MSGID + 1
        self.broken = True  # until the answer is whole: an exception, also a signal's, may leave a part of it
        try:
            self._send(call.request(msgid), deadline)
            _, _, error, result = self._answer(msgid, deadline)
        except KazahanaError:
            raise
        except socket.timeout:
            raise late(call.timeout, f"no answer to {call.method} from {self.path}") from None
        except OSError as failure:
            raise lost(self.path) from failure
        self.broken = error is not None and error.transient  # another daemon may have taken over
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        self.broken = True
        self._close()

    _after_fork = close  # the child's copy of the socket: the daemon must notice when the parent closes its own

    def _send(self, request: bytes, deadline: float) -> None:
        try:
            while request:
                request = request[self._within(deadline, self._socket.send, request, QUIET) :]
        except BrokenPipeError:
            pass  # the daemon has closed the connection; the error that it sent before can still be read

    def _answer(self, msgid: int, deadline: float) -> list[Any]:
        answer: list[Any] = []
        while not answer:
            for message in self._reader.feed(self._within(deadline, self._socket.recv, CHUNK)):
                if message[0] == ANSWER and message[1] == msgid:
                    answer = message
                else:
                    self.notice(message)
            if not answer and monotonic() >= deadline:  # a daemon that never stops sending other things
                raise socket.timeout
        return answer

    def _within(self, deadline: float, operate: Callable[..., Any], *arguments: Any) -> Any:
        """Perform an operation of the socket. At the deadline, raise a socket.timeout."""
        try:
            return operate(*arguments)
        except BlockingIOError:
            self._socket.settimeout(max(deadline - monotonic(), 1e-6))
        try:
            return operate(*arguments)
        finally:
            self._socket.settimeout(self._timeout)


class AsyncConnection(AnyConnection):
    """One of the running event loop. Each call waits for a future; the calls of one turn of the loop share a write."""

    def __init__(self, path: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.error: KazahanaError | None = None  # what it ended with
        self._refusal: KazahanaError | None = None
        self._waiting: dict[int, tuple[asyncio.Future[Any], Call[Any], float]] = {}  # with the deadline
        # For all that wait: one for each call would cost a sixth of the call.
        self._alarm = Alarm(self.loop, self._expire)
        self._unsent: dict[int, bytes] = {}  # whole requests
        self._rest = b""  # of what the socket did not take all of
        super().__init__(path)  # from then on, another thread may fork
        self.loop.add_reader(self._socket.fileno(), self._readable)

    async def call(self, call: Call[Any], deadline: float) -> Any:
        """Send, and return the result, or raise the daemon's error.

        If no answer comes, raise a RequestTimeoutError at the deadline (see _expire), or a DaemonUnavailableError when
        the connection ends (see _readable and fail).
        """
        if self.error is not None:
            raise copy_of(self.error)
        msgid = self._msgid = self._msgid % MAX_MSGID + 1  # never one whose answer may still come
        answer = self.loop.create_future()
        self._waiting[msgid] = answer, call, deadline
        self._alarm.by(deadline)
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

    def fail(self, error: KazahanaError) -> None:
        """End the connection; calls that wait get the error."""
        fork.look()  # a child does not touch its parent's loop: see _after_fork
        if self.broken:
            return
        self.error, self.broken = error, True
        if not self.loop.is_closed():
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

    def _expire(self) -> None:
        """End the calls whose deadline is over, and wait for the next deadline."""
        for answer, call, deadline in self._waiting.values():
            if deadline > monotonic():
                self._alarm.by(deadline)
            elif not answer.done():
                answer.set_exception(late(call.timeout, f"no answer to {call.method} from {self.path}"))

    def _flush(self) -> None:
        """Send what the socket takes; call back when it takes more."""
        try:
            while self._rest or self._unsent:
                if not self._rest:
                    self._rest = b"".join(self._unsent.values())
                    self._unsent.clear()
                self._rest = self._rest[self._socket.send(self._rest, QUIET) :]
        except BlockingIOError:
            self.loop.add_writer(self._socket.fileno(), self._writable)
        except OSError:
            self._rest = b""  # _readable finds the daemon's last error, or the end of the connection

    def _writable(self) -> None:
        self.loop.remove_writer(self._socket.fileno())
        self._flush()

    def _readable(self) -> None:
        try:
            for message in self._reader.feed(self._socket.recv(CHUNK)):
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
        if error is not None and error.transient:  # another daemon may have taken over
            self.fail(lost(self.path, error))
