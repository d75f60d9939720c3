"""Connections for threads: each carries one call at a time, and a client has a few of them."""

from __future__ import annotations

import _socket
import contextlib
import socket
import struct
import threading
import time
import weakref
from collections import deque
from time import monotonic
from typing import Any, Callable, TypeVar

from . import address, fork
from .errors import DaemonUnavailableError, KazahanaError, ShuttingDownError
from .protocol import Call, Retry, Session, closed, lost, unanswered

T = TypeVar("T")

POOL = 8  # connections at most
_QUIET, _NOW = getattr(socket, "MSG_NOSIGNAL", 0), getattr(socket, "MSG_DONTWAIT", 0)
# How long a read blocks in the system before it looks at its deadline. Answers usually come sooner,
# and then a read takes one system call instead of two.
_PATIENCE = struct.pack("@ll", 0, 2000)
_SMALL, _LARGE = 4096, 1 << 18


def left(deadline: float) -> float:
    """Return the seconds that are left, or raise a socket.timeout."""
    remaining = deadline - monotonic()
    if remaining <= 0:
        raise socket.timeout
    return remaining


class Connection:
    """One socket, for one call at a time. After an error that is not the daemon's answer it is broken."""

    two_way = False  # whether the daemon may send requests, too

    def __init__(self, path: str) -> None:
        self.path = path
        self.broken = False
        self._session: Session[Connection] = Session(self.two_way)
        self._chunk = _SMALL
        self._socket = made = address.connect(path)
        # A finalizer, so that a client that is never closed leaves no warning behind.
        self._close = weakref.finalize(self, made.close)
        made.setblocking(True)
        # gevent and eventlet put sockets of their own in place of the system's: those wait in a loop.
        self._is_native = type(made).recv is _socket.socket.recv
        if self._is_native:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _PATIENCE)
        fork.track(self)

    def call(self, call: Call[Any], deadline: float) -> Any:
        """Send, and return the result or raise the daemon's or the connection's error."""
        answers: list[tuple[Connection, KazahanaError | None, Any]] = []
        try:
            self._send(self._session.request(call, self), deadline)
            while not answers:
                answers = self.read(deadline)
        except socket.timeout:
            self.close()
            raise unanswered(call, self.path) from None
        except BaseException:  # also a signal's: bytes may be missing
            self.close()
            raise
        error = answers[0][1]
        if isinstance(error, ShuttingDownError):
            self.close()
        if error is not None:
            raise error
        return answers[0][2]

    def read(self, deadline: float) -> list[tuple[Connection, KazahanaError | None, Any]]:
        """Read once; raise a socket.timeout at the deadline, or the connection's error."""
        try:
            try:
                data = self._socket.recv(self._chunk) if self._is_native else None
            except BlockingIOError:
                data = None
            if data is None:
                self._socket.settimeout(left(deadline))
                try:
                    data = self._socket.recv(self._chunk)
                finally:
                    self._socket.settimeout(None)
        except socket.timeout:
            raise
        except OSError as error:
            raise lost(self.path, error) from error
        if not data:
            raise lost(self.path)
        self._chunk = _LARGE if len(data) == self._chunk else _SMALL
        answers = self._session.feed(data)
        self.notice()
        if not answers:
            left(deadline)  # a daemon that never stops sending other things is not waited for
        return answers

    def notice(self) -> None:
        """Take what the daemon has sent without being asked."""
        self._session.unasked.clear()

    def _send(self, data: bytes, deadline: float) -> None:
        try:
            try:
                sent = self._socket.send(data, _QUIET | _NOW) if self._is_native else 0
            except BlockingIOError:
                sent = 0
            if data := data[sent:]:
                self._socket.settimeout(left(deadline))
                try:
                    self._socket.sendall(data, _QUIET)
                finally:
                    self._socket.settimeout(None)
        except OSError as error:  # the daemon's last word, or the end, can be read
            if isinstance(error, socket.timeout):
                raise

    def stop(self) -> None:
        """Make a call under way in another thread fail."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.broken = True
        self._close()

    def after_fork(self) -> None:
        """Close the child's copy of the socket, so that the daemon notices when the parent closes its own."""
        self.close()


