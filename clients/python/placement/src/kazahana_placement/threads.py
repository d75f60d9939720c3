"""Placement for threads."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Callable

from kazahana import fork
from kazahana.client import Client, delay
from kazahana.clock import monotonic, now
from kazahana.connections import CHUNK, QUIET, Connection
from kazahana.errors import ClientClosedError, InvalidParamsError, KazahanaError, closed, copy_of, lost
from kazahana.protocol import ANSWER, Call, Calls

from .core import (
    ACTIVATE,
    ANSWER_WITHIN,
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


class TwoWay(Connection):
    """A connection on which the daemon may send requests."""

    def __init__(self, path: str) -> None:
        self.inbox: list[Unasked] = []
        super().__init__(path)
        self._reader = TwoWayReader()

    def notice(self, message: list[Any]) -> None:
        unasked = unasked_of(message)
        if unasked is not None:
            self.inbox.append(unasked)


class _Answer:
    """A thread that waits for an answer."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.error: KazahanaError | None = None
        self.result: Any = None


class Link:
    """A connection that one thread listens on, in receive, while any may call and send."""

    def __init__(self, connection: TwoWay) -> None:
        self.path: str = connection.path
        self._connection, self._socket = connection, connection._socket
        self._mutex = threading.Lock()  # of the three that follow; its holder waits for nothing
        self._msgid = connection._msgid
        self._waiting: dict[int, _Answer] = {}
        self._error: KazahanaError | None = None
        self._sending = threading.Lock()  # messages are whole; waited for until a deadline only
        # The daemon reads all the time: what cannot be sent for so long never will be.
        self._socket.settimeout(ANSWER_WITHIN)

    @property
    def broken(self) -> bool:
        return self._error is not None

    def call(self, call: Call[Any], deadline: float) -> Any:
        """Send, and return the result or raise the daemon's or the connection's error."""
        answer = _Answer()
        with self._mutex:
            if self._error is not None:
                raise copy_of(self._error)
            self._msgid = msgid = self._msgid + 1
            self._waiting[msgid] = answer
        self.send(call.request(msgid), deadline - monotonic())
        if not answer.arrived.wait(max(0.0, deadline - monotonic())):
            with self._mutex:
                self._waiting.pop(msgid, None)
            raise unanswered(call, self.path)
        if answer.error is not None:
            raise answer.error
        return answer.result

    def send(self, data: bytes, timeout: float) -> None:
        """Send a message. If the connection is lost, receive raises the error."""
        if not self._sending.acquire(timeout=max(0.0, timeout)):
            return
        try:
            self._socket.sendall(data, QUIET)
        except OSError as error:  # a part of it may be on its way
            if self._error is None:
                self.fail(lost(self.path, error))
        finally:
            self._sending.release()

    def receive(self) -> list[Unasked]:
        """Wait for notifications and requests of the daemon and return them, or raise the connection's error.

        Meant for one thread. Messages that are not received stay in the socket, so that the daemon notices.
        """
        fork.look()  # what comes is the parent's
        while not self._connection.inbox:
            data = b""
            try:
                data = self._socket.recv(CHUNK)
            except socket.timeout:
                continue
            except OSError as error:
                self.fail(lost(self.path, error))
            try:
                with self._mutex:
                    if self._error is not None:
                        raise copy_of(self._error)
                if not data:
                    raise lost(self.path)
                messages = self._connection._reader.feed(data)
            except KazahanaError as error:
                self.fail(error)
                raise
            for message in messages:
                self._take(message)
        taken, self._connection.inbox = self._connection.inbox, []
        return taken

    def _take(self, message: list[Any]) -> None:
        if message[0] != ANSWER:
            self._connection.notice(message)
            return
        with self._mutex:
            answer = self._waiting.pop(message[1], None)
        if answer is not None:
            answer.error, answer.result = message[2:]
            answer.arrived.set()

    def fail(self, error: KazahanaError) -> None:
        """End the connection; calls that wait get the error."""
        with self._mutex:
            if self._error is not None:
                return
            self._error = error
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for answer in waiting:
            answer.error = copy_of(error)
            answer.arrived.set()
        fork.look()  # a child must not end its parent's connection
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # which wakes who receives

    def close(self) -> None:
        """Close the socket, after fail."""
        with self._sending:
            self._connection.close()


