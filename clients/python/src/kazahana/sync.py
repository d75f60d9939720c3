"""Connections for threads. One of the waiting threads reads for all: there is no background thread."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
import threading
import time
from time import monotonic
from typing import Any, Callable, TypeVar

from . import address, fork
from .errors import KazahanaError, LockLostError, ShuttingDownError
from .protocol import Call, Retry, Session, Unasked, closed, copy_of, lost, unanswered

T = TypeVar("T")

_NOW = socket.MSG_DONTWAIT
_SEND = _NOW | getattr(socket, "MSG_NOSIGNAL", 0)
# How long a read blocks in the system before it checks its deadline. Answers usually come sooner,
# and then a read takes one system call instead of two.
_PATIENCE = struct.pack("@ll", 0, 2000)
_SMALL, _LARGE = 4096, 1 << 18


class _Slot:
    """A thread that waits for an answer. Guarded by the connection's mutex."""

    done = False
    error: KazahanaError | None = None
    result: Any = None
    wake: threading.Lock | None = None  # set while another thread reads

    def settle(self, error: KazahanaError | None, result: Any) -> None:
        if error is not None:
            self.error = error
        self.result = result
        self.done = True
        if self.wake is not None:
            self.rouse()

    def rouse(self) -> None:
        wake, self.wake = self.wake, None
        if wake is not None:
            wake.release()