class _Turn:
    """A thread that waits for a connection."""

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
        self.connection: Connection | None = None  # None: it may make one


class Channel:
    """A few connections that are made when they are needed, and made again after a loss."""

    def __init__(
        self,
        socket: str | None = None,
        single_attempt: bool = False,
        kind: Callable[[str], Connection] = Connection,
        size: int = POOL,
    ) -> None:
        self._named, self._single, self._kind, self._size = socket, single_attempt, kind, size
        self._reached = False
        self._closed = False
        self.after_fork()
        fork.track(self)

    def after_fork(self) -> None:
        self._mutex = threading.Lock()  # of what follows; nobody waits for anything while holding it
        self._open = 0
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._turns: deque[_Turn] = deque()

    def perform(self, call: Call[T]) -> T:
        """Call, and repeat the call while the daemon is away and the call's time lasts."""
        started = monotonic()
        deadline = started + call.timeout
        retry: Retry | None = None
        while True:
            fork.look()
            try:
                connection = self._take(call, deadline)
                try:
                    return call.parse(connection.call(call, deadline))
                finally:
                    self._give(connection)
            except KazahanaError as error:
                if self._closed and isinstance(error, DaemonUnavailableError):
                    raise closed() from error
                retry = retry or Retry(started, call.timeout, self._reached, self._single)
                pause = retry.pause(error, monotonic())
            time.sleep(pause)

    def detach(self) -> Connection:
        """Give away the connection of the last call, for exchanges that must not continue on another one."""
        with self._mutex:
            if not self._idle:
                raise lost(address.find(self._named))
            self._open -= 1
            return self._idle.pop()

    def close(self) -> None:
        self._closed = True
        with self._mutex:
            idle, self._idle = self._idle, []
            self._open -= len(idle)
            for connection in self._busy:
                connection.stop()
        for connection in idle:
            connection.close()

    def _take(self, call: Call[Any], deadline: float) -> Connection:
        with self._mutex:
            if self._closed:
                raise closed()
            turn = None
            if self._idle:
                connection = self._idle.pop()
                self._busy.add(connection)
                return connection
            if self._open < self._size:
                self._open += 1
            else:
                turn = _Turn()
                self._turns.append(turn)
        if turn is not None:
            self._wait(turn, call, deadline)
            if turn.connection is not None:
                return turn.connection
        try:
            made = self._kind(address.find(self._named))
        except BaseException:
            self._give(None)
            raise
        self._reached = True
        with self._mutex:
            self._busy.add(made)
            if self._closed:  # closed meanwhile
                made.stop()
        return made

    def _wait(self, turn: _Turn, call: Call[Any], deadline: float) -> None:
        try:
            if turn.wake.acquire(timeout=min(max(0.0, deadline - monotonic()), threading.TIMEOUT_MAX)):
                return
        except BaseException:
            if not self._leave(turn):
                self._give(turn.connection)
            raise
        if self._leave(turn):
            raise unanswered(call, address.find(self._named))

    def _leave(self, turn: _Turn) -> bool:
        """Report whether the turn had not come yet."""
        with self._mutex, contextlib.suppress(ValueError):
            self._turns.remove(turn)
            return True
        return False

    def _give(self, connection: Connection | None) -> None:
        """Take back a connection, or the right to make one, and pass it on to whoever waits longest."""
        stale: list[Connection] = []
        with self._mutex:
            if connection is not None:
                self._busy.discard(connection)
                if connection.broken or self._closed:
                    # The others lead to the same daemon: a call that is tried again had better make a new one.
                    stale, self._idle = [connection, *self._idle], []
                    self._open -= len(stale) - 1
                    connection = None
            if self._turns:
                turn = self._turns.popleft()
                turn.connection = connection
                if connection is not None:
                    self._busy.add(connection)
                turn.wake.release()
            elif connection is not None:
                self._idle.append(connection)
            else:
                self._open -= 1
        for one in stale:
            one.close()
