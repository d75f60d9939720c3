"""Connections for threads: each carries one call at a time, and a client has a few of them."""

from __future__ import annotations

import _socket
import contextlib
import socket
import struct
import threading
import time
from collections import deque
from typing import Any, Callable, TypeVar

from . import address, fork
from .base import CHUNK, QUIET, AnyChannel, AnyConnection
from .clock import monotonic
from .errors import DaemonUnavailableError, KazahanaError, ShuttingDownError
from .protocol import Call, Retry, closed, lost, unanswered

T = TypeVar("T")

POOL = 8  # connections at most
_NOW = QUIET | int(getattr(socket, "MSG_DONTWAIT", 0))
# How long a read blocks in the system before it looks at its deadline. Answers usually come sooner,
# and then a read takes one system call instead of two.
_PATIENCE = struct.pack("@ll", 0, 2000)


def left(deadline: float) -> float:
    """Return the seconds that are left, or raise a socket.timeout."""
    remaining = deadline - monotonic()
    if remaining <= 0:
        raise socket.timeout
    return remaining


class Connection(AnyConnection):
    """One socket, for one call at a time. After an error that is not the daemon's answer it is broken."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._socket.setblocking(True)
        # gevent and eventlet put sockets of their own in place of the system's: those wait in a loop.
        self._is_native = type(self._socket).recv is _socket.socket.recv
        if self._is_native:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _PATIENCE)

    def call(self, call: Call[Any], deadline: float) -> Any:
        """Send, and return the result or raise the daemon's or the connection's error."""
        try:
            self._send(self._session.request(call, self), deadline)
            while not (answers := self._read(deadline)):
                left(deadline)  # a daemon that never stops sending other things is not waited for
        except BaseException as error:  # also a signal's: bytes may be missing
            self.close()
            if isinstance(error, socket.timeout):
                raise unanswered(call, self.path) from None
            raise
        _, problem, result = answers[0]
        if problem is None:
            return result
        if isinstance(problem, ShuttingDownError):
            self.close()
        raise problem

    def notice(self) -> None:
        """Take what the daemon has sent without being asked."""
        self._session.unasked.clear()

    def _read(self, deadline: float) -> list[tuple[Connection, KazahanaError | None, Any]]:
        """Read once; raise a socket.timeout at the deadline, or the connection's error."""
        try:
            try:
                data = self._socket.recv(CHUNK) if self._is_native else None
            except BlockingIOError:
                data = None
            if data is None:
                data = self._within(deadline, self._socket.recv, CHUNK)
        except socket.timeout:
            raise
        except OSError as error:
            raise lost(self.path, error) from error
        if not data:
            raise lost(self.path)
        answers = self._session.feed(data)
        if self._session.unasked:
            self.notice()
        return answers

    def _send(self, data: bytes, deadline: float) -> None:
        try:
            try:
                sent = self._socket.send(data, _NOW) if self._is_native else 0
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                self._within(deadline, self._socket.sendall, data[sent:], QUIET)
        except socket.timeout:
            raise
        except OSError:
            pass  # the daemon's last word, or the end, can be read

    def _within(self, deadline: float, operate: Callable[..., Any], *arguments: Any) -> Any:
        """Perform an operation of the socket; raise a socket.timeout at the deadline."""
        self._socket.settimeout(left(deadline))
        try:
            return operate(*arguments)
        finally:
            self._socket.settimeout(None)

    def stop(self) -> None:
        """Make a call under way in another thread fail."""
        fork.look()  # a parent's connection would end in the parent, too: the child only closes its copy
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.broken = True
        self._close()

    after_fork = close  # the child's copy of the socket: the daemon must notice when the parent closes its own


class _Turn:
    """A thread that waits for a slot."""

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
        self.slot: Connection | None = None


class Channel(AnyChannel):
    """A few connections. There is a slot for each: a connection, or None, which allows whoever takes it to make one."""

    def after_fork(self) -> None:
        self._mutex = threading.Lock()  # of what follows; nobody waits for anything while holding it
        self._slots: list[Connection | None] = [None] * POOL  # those that are free, connections last
        self._turns: deque[_Turn] = deque()
        self._open: set[Connection] = set()

    def perform(self, call: Call[T]) -> T:
        """Call, and repeat the call while the daemon is away and the call's time lasts."""
        started = monotonic()
        retry: Retry | None = None
        while True:
            fork.look()
            try:
                return call.parse(self._exchange(call, started + call.timeout))
            except KazahanaError as error:
                if self._closed and isinstance(error, DaemonUnavailableError):
                    raise closed() from error
                retry = retry or Retry(started, call.timeout, self._reached, self._single)
                time.sleep(retry.pause(error, monotonic()))

    def detach(self) -> Connection:
        """Give away the connection of the last call, for exchanges that must not continue on another one."""
        with self._mutex:
            connection = self._slots.pop()
            self._slots.insert(0, None)
            self._open.discard(connection)
        if connection is None:
            raise lost(address.find(self._named))
        return connection

    def close(self) -> None:
        fork.look()  # the mutex may have been taken by a thread of the parent
        self._closed = True
        with self._mutex:
            for connection in self._open:
                connection.stop()
        self._close_idle()

    def _exchange(self, call: Call[Any], deadline: float) -> Any:
        connection = self._take(call, deadline)
        try:
            if connection is None or self._closed:
                connection = self._connect()
            return connection.call(call, deadline)
        finally:
            if connection is not None and (connection.broken or self._closed):
                connection.close()
                # The others lead to the same daemon: a call that is tried again had better make a new one.
                self._close_idle()
                connection = None
            self._free(connection)

    def _connect(self) -> Connection:
        made: Connection = self._dial()
        with self._mutex:
            self._open = {made, *(one for one in self._open if not one.broken)}
            if self._closed:  # meanwhile
                made.stop()
        return made

    def _take(self, call: Call[Any], deadline: float) -> Connection | None:
        """Return a slot; wait for it behind those who came before."""
        with self._mutex:
            if self._slots:
                return self._slots.pop()
            turn = _Turn()
            self._turns.append(turn)
        try:
            if not turn.wake.acquire(timeout=min(max(0.0, deadline - monotonic()), threading.TIMEOUT_MAX)):
                raise unanswered(call, address.find(self._named))
        except BaseException:
            self._leave(turn)
            raise
        return turn.slot

    def _leave(self, turn: _Turn) -> None:
        with self._mutex:
            if turn in self._turns:
                self._turns.remove(turn)
                return
        self._free(turn.slot)  # it has come after all

    def _free(self, slot: Connection | None) -> None:
        with self._mutex:
            if self._turns:
                turn = self._turns.popleft()
                turn.slot = slot
                turn.wake.release()
            else:
                self._slots.insert(0 if slot is None else len(self._slots), slot)

    def _close_idle(self) -> None:
        with self._mutex:
            idle, self._slots = self._slots, [None] * len(self._slots)
        for connection in filter(None, idle):
            connection.close()
