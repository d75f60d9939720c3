"""Connections for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import Any, TypeVar

from . import address, fork
from .base import CHUNK, QUIET, AnyChannel, AnyConnection
from .clock import Alarm, monotonic, sleep
from .errors import ClientClosedError, KazahanaError, OverloadedError, PermissionDeniedError, ShuttingDownError
from .protocol import Call, Retry, Unasked, closed, copy_of, lost, unanswered

T = TypeVar("T")

MAX_UNSENT = 1 << 20  # bytes; with more than this, further calls wait, and leave nothing behind if they give up


class Connection(AnyConnection):
    """One socket of one event loop; each caller waits for a future. The calls of one turn of the loop share a write."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._is_blocked = self._is_answered = False
        self._error: KazahanaError | None = None
        self._refusal: KazahanaError | None = None
        self._unsent = bytearray()
        self._later: OrderedDict[asyncio.Future[Any], tuple[Call[Any], list[asyncio.Future[Any]]]] = OrderedDict()
        super().__init__(path)  # from then on, another thread may fork
        loop.add_reader(self._socket.fileno(), self._read)

    async def call(self, call: Call[Any], deadline: float) -> Any:
        if self._error is not None:
            raise copy_of(self._error)
        waiter = [answer := self.loop.create_future()]
        if len(self._unsent) > MAX_UNSENT:
            self._later[answer] = call, waiter
        else:
            self.write(self._session.request(call, waiter))
        alarm = Alarm(self.loop, deadline, self._expire, answer, call)
        try:
            return await answer
        finally:
            alarm.cancel()
            waiter.clear()
            self._later.pop(answer, None)

    def write(self, data: bytes) -> None:
        """Send at once if nothing else is under way, else together with what this turn of the loop still asks."""
        self._unsent += data
        if len(self._session.waiting) == 1:
            self._flush()
        elif len(self._unsent) == len(data):
            self.loop.call_soon(self._flush)

    def notice(self, unasked: Unasked) -> None:
        """Take a notification, or a request of the daemon."""

    def fail(self, error: KazahanaError) -> None:
        """End the connection; whoever waits gets the error."""
        fork.look()  # a child does not touch its parent's loop: see after_fork
        if self.broken:
            return
        self._error, self.broken = error, True
        if not self.loop.is_closed():
            for waiter in [*self._session.waiting.values(), *(waiter for _, waiter in self._later.values())]:
                if waiter and not waiter[0].done():
                    waiter[0].set_exception(copy_of(error))
            self.loop.remove_reader(self._socket.fileno())
            self.loop.remove_writer(self._socket.fileno())
        self._session.waiting.clear()
        self._close()

    def after_fork(self) -> None:
        """Close the child's copy of the socket. The loop and its selector are the parent's: they are not touched."""
        self._error, self.broken = self._error or lost(self.path), True
        self._close()

    def _expire(self, answer: asyncio.Future[Any], call: Call[Any]) -> None:
        if not answer.done():  # its msgid stays taken: the answer may be late
            answer.set_exception(unanswered(call, self.path))

    def _flush(self) -> None:
        if self.broken or not self._unsent:
            return
        try:
            del self._unsent[: self._socket.send(self._unsent, QUIET)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # the daemon's last word, or the end, can be read
        while self._later and len(self._unsent) <= MAX_UNSENT:
            self._unsent += self._session.request(*self._later.popitem(last=False)[1])
        if self._unsent and not self._is_blocked:
            self.loop.add_writer(self._socket.fileno(), self._flush)
        elif self._is_blocked and not self._unsent:
            self.loop.remove_writer(self._socket.fileno())
        self._is_blocked = bool(self._unsent)

    def _read(self) -> None:
        try:
            data = self._socket.recv(CHUNK)
            if not data:
                raise self._refusal or lost(self.path)
            for waiter, problem, result in self._session.feed(data):
                # A daemon that turns a client away answers the first request, and closes.
                is_last = not self._is_answered and isinstance(problem, (OverloadedError, PermissionDeniedError))
                self._is_answered, self._refusal = True, problem if is_last else None
                if waiter and not waiter[0].done():
                    if problem is None:
                        waiter[0].set_result(result)
                    else:
                        waiter[0].set_exception(problem)
        except BlockingIOError:
            return
        except KazahanaError as error:
            self.fail(error)
        except OSError as error:
            self.fail(self._refusal or lost(self.path, error))
        unasked, self._session.unasked = self._session.unasked, []
        for one in unasked:
            self.notice(one)


class AsyncChannel(AnyChannel):
    """A connection of the running loop; under another loop, a new one is made."""

    _connection: Connection | None

    async def perform(self, call: Call[T]) -> T:
        """Call, and repeat the call while the daemon is away and the call's time lasts."""
        loop = asyncio.get_running_loop()
        started = monotonic()
        retry: Retry | None = None
        while True:
            fork.look()
            connection = self._connection
            try:
                if connection is None or connection.broken or connection.loop is not loop:
                    connection = self._connect(loop)
                return call.parse(await connection.call(call, started + call.timeout))
            except KazahanaError as error:
                retry = retry or Retry(started, call.timeout, self._reached, self._single)
                if connection is not None and isinstance(error, ShuttingDownError):
                    connection.fail(lost(connection.path, error))
                pause = retry.pause(error, monotonic())
            await sleep(pause)

    def detach(self) -> Connection:
        """Give away the connection of the last call, for exchanges that must not continue on another one."""
        connection, self._connection = self._connection, None
        if connection is None:
            raise closed() if self._closed else lost(address.find(self._named))
        return connection

    def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.fail(closed())

    def after_fork(self) -> None:
        self._connection = None

    def _connect(self, loop: asyncio.AbstractEventLoop) -> Connection:
        before = self._connection
        if before is not None and before.loop is not loop:
            with contextlib.suppress(RuntimeError):  # that loop may be closed
                moved = ClientClosedError("another event loop has taken this client over: use one client for each")
                before.loop.call_soon_threadsafe(before.fail, moved)
        made: Connection = self._dial(loop)
        self._connection = made
        return made
