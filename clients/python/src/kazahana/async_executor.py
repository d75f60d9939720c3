"""Executors and events of placement, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Awaitable, Generator, Sequence
from typing import Any, Callable

from .aio import AsyncChannel, Connection
from .calls import Calls
from .errors import ClientClosedError, KazahanaError
from .executor import STEADY, log, report
from .placement import (
    ACTIVATE,
    CHECKS,
    END,
    PASSIVATE,
    UNSURE,
    ActivationBase,
    PlacementEvent,
    Roster,
    Work,
    answer_of,
    event_of,
    gap,
)
from .prefetch import now
from .protocol import Retry, Unasked, lost, unanswered


class AsyncActivation(ActivationBase):
    """An actor that this process runs, from activate until passivate or ended is called with it."""

    def __init__(
        self, calls: Calls, link: Connection, kind: str, identity: str, version: int, token: int, snapshot: bytes | None
    ) -> None:
        super().__init__(kind, identity, version, token, snapshot)
        self._calls, self._link = calls, link

    async def check(self, timeout: float | None = None) -> None:
        """Return if this activation is valid now, else raise an ActivationEndedError.

        Await it before each action that must not be done twice. An earlier answer of the daemon usually covers
        this moment; otherwise it asks the daemon, for at most timeout seconds (default: the client's).
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        timeout = self._calls.timeout if timeout is None else timeout
        for _ in range(CHECKS):
            if self.covered(asked := now()):
                return
            remaining = max(started + timeout - loop.time(), 1e-6)
            call = self._calls.check(self.kind, self.identity, self.token, remaining)
            try:
                self.cover(asked, call.parse(await self._link.call(call, started + timeout)))
            except UNSURE as error:
                raise self.unsure(error) from error
        if not self.covered(now()):
            raise self.unsure(unanswered(call, self._link.path))


class AsyncExecutor:
    """Runs the actors of some kinds in this process while this object's own connection lives.

    Like Executor, with coroutines as callbacks, each in a task of its own. It registers when it is
    awaited or entered with `async with`.
    """

    def __init__(
        self,
        open_channel: Callable[[bool], AsyncChannel],
        calls: Calls,
        kinds: Sequence[str],
        activate: Callable[[AsyncActivation], Awaitable[str | None]],
        passivate: Callable[[AsyncActivation], Awaitable[bytes | None]],
        ended: Callable[[AsyncActivation], Awaitable[object]] | None = None,
    ) -> None:
        self._open, self._calls = open_channel, calls
        self._register = calls.register(kinds)
        self._callbacks: dict[str, Callable[[AsyncActivation], Awaitable[Any]] | None] = {
            ACTIVATE: activate, PASSIVATE: passivate, END: ended
        }  # fmt: skip
        self._roster: Roster[AsyncActivation, Connection] = Roster(lambda *told: AsyncActivation(calls, *told))
        self._tasks: set[asyncio.Task[None]] = set()
        self._channel: AsyncChannel | None = None
        self._closing = False
        self._process = os.getpid()

    def __await__(self) -> Generator[Any, None, AsyncExecutor]:
        return self._start().__await__()

    async def __aenter__(self) -> AsyncExecutor:
        return await self._start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def activations(self) -> list[AsyncActivation]:
        """Return the live activations."""
        return list(self._roster.live.values()) if os.getpid() == self._process else []

    async def close(self) -> None:
        """Passivate all activations, for at most the client's timeout, and close. Not for use in callbacks."""
        channel = self._channel
        if os.getpid() != self._process or self._closing or channel is None:
            return
        self._closing = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._calls.timeout
        try:
            with contextlib.suppress(KazahanaError):  # without a connection there is nothing to passivate
                await channel.link().call(self._calls.unregister(), deadline)
        finally:
            channel.close()
        while self._tasks and loop.time() < deadline:  # tasks that end may begin others
            await asyncio.wait(self._tasks, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED)

    async def _start(self) -> AsyncExecutor:
        if self._channel is not None:
            raise RuntimeError("this executor has been started already")
        channel = self._channel = self._open(True)
        try:
            await channel.perform(self._register)
            link = channel.link()
        except BaseException:
            channel.close()
            raise
        self._spawn(self._listen(channel, link))
        return self

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # the loop keeps weak references only
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, channel: AsyncChannel, link: Connection | None) -> None:
        """Listen on one connection after another, until this is closed."""
        loop = asyncio.get_running_loop()
        retry = Retry.endless()
        try:
            while link is not None:
                began = loop.time()
                try:
                    while True:
                        for unasked in await link.receive():
                            answers, work = self._roster.take(link, unasked, now())
                            self._go_on(answers, work)
                except KazahanaError as error:
                    if not self._closing:
                        log.info("the executor has lost its connection: %s", error)
                    link.fail(lost(link.path, error))
                for work in self._roster.end():
                    self._go_on([], work)
                if loop.time() - began > STEADY:
                    retry = Retry.endless()
                link = await self._reconnect(channel, retry)
        finally:
            channel.close()  # also when the loop cancels all tasks

    async def _reconnect(self, channel: AsyncChannel, retry: Retry) -> Connection | None:
        """Register again; return None when this is closed first."""
        said = ""
        while not self._closing:
            await asyncio.sleep(retry.delay())
            try:
                await channel.perform(self._register)
                return channel.link()
            except KazahanaError as error:
                if error.code != said and not self._closing:
                    log.warning("the executor cannot register, and goes on trying: %s", error)
                said = error.code
        return None

    def _go_on(self, answers: list[tuple[Connection, bytes]], work: Work[AsyncActivation, Connection] | None) -> None:
        for to, data in answers:
            to.send(data)
        if work is not None:
            self._spawn(self._do(work))

    async def _do(self, work: Work[AsyncActivation, Connection]) -> None:
        callback, result, error = self._callbacks[work.doing], None, None
        try:
            work.begin(now())
            result = answer_of(work.doing, None if callback is None else await callback(work.activation))
        except BaseException as caught:
            error = caught
            if not isinstance(caught, Exception):
                raise
            report(work, caught)
        finally:
            self._go_on(*self._roster.finish(work, result, error))


class AsyncPlacementEvents:
    """Iterates over the events of actors on this host, in order, on a connection of its own.

    Like PlacementEvents. It begins when it is entered with `async with`, or at the first wait for an event.
    """

    def __init__(
        self, open_channel: Callable[[bool], AsyncChannel], calls: Calls, events: Sequence[str] | None
    ) -> None:
        self._open, self._watch = open_channel, calls.placement_watch(events)
        self._channel: AsyncChannel | None = None
        self._received: deque[Unasked] = deque()
        self._over = False

    def __aiter__(self) -> AsyncPlacementEvents:
        return self

    async def __anext__(self) -> PlacementEvent:
        try:
            while not self._over:
                while self._received:
                    event = event_of(self._received.popleft())
                    if event is not None:
                        return event
                self._received += await (await self._start()).link().receive()
        except KazahanaError as error:
            await self.close()
            if not isinstance(error, ClientClosedError):
                raise gap(error) from error
        raise StopAsyncIteration

    async def close(self) -> None:
        self._over = True
        if self._channel is not None:
            self._channel.close()
            await asyncio.sleep(0)  # the loop closes the socket now

    async def __aenter__(self) -> AsyncPlacementEvents:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _start(self) -> AsyncChannel:
        if self._channel is None:
            channel = self._channel = self._open(True)
            try:
                await channel.perform(self._watch)
            except BaseException:
                channel.close()
                raise
        return self._channel
