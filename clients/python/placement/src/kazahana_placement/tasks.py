"""Placement for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Awaitable, Generator, Sequence
from typing import Any, Callable

from kazahana.client import AsyncClient, delay
from kazahana.clock import monotonic, now, within
from kazahana.connections import AsyncConnection
from kazahana.errors import ClientClosedError, KazahanaError, closed, copy_of, lost
from kazahana.protocol import Call, Calls

from .core import (
    ACTIVATE,
    CHECKS,
    END,
    PASSIVATE,
    STEADY,
    UNSURE,
    ActivationBase,
    PlacementEvent,
    Resolution,
    Roster,
    TwoWayReader,
    Unasked,
    Work,
    answer_of,
    check,
    event_of,
    gap,
    log,
    register,
    report,
    resolve,
    snapshot,
    unanswered,
    unasked_of,
    unregister,
    watch,
)

_INBOX = 256  # with more messages than this waiting, the socket is not read


class AsyncLink(AsyncConnection):
    """A connection on which the daemon may send requests."""

    def __init__(self, path: str) -> None:
        self.paused = False
        self._sent = 0  # messages that have no answer
        self._inbox: list[Unasked] = []
        self._arrival: asyncio.Future[None] | None = None  # the receiver waits for it
        super().__init__(path)
        self._reader = TwoWayReader()

    async def receive(self) -> list[Unasked]:
        """Wait for notifications and requests of the daemon and return them, or raise the connection's error.

        Meant for one task. Messages that are not received stay in the socket, so that the daemon notices.
        """
        while not self._inbox:
            if self.error is not None:
                raise copy_of(self.error)
            self._arrival = self.loop.create_future()
            await self._arrival
        taken, self._inbox = self._inbox, []
        self.pause(False)
        return taken

    def notice(self, message: list[Any]) -> None:
        unasked = unasked_of(message)
        if unasked is not None:
            self._inbox.append(unasked)
        if len(self._inbox) > _INBOX:
            self.pause(True)
        self._arrived()

    def pause(self, paused: bool) -> None:
        """Stop reading, so that the daemon notices, or go on."""
        if self.broken or paused == self.paused:
            return
        self.paused = paused
        if paused:
            self.loop.remove_reader(self._socket.fileno())
        else:
            self.loop.add_reader(self._socket.fileno(), self._readable)

    def fail(self, error: KazahanaError) -> None:
        super().fail(error)
        self._arrived()

    def send(self, data: bytes) -> None:
        """Send a message without an answer. If the connection is lost, receive raises the error."""
        if not self.broken:
            self._sent += 1
            self.write(-self._sent, data)

    def _arrived(self) -> None:
        if self._arrival is not None and not self._arrival.done() and not self.loop.is_closed():
            self._arrival.set_result(None)


class AsyncDialer:
    """Makes connections whose first call is always the same."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._over = False

    def close(self) -> None:
        """Make the next try fail."""
        self._over = True

    async def dial(self, first: Call[Any]) -> AsyncLink:
        link: AsyncLink = await self._client._perform(first, self._begin)
        return link

    async def _begin(self, first: Call[Any], deadline: float) -> AsyncLink:
        if self._over:
            raise closed()
        link: AsyncLink = self._client._connect(AsyncLink)
        try:
            first.parse(await link.call(first, deadline))
        except BaseException:
            link.fail(closed())
            raise
        return link