class Dialer:
    """Makes connections whose first call is always the same."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._over = False

    def close(self) -> None:
        """Make the next try fail."""
        self._over = True

    def dial(self, first: Call[Any]) -> Link:
        link: Link = self._client._perform(first, self._begin)
        return link

    async def _begin(self, first: Call[Any], deadline: float) -> Link:
        if self._over:
            raise closed()
        connection = self._client._connect(TwoWay)
        try:
            first.parse(connection.call(first, deadline))
        except BaseException:
            connection.close()
            raise
        return Link(connection)


class Activation(ActivationBase):
    """An actor that this process runs, from activate until passivate or ended is called with it."""

    def __init__(
        self, calls: Calls, link: Link, kind: str, identity: str, version: int, token: int, snapshot: bytes | None
    ) -> None:
        super().__init__(kind, identity, version, token, snapshot)
        self._calls, self._link = calls, link

    def check(self, timeout: float | None = None) -> None:
        """Return if this activation is valid now, else raise an ActivationEndedError.

        Call it before each action that must not be done twice. An earlier answer of the daemon usually covers
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
                self.cover(asked, call.parse(self._link.call(call, started + timeout)))
            except UNSURE as error:
                raise self.unsure(error) from error
        if not self.covered(now()):
            raise self.unsure(unanswered(call, self._link.path))


class Executor:
    """Runs the actors of some kinds in this process while this object's own connection lives.

    activate(activation) starts an actor and returns the process's name for it (None: the process
    ID); callers that resolve the actor get the text of its exception. passivate(activation) stops an actor and
    returns a snapshot for its next activation, or None. ended(activation) is called when the connection is
    lost: the actor must stop, since another host may run it already. Calls for one actor come one after
    another, calls for different actors at the same time, in as many threads as there are workers. The
    daemon ignores answers after 5 seconds.

    After a loss it connects and registers again, until it is closed. It belongs to the process
    that made it: in a forked child it is closed.
    """

    def __init__(
        self,
        dialer: Dialer,
        calls: Calls,
        kinds: Sequence[str],
        activate: Callable[[Activation], str | None],
        passivate: Callable[[Activation], bytes | None],
        ended: Callable[[Activation], object] | None = None,
        workers: int = 4,
    ) -> None:
        if workers < 1:
            raise InvalidParamsError(f"workers={workers} is out of range: at least 1")
        self._calls = calls
        self._register = register(calls, kinds)
        self._callbacks: dict[str, Callable[[Activation], Any] | None] = {
            ACTIVATE: activate, PASSIVATE: passivate, END: ended
        }  # fmt: skip
        self._roster: Roster[Activation, Link] = Roster(lambda *told: Activation(calls, *told))
        self._mutex = threading.Lock()  # of the roster
        self._jobs: queue.SimpleQueue[Work[Activation, Link] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._process = os.getpid()
        self._dialer, self._tries = dialer, 0
        self._link = link = dialer.dial(self._register)
        self._threads = [threading.Thread(target=self._listen, args=(link,), name="kazahana executor", daemon=True)]
        for number in range(workers):
            name = f"kazahana worker {number}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def activations(self) -> list[Activation]:
        """Return the live activations."""
        if os.getpid() != self._process:
            return []
        with self._mutex:
            return list(self._roster.live.values())

    def close(self) -> None:
        """Passivate all activations, for at most the client's timeout, and close. Not for use in callbacks."""
        if os.getpid() != self._process or self._closing.is_set():
            return
        self._closing.set()
        deadline = monotonic() + self._calls.timeout
        try:
            with contextlib.suppress(KazahanaError):  # without a connection there is nothing to passivate
                self._link.call(unregister(self._calls), deadline)
        finally:
            self._dialer.close()
            self._link.fail(closed())
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(max(0.0, deadline - monotonic()))

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self, link: Link | None) -> None:
        """Listen on one connection after another, until this is closed."""
        while link is not None:
            began = monotonic()
            try:
                while True:
                    for unasked in link.receive():
                        self._take(link, unasked)
            except KazahanaError as error:
                if not self._closing.is_set():
                    log.info("the executor has lost its connection: %s", error)
                link.fail(lost(link.path, error))
                link.close()
            with self._mutex:
                begun = self._roster.end()
            for work in begun:
                self._jobs.put(work)
            if monotonic() - began > STEADY:
                self._tries = 0
            link = self._reconnect()
        for _ in self._threads[1:]:
            self._jobs.put(None)

    def _reconnect(self) -> Link | None:
        """Register again; return None when this is closed first."""
        said = ""
        while not self._closing.wait(delay(self._tries)):
            self._tries += 1
            try:
                self._link = link = self._dialer.dial(self._register)
                if self._closing.is_set():
                    link.fail(closed())
                return link
            except KazahanaError as error:
                if error.code != said and not self._closing.is_set():
                    log.warning("the executor cannot register, and goes on trying: %s", error)
                said = error.code
        return None

    def _take(self, link: Link, unasked: Unasked) -> None:
        with self._mutex:
            answers, work = self._roster.take(link, unasked, now())
        for to, data in answers:
            to.send(data, ANSWER_WITHIN)
        if work is not None:
            self._jobs.put(work)

    def _work(self) -> None:
        while (work := self._jobs.get()) is not None:
            following: Work[Activation, Link] | None = work
            while following is not None:
                following = self._do(following)

    def _do(self, work: Work[Activation, Link]) -> Work[Activation, Link] | None:
        """Call back; return the next work for the same actor."""
        callback, result, error = self._callbacks[work.doing], None, None
        try:
            work.begin(now())
            outcome = None if callback is None else callback(work.activation)
            work.returned = True
            result = answer_of(work.doing, outcome)
        except BaseException as caught:
            error = caught
            report(work, caught)
        with self._mutex:
            answers, following = self._roster.finish(work, result, error)
        for to, data in answers:
            to.send(data, ANSWER_WITHIN)
        return following