class Connection:
    """One socket with many callers. One of the waiting threads, the leader, reads for all of them.
    When it has its own answer, it passes the lead on.
    """

    def __init__(self, path: str, two_way: bool = False) -> None:
        """two_way says whether a caller will receive notifications and requests of the daemon."""
        self.path = path
        self.broken = False
        self.lock_lost: str | None = None  # why, once the daemon has said so
        self._mutex = threading.Lock()
        self._session: Session[_Slot] = Session(two_way)
        self._two_way = two_way
        self._inbox: list[Unasked] = []
        self._leader: _Slot | None = None
        self._listeners: dict[_Slot, None] = {}
        self._error: KazahanaError | None = None
        self._unsent = bytearray()
        self._torn = False  # bytes may have been read and lost
        self._chunk = _SMALL
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)  # a full backlog is an error, not a wait without end
            self._socket.connect(path)
            self._socket.setblocking(True)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _PATIENCE)
        except OSError as error:
            self._socket.close()
            raise address.unavailable(path, error) from error

    def call(self, call: Call[Any], deadline: float) -> Any:
        """Send, and return the result or raise the daemon's or the connection's error."""
        slot = _Slot()
        try:
            with self._mutex:
                if self._error is not None:
                    raise copy_of(self._error)
                self._send(self._session.request(call, slot))
                lead = self._leader is None and not self._unsent
                if lead:
                    self._leader = slot
            if lead:
                self._read(slot, deadline)
            if not slot.done:
                self._wait(slot, deadline)
        finally:
            if not slot.done or self._leader is slot:
                self._leave(slot)
        if slot.error is not None:
            raise slot.error
        if not slot.done:
            raise unanswered(call, self.path)
        return slot.result

    def listen(self, timeout: float | None) -> str | None:
        """Wait for the loss of the lock that this connection holds; return the reason, None if there is none yet."""
        self._attend(lambda: self.lock_lost is not None, timeout)
        return "disconnected" if self.broken and self.lock_lost is None else self.lock_lost

    def receive(self) -> list[Unasked]:
        """Wait for notifications and requests of the daemon and return them, or raise the connection's error.

        Meant for one thread. Messages that are not received stay in the socket, so that the daemon notices.
        """
        self._attend(lambda: bool(self._inbox), None)
        with self._mutex:
            taken, self._inbox = self._inbox, []
            if not taken and self._error is not None:
                raise copy_of(self._error)
        return taken

    def send(self, data: bytes, timeout: float) -> None:
        """Send a message without an answer. If the connection is lost, receive raises the error."""
        with self._mutex:
            if self._error is None:
                self._send(data)
        if self._unsent:
            self._flush(monotonic() + timeout)

    def _attend(self, told: Callable[[], bool], timeout: float | None) -> None:
        """Wait until `told` is true, or the connection is lost."""
        slot = _Slot()
        try:
            with self._mutex:
                if not told() and self._error is None:
                    self._listeners[slot] = None
                else:
                    slot.done = True
            self._wait(
                slot, 0.0 if timeout == 0 else monotonic() + (threading.TIMEOUT_MAX if timeout is None else timeout)
            )
        finally:
            self._leave(slot)

    def fail(self, error: KazahanaError) -> None:
        """End the connection; all waiting threads get the error."""
        with self._mutex:
            self._break(error)

    def after_fork(self) -> None:
        """Close the child's copy of the socket, so that the daemon notices when the parent closes its own."""
        self._socket.close()

    def _send(self, data: bytes) -> None:
        if not self._unsent:
            try:
                data = data[self._socket.send(data, _SEND) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # the reader finds the daemon's last word, or the end
        if data:
            self._unsent += data

    def _flush(self, deadline: float) -> None:
        """Send the rest after a full socket buffer. Others must read meanwhile, or the daemon may stop reading."""
        while True:
            with self._mutex:
                if self._error is not None or not self._unsent:
                    return
                waiting, self._unsent = bytes(self._unsent), bytearray()
                self._send(waiting)
                if not self._unsent:
                    return
                poller = select.poll()
                poller.register(self._socket, select.POLLOUT)
            remaining = deadline - monotonic()
            if remaining <= 0:
                return
            poller.poll(min(remaining * 1000 + 1, 50))

    def _wait(self, slot: _Slot, deadline: float) -> None:
        """Return when the slot is settled or the deadline has passed; 0 = do not wait at all."""
        if self._unsent:
            self._flush(deadline)
        while not slot.done:
            if self._leader is slot:
                if not self._read(slot, deadline):
                    return
                continue
            with self._mutex:
                if slot.done:
                    return
                if self._leader is None:
                    self._leader = slot
                    continue
                wake = slot.wake = threading.Lock()
                wake.acquire()
            remaining = deadline - monotonic()
            if remaining <= 0 or not wake.acquire(timeout=min(remaining, threading.TIMEOUT_MAX)):
                return

    def _read(self, slot: _Slot, deadline: float) -> bool:
        """As the leader, read once and wake threads with an answer; return False when the time is up.

        The time is up at the deadline, even if the daemon never stops sending.
        """
        failure: OSError | None = None
        self._torn = True
        try:
            data = self._socket.recv(self._chunk, 0 if deadline else _NOW)
        except BlockingIOError:
            self._torn = False
            remaining = deadline - monotonic()
            if remaining <= 0:
                return False
            poller = select.poll()
            poller.register(self._socket, select.POLLIN)
            poller.poll(min(remaining * 1000 + 1, 1e9))
            return True
        except OSError as error:
            data, failure = b"", error
        self._chunk = _LARGE if len(data) == self._chunk else _SMALL
        with self._mutex:
            try:
                if not data:
                    raise lost(self.path, failure)
                for waiter, problem, result in self._session.feed(data):
                    waiter.settle(problem, result)
            except KazahanaError as error:
                self._break(error)
            self._torn = False
            if self._session.unasked:
                self._notice()
            if slot.done:
                self._leader = None
                if self._session.waiting or self._listeners or self._error is not None:
                    self._pass_on()
        return deadline == 0 or monotonic() < deadline

    def _notice(self) -> None:
        for _, method, params in self._session.unasked:
            if method == "Lock.Lost" and self.lock_lost is None:
                about = params[0] if isinstance(params, list) and params else None
                self.lock_lost = str(about.get("reason", "lost")) if isinstance(about, dict) else "lost"
        if self._two_way:
            self._inbox += self._session.unasked
        if self._inbox or self.lock_lost is not None:
            for listener in self._listeners:
                listener.settle(None, None)
        self._session.unasked.clear()

    def _leave(self, slot: _Slot) -> None:
        with self._mutex:
            self._listeners.pop(slot, None)
            slot.wake = None
            if not slot.done:
                self._session.forget(slot)
            if self._leader is slot:
                if self._torn:  # by a signal's exception: bytes are missing
                    self._break(lost(self.path))
                self._leader = None
            if self._leader is None:
                self._pass_on()

    def _pass_on(self) -> None:
        if self._error is not None:
            self._socket.close()  # not earlier: a leader may be reading, and the descriptor could be reused
            return
        for waiter in itertools.chain(self._session.waiters(), self._listeners):
            if waiter.wake is not None:
                waiter.rouse()
                return

    def _break(self, error: KazahanaError) -> None:
        if self._error is not None:
            return
        self._error = error
        self.broken = True
        for waiter in itertools.chain(self._session.waiters(), self._listeners):
            waiter.settle(copy_of(error), None)
        self._session.waiting.clear()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the leader
        if self._leader is None:
            self._socket.close()


class Channel:
    """A connection that is made when it is needed, and made again after a loss."""

    def __init__(self, socket: str | None = None, two_way: bool = False) -> None:
        self._named, self._two_way = socket, two_way
        self._connection: Connection | None = None
        self._opening = threading.Lock()
        self._reached = False
        self._pinned = False
        self._closed = False
        fork.track(self)

    def perform(self, call: Call[T]) -> T:
        """Call, and repeat the call while the daemon is away and the call's time lasts."""
        started = monotonic()
        deadline = started + call.timeout
        retry: Retry | None = None
        while True:
            connection = self._connection
            try:
                if connection is None or connection.broken:
                    connection = self._connect(deadline)
                return call.parse(connection.call(call, deadline))
            except KazahanaError as error:
                if retry is None:
                    retry = Retry(started, call.timeout, self._reached)
                if connection is not None and isinstance(error, ShuttingDownError):
                    connection.fail(lost(connection.path, error))
                pause = retry.pause(error, monotonic())
            time.sleep(pause)

    def pin(self) -> None:
        """From now on do not replace a lost connection: its lock is lost, too."""
        self._pinned = True

    def listen(self, timeout: float | None) -> str | None:
        connection = self._connection
        return "disconnected" if connection is None else connection.listen(timeout)

    def link(self) -> Connection:
        """Return the connection of the last call, for exchanges that must not continue on another one."""
        connection = self._connection
        if connection is None:
            raise closed() if self._closed else lost(address.find(self._named))
        return connection

    def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.fail(closed())

    def after_fork(self) -> None:
        self._opening = threading.Lock()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.after_fork()

    def _connect(self, deadline: float) -> Connection:
        if not self._opening.acquire(timeout=max(0.0, deadline - monotonic())):
            raise lost(address.find(self._named))
        try:
            connection = self._connection
            if connection is not None and not connection.broken:
                return connection
            if self._closed:
                raise closed()
            if self._pinned:
                raise LockLostError("the connection that held the lock was lost", reason="disconnected")
            made = self._connection = Connection(address.find(self._named), self._two_way)
            self._reached = True
            if self._closed:  # closed meanwhile
                self.close()
            return made
        finally:
            self._opening.release()