class AsyncActivation(ActivationBase):
    """An actor that this process runs, from activate until passivate or ended is called with it."""

    def __init__(
        self, calls: Calls, link: AsyncLink, kind: str, identity: str, version: int, token: int, snapshot: bytes | None
    ) -> None:
        super().__init__(kind, identity, version, token, snapshot)
        self._calls, self._link = calls, link

    async def check(self, timeout: float | None = None) -> None:
        """Return if this activation is valid now, else raise an ActivationEndedError.

        Await it before each action that must not be done twice. An earlier answer of the daemon usually covers
        this moment; otherwise it asks the daemon, for at most timeout seconds (default: the client's).
        """
        started = monotonic()
        timeout = self._calls.timeout if timeout is None else timeout
        for _ in range(CHECKS):
            if self.covered(asked := now()):
                return
            remaining = max(started + timeout - monotonic(), 1e-6)
            call = check(self._calls, self.kind, self.identity, self.token, remaining)
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
        dialer: AsyncDialer,
        calls: Calls,
        kinds: Sequence[str],
        activate: Callable[[AsyncActivation], Awaitable[str | None]],
        passivate: Callable[[AsyncActivation], Awaitable[bytes | None]],
        ended: Callable[[AsyncActivation], Awaitable[object]] | None = None,
    ) -> None:
        self._dialer, self._calls = dialer, calls
        self._register = register(calls, kinds)
        self._callbacks: dict[str, Callable[[AsyncActivation], Awaitable[Any]] | None] = {
            ACTIVATE: activate, PASSIVATE: passivate, END: ended
        }  # fmt: skip
        self._roster: Roster[AsyncActivation, AsyncLink] = Roster(lambda *told: AsyncActivation(calls, *told))
        self._tasks: set[asyncio.Task[None]] = set()
        self._link: AsyncLink | None = None
        self._tries = 0
        self._started = self._closing = False
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
        link = self._link
        if os.getpid() != self._process or self._closing or link is None:
            return
        self._closing = True
        deadline = monotonic() + self._calls.timeout
        try:
            with contextlib.suppress(KazahanaError):  # without a connection there is nothing to passivate
                await link.call(unregister(self._calls), deadline)
        finally:
            self._stop()
        while self._tasks and monotonic() < deadline:  # tasks that end may begin others
            await within(deadline - monotonic(), *self._tasks)

    async def _start(self) -> AsyncExecutor:
        if self._started:
            raise RuntimeError("this executor has been started already")
        self._started = True
        link = self._link = await self._dialer.dial(self._register)
        self._spawn(self._listen(link))
        return self

    def _stop(self) -> None:
        self._dialer.close()
        if self._link is not None:
            self._link.fail(closed())

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # the loop keeps weak references only
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, link: AsyncLink | None) -> None:
        """Listen on one connection after another, until this is closed."""
        try:
            while link is not None:
                began = monotonic()
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
                if monotonic() - began > STEADY:
                    self._tries = 0
                link = await self._reconnect()
        finally:
            self._stop()  # also when the loop cancels all tasks

    async def _reconnect(self) -> AsyncLink | None:
        """Register again; return None when this is closed first."""
        said = ""
        while not self._closing:
            await within(delay(self._tries))
            self._tries += 1
            try:
                self._link = link = await self._dialer.dial(self._register)
                if self._closing:
                    link.fail(closed())
                return link
            except KazahanaError as error:
                if error.code != said and not self._closing:
                    log.warning("the executor cannot register, and goes on trying: %s", error)
                said = error.code
        return None

    def _go_on(self, answers: list[tuple[AsyncLink, bytes]], work: Work[AsyncActivation, AsyncLink] | None) -> None:
        for to, data in answers:
            to.send(data)
        if work is not None:
            self._spawn(self._do(work))

    async def _do(self, work: Work[AsyncActivation, AsyncLink]) -> None:
        callback, result, error = self._callbacks[work.doing], None, None
        try:
            work.begin(now())
            outcome = None if callback is None else await callback(work.activation)
            work.returned = True
            result = answer_of(work.doing, outcome)
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

    def __init__(self, dialer: AsyncDialer, calls: Calls, events: Sequence[str] | None) -> None:
        self._dialer, self._watch = dialer, watch(calls, events)
        self._link: AsyncLink | None = None
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
                self._received += await (await self._start()).receive()
        except KazahanaError as error:
            await self.close()
            if not isinstance(error, ClientClosedError):
                raise gap(error) from error
        raise StopAsyncIteration

    async def close(self) -> None:
        self._over = True
        if self._link is not None:
            self._link.fail(closed())

    async def __aenter__(self) -> AsyncPlacementEvents:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _start(self) -> AsyncLink:
        if self._link is None:
            self._link = await self._dialer.dial(self._watch)
        return self._link


class AsyncPlacement:
    """Placement of actors by the daemon of a client; like Placement."""

    def __init__(self, client: AsyncClient) -> None:
        if not isinstance(client, AsyncClient):
            raise TypeError(f"AsyncPlacement is for an AsyncClient; for a {type(client).__name__} there is Placement")
        self._client, self._calls = client, client._calls

    def _dialer(self) -> AsyncDialer:
        return AsyncDialer(self._client)

    async def _perform(self, call: Call[Any]) -> Any:
        return await self._client._perform(call)

    async def resolve(self, kind: str, identity: str, *, wait: float = 10.0, pid: bool = False) -> Resolution:
        """Return where the actor lives; activate it if that is this host and it is not active yet.

        wait, 0 to 600 s, limits the wait for an activation or passivation, here or on the actor's former host.
        With pid, a remote actor's pid, version and token are looked up too, no older than topology_interval.
        An empty pid then says that the actor is not active there, or that the store did not answer.
        """
        resolution: Resolution = await self._perform(resolve(self._calls, kind, identity, wait, pid))
        return resolution

    def register(
        self,
        kinds: Sequence[str],
        activate: Callable[[AsyncActivation], Awaitable[str | None]],
        passivate: Callable[[AsyncActivation], Awaitable[bytes | None]],
        ended: Callable[[AsyncActivation], Awaitable[object]] | None = None,
    ) -> AsyncExecutor:
        """Run the actors of some kinds in this process; see AsyncExecutor."""
        return AsyncExecutor(self._dialer(), self._calls, kinds, activate, passivate, ended)

    def events(self, events: Sequence[str] | None = None) -> AsyncPlacementEvents:
        """Watch events of actors on this host: those named, or all but resolved; see AsyncPlacementEvents."""
        return AsyncPlacementEvents(self._dialer(), self._calls, events)

    async def snapshot(
        self,
        *,
        after: str | None = None,
        limit: int | None = None,
        kind: str | None = None,
        identity: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Return members, kinds and activations as the daemon knows them.

        A page has limit activations (0 to 1000, default 100), with keys after "kind/identity". kind and
        identity together select one actor, with its record in the store.
        """
        options = {"after": after, "limit": limit, "kind": kind, "identity": identity}
        page: dict[str, Any] = await self._perform(snapshot(self._calls, timeout, options))
        return page
