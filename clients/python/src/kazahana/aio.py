"""Connections for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Any, TypeVar

from . import address, fork
from .errors import KazahanaError, LockLostError, ShuttingDownError
from .protocol import Call, Retry, Session, Unasked, closed, copy_of, lost, unanswered

T = TypeVar("T")

_INBOX = 256  # with more messages than this waiting, the socket is not read


class Connection(asyncio.Protocol):
    """One socket of one event loop; each caller waits for a future."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop, two_way: bool = False) -> None:
        """two_way says whether a caller will receive notifications and requests of the daemon."""
        self.path, self.loop = path, loop
        self.broken = False
        self.lock_lost: asyncio.Future[str] = loop.create_future()
        self._session: Session[asyncio.Future[Any]] = Session(two_way)
        self._two_way = two_way
        self._inbox: list[Unasked] = []
        self._arrival: asyncio.Future[None] | None = None  # the receiver waits for it
        self._error: KazahanaError | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._transport: asyncio.Transport | None = None

    async def open(self) -> None:
        try:
            self._socket.setblocking(False)
            self._socket.connect(self.path)  # a Unix socket connects at once or fails
            await self.loop.create_unix_connection(lambda: self, sock=self._socket)
        except OSError as error:
            self._socket.close()
            raise address.unavailable(self.path, error) from error
        except BaseException:
            self._socket.close()
            raise

    async def call(self, call: Call[Any], deadline: float) -> Any:
        if self._error is not None or self._transport is None:
            raise copy_of(self._error or lost(self.path))
        if self._transport.is_closing():  # connection_lost comes with the loop's next turn
            raise lost(self.path)
        answer = self.loop.create_future()
        self._transport.write(self._session.request(call, answer))
        alarm = self.loop.call_at(deadline, self._expire, answer, call)
        try:
            return await answer
        finally:
            alarm.cancel()

    async def receive(self) -> list[Unasked]:
        """Wait for notifications and requests of the daemon and return them, or raise the connection's error.

        Meant for one task. Messages that are not received stay in the socket, so that the daemon notices.
        """
        while not self._inbox:
            if self._error is not None:
                raise copy_of(self._error)
            self._arrival = self.loop.create_future()
            await self._arrival
        taken, self._inbox = self._inbox, []
        if self._transport is not None:
            self._transport.resume_reading()
        return taken

    def send(self, data: bytes) -> None:
        """Send a message without an answer. If the connection is lost, receive raises the error."""
        if self._error is None and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _arrived(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _expire(self, answer: asyncio.Future[Any], call: Call[Any]) -> None:
        if not answer.done():  # its msgid stays taken: the answer may be late
            answer.set_exception(unanswered(call, self.path))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for answer, problem, result in self._session.feed(data):
                if answer.done():
                    continue
                if problem is None:
                    answer.set_result(result)
                else:
                    answer.set_exception(problem)
        except KazahanaError as error:
            self.fail(error)
        for _, method, params in self._session.unasked:
            if method == "Lock.Lost" and not self.lock_lost.done():
                about = params[0] if isinstance(params, list) and params else None
                self.lock_lost.set_result(str(about.get("reason", "lost")) if isinstance(about, dict) else "lost")
        if self._two_way and self._session.unasked:
            self._inbox += self._session.unasked
            if len(self._inbox) > _INBOX and self._transport is not None:
                self._transport.pause_reading()
            self._arrived()
        self._session.unasked.clear()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.fail(lost(self.path, exc))

    def fail(self, error: KazahanaError) -> None:
        if self._error is not None:
            return
        self._error = error
        self.broken = True
        for answer in list(self._session.waiters()):
            if not answer.done():
                answer.set_exception(copy_of(error))
        self._session.waiting.clear()
        if not self.lock_lost.done():
            self.lock_lost.set_result("disconnected")
        self._arrived()
        if self._transport is not None:
            self._transport.abort()

    def after_fork(self) -> None:
        """Close the child's copy of the socket. The loop and its selector are the parent's: they are not touched."""
        _parents.append(self._transport)
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())


_parents: list[Any] = []  # a collected transport would close its descriptor's number, which may be another file's


class AsyncChannel:
    """A connection that is made when it is needed, and made again after a loss or under another loop."""

    def __init__(self, socket: str | None = None, two_way: bool = False) -> None:
        self._named, self._two_way = socket, two_way
        self._connection: Connection | None = None
        self._opening: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of _opening
        self._reached = False
        self._pinned = False
        self._closed = False
        fork.track(self)

    async def perform(self, call: Call[T]) -> T:
        """Call, and repeat the call while the daemon is away and the call's time lasts."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + call.timeout
        retry: Retry | None = None
        while True:
            connection = self._connection
            try:
                if connection is None or connection.broken or connection.loop is not loop:
                    connection = await self._connect(loop)
                return call.parse(await connection.call(call, deadline))
            except KazahanaError as error:
                if retry is None:
                    retry = Retry(started, call.timeout, self._reached)
                if connection is not None and isinstance(error, ShuttingDownError):
                    connection.fail(lost(connection.path, error))
                pause = retry.pause(error, loop.time())
            await asyncio.sleep(pause)

    def pin(self) -> None:
        """From now on do not replace a lost connection: its lock is lost, too."""
        self._pinned = True

    async def listen(self) -> str:
        """Wait for the loss of the lock that this connection holds; return the reason."""
        connection = self._connection
        return "disconnected" if connection is None else await asyncio.shield(connection.lock_lost)

    def link(self) -> Connection:
        """Return the connection of the last call, for exchanges that must not continue on another one."""
        connection = self._connection
        if connection is None:
            raise closed() if self._closed else lost(address.find(self._named))
        return connection

    def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None and not connection.loop.is_closed():
            connection.fail(closed())

    def after_fork(self) -> None:
        self._opening = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.after_fork()

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> Connection:
        if self._opening is None or self._loop is not loop:
            self._opening, self._loop = asyncio.Lock(), loop
        async with self._opening:
            connection = self._connection
            if connection is not None and not connection.broken and connection.loop is loop:
                return connection
            if self._closed:
                raise closed()
            if self._pinned:
                raise LockLostError("the connection that held the lock was lost", reason="disconnected")
            if connection is not None and not connection.loop.is_closed():
                connection.loop.call_soon_threadsafe(connection.fail, closed())
            connection = Connection(address.find(self._named), loop, self._two_way)
            await connection.open()
            self._connection = connection
            self._reached = True
            if self._closed:  # closed meanwhile
                self.close()
            return connection
