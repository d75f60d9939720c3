"""A connection for threads: it blocks, and carries one call at a time. Deadlines are times of clock.monotonic."""

from __future__ import annotations

import _socket
import socket
import struct
from typing import Any, Callable

from .base import CHUNK, QUIET, AnyConnection
from .clock import monotonic
from .errors import KazahanaError, ShuttingDownError, late, lost
from .protocol import ANSWER, Call

# How long an operation blocks in the system before the deadline is looked at. Answers usually come sooner, and then a
# read takes one system call instead of two.
_PATIENCE = struct.pack("@ll", 0, 2000)  # s, µs


class Connection(AnyConnection):
    """One socket. After an error that is not the daemon's answer it is broken."""

    def __init__(self, path: str) -> None:
        self._msgid = 0
        super().__init__(path)
        self._socket.setblocking(True)
        # gevent and eventlet put sockets of their own in place of the system's: those wait in a loop.
        self._is_native = type(self._socket).recv is _socket.socket.recv
        if self._is_native:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _PATIENCE)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)

    def call(self, call: Call[Any], deadline: float) -> Any:
        """Send, and return the result, or raise the daemon's error.

        Without an answer, raise a RequestTimeoutError at the deadline, or an error of lost when the connection ends.
        """
        self.broken = True  # until the answer is whole: an exception, also a signal's, may leave a part of it
        try:
            _, _, error, result = self._exchange(self._request(call), deadline)
        except KazahanaError:
            raise
        except socket.timeout:
            raise late(call.timeout, f"no answer to {call.method} from {self.path}") from None
        except OSError as failure:
            raise lost(self.path, failure) from failure
        if error is None:
            self.broken = False
            return result
        self.broken = isinstance(error, ShuttingDownError)
        raise error

    def notice(self, message: list[Any]) -> None:
        """Take what is not the answer to the present call."""

    def close(self) -> None:
        self.broken = True
        self._close()

    _after_fork = close  # the child's copy of the socket: the daemon must notice when the parent closes its own

    def _request(self, call: Call[Any]) -> bytes:
        self._msgid = self._msgid % 127 + 1  # one byte
        return call.request(self._msgid)

    def _exchange(self, request: bytes, deadline: float) -> list[Any]:
        """Send, and return the answer."""
        try:
            while request:
                request = request[self._within(deadline, self._socket.send, request, QUIET) :]
        except BrokenPipeError:
            pass  # the daemon's last word can be read
        while True:
            data = self._within(deadline, self._socket.recv, CHUNK)
            if not data:
                raise lost(self.path)
            answer = None
            for message in self._reader.feed(data):
                if message[0] == ANSWER and message[1] == self._msgid:
                    answer = message
                else:
                    self.notice(message)
            if answer is not None:
                return answer
            if monotonic() >= deadline:  # a daemon that never stops sending other things is not waited for
                raise socket.timeout

    def _within(self, deadline: float, operate: Callable[..., Any], *arguments: Any) -> Any:
        """Perform an operation of the socket. At the deadline, raise a socket.timeout."""
        if self._is_native:
            try:
                return operate(*arguments)
            except BlockingIOError:
                pass
        self._socket.settimeout(max(deadline - monotonic(), 1e-6))
        try:
            return operate(*arguments)
        finally:
            self._socket.settimeout(None)
