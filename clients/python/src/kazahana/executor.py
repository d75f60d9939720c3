"""Executors and events of placement, for threads."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any, Callable

from .calls import Calls
from .errors import ClientClosedError, InvalidParamsError, KazahanaError
from .placement import (
    ACTIVATE,
    ANSWER_WITHIN,
    CHECKS,
    END,
    PASSIVATE,
    UNSURE,
    ActivationBase,
    LateError,
    PlacementEvent,
    Roster,
    Work,
    answer_of,
    event_of,
    gap,
)
from .prefetch import now
from .protocol import Retry, Unasked, lost, unanswered
from .sync import Channel, Connection

log = logging.getLogger("kazahana")

STEADY = 1.0  # s; after a connection that lasted this long, the next one is tried at once


def report(work: Work[Any, Any], error: BaseException) -> None:
    log.error("could not %s %s: %s", work.doing, work.activation, error, exc_info=not isinstance(error, LateError))


class Activation(ActivationBase):
    """An actor that this process runs, from activate until passivate or ended is called with it."""

    def __init__(
        self, calls: Calls, link: Connection, kind: str, identity: str, version: int, token: int, snapshot: bytes | None
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
            call = self._calls.check(self.kind, self.identity, self.token, remaining)
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
        open_channel: Callable[[bool], Channel],
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
        self._register = calls.register(kinds)
        self._callbacks: dict[str, Callable[[Activation], Any] | None] = {
            ACTIVATE: activate, PASSIVATE: passivate, END: ended
        }  # fmt: skip
        self._roster: Roster[Activation, Connection] = Roster(lambda *told: Activation(calls, *told))
        self._mutex = threading.Lock()  # of the roster
        self._jobs: queue.SimpleQueue[Work[Activation, Connection] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._process = os.getpid()
        self._channel = open_channel(True)
        try:
            self._channel.perform(self._register)
            link = self._channel.link()
        except BaseException:
            self._channel.close()
            raise
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
                self._channel.link().call(self._calls.unregister(), deadline)
        finally:
            self._channel.close()
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(max(0.0, deadline - monotonic()))

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self, link: Connection | None) -> None:
        """Listen on one connection after another, until this is closed."""
        retry = Retry.endless()
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
            with self._mutex:
                begun = self._roster.end()
            for work in begun:
                self._jobs.put(work)
            if monotonic() - began > STEADY:
                retry = Retry.endless()
            link = self._reconnect(retry)
        for _ in self._threads[1:]:
            self._jobs.put(None)

    def _reconnect(self, retry: Retry) -> Connection | None:
        """Register again; return None when this is closed first."""
        said = ""
        while not self._closing.wait(retry.delay()):
            try:
                self._channel.perform(self._register)
                return self._channel.link()
            except KazahanaError as error:
                if error.code != said and not self._closing.is_set():
                    log.warning("the executor cannot register, and goes on trying: %s", error)
                said = error.code
        return None

    def _take(self, link: Connection, unasked: Unasked) -> None:
        with self._mutex:
            answers, work = self._roster.take(link, unasked, now())
        for to, data in answers:
            to.send(data, ANSWER_WITHIN)
        if work is not None:
            self._jobs.put(work)

    def _work(self) -> None:
        while (work := self._jobs.get()) is not None:
            following: Work[Activation, Connection] | None = work
            while following is not None:
                following = self._do(following)

    def _do(self, work: Work[Activation, Connection]) -> Work[Activation, Connection] | None:
        """Call back; return the next work for the same actor."""
        callback, result, error = self._callbacks[work.doing], None, None
        try:
            work.begin(now())
            result = answer_of(work.doing, None if callback is None else callback(work.activation))
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

    def __init__(self, open_channel: Callable[[bool], Channel], calls: Calls, events: Sequence[str] | None) -> None:
        self._channel = open_channel(True)
        try:
            self._channel.perform(calls.placement_watch(events))
        except BaseException:
            self._channel.close()
            raise
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
                self._received += self._channel.link().receive()
        except KazahanaError as error:
            self.close()
            if not isinstance(error, ClientClosedError):
                raise gap(error) from error
        raise StopIteration

    def close(self) -> None:
        self._over = True
        self._channel.close()

    def __enter__(self) -> PlacementEvents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