class PlacementEvents:
    """Iterates over the events of actors on this host, in order, on a connection of its own.

    It ends with a WatchEndedError; events until a new one begins are missed. close, from any thread, ends it
    without an error.
    """

    def __init__(self, dialer: Dialer, calls: Calls, events: Sequence[str] | None) -> None:
        self._link = dialer.dial(watch(calls, events))
        self._received: deque[Unasked] = deque()
        self._over = False

    def __iter__(self) -> PlacementEvents:
        return self

    def __next__(self) -> PlacementEvent:
        try:
            while not self._over:
                while self._received:
                    event = event_of(self._received.popleft())
                    if event is not None:
                        return event
                self._received += self._link.receive()
        except KazahanaError as error:
            self.close()
            if not isinstance(error, ClientClosedError):
                raise gap(error) from error
        raise StopIteration

    def close(self) -> None:
        self._over = True
        self._link.fail(closed())

    def __enter__(self) -> PlacementEvents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Placement:
    """Placement of actors by the daemon of a client."""

    def __init__(self, client: Client) -> None:
        if not isinstance(client, Client):
            raise TypeError(f"Placement is for a Client; for an {type(client).__name__} there is AsyncPlacement")
        self._client, self._calls = client, client._calls

    def _dialer(self) -> Dialer:
        return Dialer(self._client)

    def _perform(self, call: Call[Any]) -> Any:
        return self._client._perform(call)

    def resolve(self, kind: str, identity: str, *, wait: float = 10.0, pid: bool = False) -> Resolution:
        """Return where the actor lives; activate it if that is this host and it is not active yet.

        wait, 0 to 600 s, limits the wait for an activation or passivation, here or on the actor's former host.
        With pid, a remote actor's pid, version and token are looked up too, no older than topology_interval.
        An empty pid then says that the actor is not active there, or that the store did not answer.
        """
        resolution: Resolution = self._perform(resolve(self._calls, kind, identity, wait, pid))
        return resolution

    def register(
        self,
        kinds: Sequence[str],
        activate: Callable[[Activation], str | None],
        passivate: Callable[[Activation], bytes | None],
        ended: Callable[[Activation], object] | None = None,
        *,
        workers: int = 4,
    ) -> Executor:
        """Run the actors of some kinds in this process; see Executor."""
        return Executor(self._dialer(), self._calls, kinds, activate, passivate, ended, workers)

    def events(self, events: Sequence[str] | None = None) -> PlacementEvents:
        """Watch events of actors on this host: those named, or all but resolved; see PlacementEvents."""
        return PlacementEvents(self._dialer(), self._calls, events)

    def snapshot(
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
        page: dict[str, Any] = self._perform(snapshot(self._calls, timeout, options))
        return page
