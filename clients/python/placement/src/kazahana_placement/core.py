"""Placement without I/O: the requests to an executor, the order of its callbacks, and its answers.

Nothing here reads a clock, starts a thread or touches a socket; Executor and AsyncExecutor are two
thin shells around a Roster.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Generic, NamedTuple, TypeVar

import msgpack

from kazahana.errors import (
    ClientClosedError,
    DaemonUnavailableError,
    InvalidParamsError,
    KazahanaError,
    ProtocolError,
    RequestTimeoutError,
    ShuttingDownError,
    late,
)
from kazahana.other import record, table
from kazahana.protocol import ANSWER, MAX_TIMEOUT, Call, Calls, Reader, exactly

from .errors import ActivationEndedError, WatchEndedError

log = logging.getLogger("kazahana")

REQUEST = 0  # the first element of a message

STEADY = 1.0  # s; after a connection that lasted this long, the next one is tried at once

ANSWER_WITHIN = 5.0  # s; the daemon ignores later answers
CHECKS = 3  # requests of one check, if the promises have ended when they arrive
MAX_WAIT = 600  # s; the daemon's limit for wait_ms
MAX_PID = 256  # bytes of UTF-8
MAX_SNAPSHOT = 64 << 10  # bytes
MAX_TEXT = 1000  # characters of an error

# What a process does for an actor.
ACTIVATE, PASSIVATE, END = "activate", "passivate", "end"

# After these answers to a check, the process must stop acting: another host may act.
UNSURE = (ActivationEndedError, RequestTimeoutError, ShuttingDownError, DaemonUnavailableError, ClientClosedError)
_REASONS = ("refused", "unanswered", "unanswered", "disconnected", "disconnected")


@dataclass(frozen=True)
class Resolution:
    """Where an actor lives. Of a remote one pid, version and token are known if they were asked for, else "", 0, 0."""

    kind: str
    identity: str
    authority: str
    """host:port of the member that is responsible for the actor"""
    locality: str
    """local or remote"""
    pid: str
    """the process's name for the actor"""
    version: int
    token: int
    """the fencing token of the activation: greater than that of every earlier one"""
    observed_ms: int
    """Unix time"""

    @property
    def is_local(self) -> bool:
        return self.locality == "local"


_resolution = record(Resolution)


class Unasked(NamedTuple):
    """A notification of the daemon, or a request, which must be answered."""

    msgid: int | None  # of a request
    method: Any
    params: Any


class TwoWayReader(Reader):
    """Reads a connection on which the daemon may send requests, too."""

    def checked(self, message: Any) -> list[Any]:
        if not isinstance(message, list) or len(message) != 4 or message[0] != REQUEST:
            return super().checked(message)
        if type(message[1]) is not int or not isinstance(message[2], str):
            raise ProtocolError("a request of the daemon is not MessagePack-RPC")
        return message


def unasked_of(message: list[Any]) -> Unasked | None:
    """Return a message that is not an answer."""
    if message[0] == ANSWER:
        return None
    return Unasked(*message[1:]) if message[0] == REQUEST else Unasked(None, *message[1:])


def _valid_ms(value: Any) -> int:
    return exactly(int, table(value).get("valid_ms"))


def resolve(calls: Calls, kind: str, identity: str, wait: float, pid: bool = False) -> Call[Resolution]:
    if not 0 <= wait <= MAX_WAIT:
        raise InvalidParamsError(f"wait={wait} is out of range: 0 to {MAX_WAIT} s")
    timeout = min(calls.timeout + wait, MAX_TIMEOUT)
    options = {"wait_ms": int(wait * 1000), "pid": pid or None}
    return calls.make("Placement.Resolve", [kind, identity], _resolution, timeout, **options)


def register(calls: Calls, kinds: Sequence[str]) -> Call[dict[str, Any]]:
    return calls.make("Placement.Register", [[kinds] if isinstance(kinds, str) else list(kinds)], table)


def unregister(calls: Calls) -> Call[dict[str, Any]]:
    return calls.make("Placement.Unregister", [], table)


def check(calls: Calls, kind: str, identity: str, token: int, timeout: float) -> Call[int]:
    return calls.make("Placement.Check", [kind, identity, token], _valid_ms, timeout)


def watch(calls: Calls, events: Sequence[str] | None) -> Call[dict[str, Any]]:
    return calls.make("Placement.Watch", [], table, events=None if events is None else list(events))


def snapshot(calls: Calls, timeout: float | None, options: dict[str, Any]) -> Call[dict[str, Any]]:
    return calls.make("Placement.Snapshot", [], table, timeout, **options)


def unanswered(call: Call[Any], path: str) -> RequestTimeoutError:
    return late(call.timeout, f"no answer to {call.method} from {path}")


def response(msgid: int, error: str | None, result: Any) -> bytes:
    """Return the answer to a request of the daemon: an error's text, or a result."""
    problem = None if error is None else [0, error]
    data: bytes = msgpack.packb([1, msgid, problem, result], unicode_errors="replace")
    return data


class ActivationBase:
    """An activation, and the end of the daemon's promise for it."""

    _link: Any = None  # the connection that it came by

    def __init__(self, kind: str, identity: str, version: int, token: int, snapshot: bytes | None) -> None:
        self.kind = kind
        self.identity = identity
        self.version = version
        self.token = token
        """the fencing token: greater than that of every earlier activation of this actor"""
        self.snapshot = snapshot
        """the snapshot of the last passivation, or None"""
        self._over: str | None = None
        self._until = float("-inf")  # on the clock of clock.now
        self._process = os.getpid()

    @property
    def ended(self) -> bool:
        """Whether the activation is known to be over. False proves nothing: see check."""
        return self._reason() is not None

    def _reason(self) -> str | None:
        """Return why the activation is over, if it is known to be."""
        if self._over is not None or os.getpid() != self._process:
            return self._over or "forked"
        # The daemon may have noticed the end of the connection before this process has told the actor.
        return "disconnected" if self._link is not None and self._link.broken else None

    def end(self, reason: str) -> None:
        self._over = self._over or reason

    def covered(self, at: float) -> bool:
        """Report whether an earlier answer of the daemon covers this moment."""
        if (reason := self._reason()) is not None:
            raise ActivationEndedError(f"the activation of {self} has ended", reason=reason)
        return at < self._until

    def cover(self, asked: float, valid_ms: int) -> None:
        """Take a promise; it counts from before the request."""
        self._until = max(self._until, asked + valid_ms / 1000)

    def unsure(self, error: KazahanaError) -> ActivationEndedError:
        """Return the error to raise if the daemon does not confirm the activation."""
        reason = next(reason for kind, reason in zip(UNSURE, _REASONS) if isinstance(error, kind))
        if reason == "refused":  # which is final
            self.end(reason)
        return ActivationEndedError(f"the activation of {self} is not to be relied on: {error.message}", reason=reason)

    def __str__(self) -> str:
        return f"{self.kind}/{self.identity}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self} version={self.version} token={self.token}>"


A = TypeVar("A", bound=ActivationBase)
L = TypeVar("L")


class LateError(Exception):
    """The work was not begun, because it is too late."""


class Work(Generic[A, L]):
    """Work for an actor: a request of the daemon, or the end of its activation."""

    def __init__(
        self, doing: str, activation: A, link: L | None = None, msgid: int | None = None, arrived: float = 0.0
    ) -> None:
        self.doing = doing
        self.activation = activation
        self.link = link  # the connection that it came by
        self.msgid = msgid
        self.arrived = arrived  # on the clock of clock.now, which counts on while the machine is suspended
        self.dropped = False  # the connection was lost meanwhile
        self.returned = False  # whether the callback has returned, be it what it should or not

    @property
    def key(self) -> tuple[str, str]:
        return self.activation.kind, self.activation.identity

    def begin(self, now: float) -> None:
        """Raise a LateError if the answer would come too late: the daemon will have given up the activation."""
        if self.doing == ACTIVATE and now - self.arrived >= ANSWER_WITHIN:
            raise LateError("the workers were too busy to begin in time")


@dataclass(frozen=True)
class _Subject:
    """What the daemon names when it asks to activate or passivate an actor."""

    kind: str
    identity: str
    version: int
    token: int


_subject = record(_Subject)


class Roster(Generic[A, L]):
    """The activations of an executor, and the work for them, for each actor in order.

    Each step returns answers, and the work to begin, if any: of each actor one at a time. Not synchronised.
    L is the type of a connection, of which there is one at a time; end comes between two.
    """

    def __init__(self, make: Callable[[L, str, str, int, int, bytes | None], A]) -> None:
        self.live: dict[tuple[str, str], A] = {}
        self._make = make
        self._queues: dict[tuple[str, str], deque[Work[A, L]]] = {}  # none is empty; the first is being done

    def take(self, link: L, unasked: Unasked, now: float) -> tuple[list[tuple[L, bytes]], Work[A, L] | None]:
        """Take a request. Notifications are ignored."""
        if unasked.msgid is None:
            return [], None
        if unasked.method not in ("Activate", "Passivate"):
            return [(link, response(unasked.msgid, f"UNKNOWN_METHOD: there is no {unasked.method!r}", None))], None
        try:
            about = unasked.params[0]
        except (LookupError, TypeError) as error:
            raise ProtocolError(f"the daemon's {unasked.method} is not complete: {error!r}") from error
        asked = _subject(about)
        activation = self._make(link, asked.kind, asked.identity, asked.version, asked.token, about.get("snapshot"))
        work = Work(unasked.method.lower(), activation, link, unasked.msgid, now)
        queue = self._queues.setdefault(work.key, deque())
        queue.append(work)
        return self._begin(work.key) if len(queue) == 1 else ([], None)

    def finish(
        self, work: Work[A, L], result: dict[str, Any] | None, error: BaseException | None
    ) -> tuple[list[tuple[L, bytes]], Work[A, L] | None]:
        """Take the outcome of work: an answer of answer_of, or an error."""
        queue, activation = self._queues[work.key], work.activation
        queue.popleft()
        if work.doing == ACTIVATE and error is None and not work.dropped:
            self.live[work.key] = activation
        else:
            if work.doing == ACTIVATE and (error is None or work.returned):  # the actor runs: it must be ended here
                queue.appendleft(Work(END, activation))
            activation.end("passivated" if work.doing == PASSIVATE else "failed")
            self.live.pop(work.key, None)
        answers, following = self._begin(work.key)
        if work.msgid is not None and work.link is not None:
            text = None if error is None else f"{type(error).__name__}: {error}"[:MAX_TEXT]
            answers.insert(0, (work.link, response(work.msgid, text, result)))
        return answers, following

    def end(self) -> list[Work[A, L]]:
        """End all activations at the end of the connection; return the work to begin."""
        for queue in self._queues.values():
            running = queue[0]
            running.dropped = True
            running.activation.end("disconnected")
            for work in [work for work in queue if work is not running and work.doing != END]:
                queue.remove(work)
        begun = []
        for key, activation in self.live.items():
            activation.end("disconnected")
            queue = self._queues.setdefault(key, deque())
            if queue and queue[0].activation is activation:  # which is being passivated
                continue
            queue.append(Work(END, activation))
            if len(queue) == 1:
                begun.append(queue[0])
        self.live.clear()
        return begun

    def _begin(self, key: tuple[str, str]) -> tuple[list[tuple[L, bytes]], Work[A, L] | None]:
        """Return the next work for an actor, and the answers to requests that need no work."""
        queue = self._queues[key]
        answers: list[tuple[L, bytes]] = []
        while queue:
            work, live = queue[0], self.live.get(key)
            if work.doing == END:
                return answers, work
            if work.doing == ACTIVATE and live is not None:  # the daemon knows nothing of that one any more
                live.end("refused")
                queue.appendleft(Work(END, self.live.pop(key)))
                continue
            if work.doing == ACTIVATE:
                return answers, work
            if live is not None and live.token <= work.activation.token:
                work.activation = live
                return answers, work
            queue.popleft()  # a Passivate of what is not there
            if work.msgid is not None and work.link is not None:
                answers.append((work.link, response(work.msgid, None, {"snapshot": None})))
        del self._queues[key]
        return answers, None


def answer_of(doing: str, result: object) -> dict[str, Any] | None:
    """Return the answer for a callback's result."""
    if doing == ACTIVATE:
        pid = str(os.getpid()) if result is None else result
        if not isinstance(pid, str) or not 1 <= len(pid.encode()) <= MAX_PID:
            raise ValueError(f"activate returned {pid!r:.80}: a pid is a str of 1 to {MAX_PID} bytes, or None")
        return {"pid": pid}
    if doing == PASSIVATE:
        if not isinstance(result, (bytes, bytearray, type(None))) or len(result or b"") > MAX_SNAPSHOT:
            raise ValueError(f"passivate returned {result!r:.80}: at most {MAX_SNAPSHOT} bytes are due, or None")
        return {"snapshot": result}
    return None


@dataclass(frozen=True)
class PlacementEvent:
    """An event of an actor."""

    event: str
    """resolved, lock_denied, activated, activation_failed, passivated, unserved, pid_cached or pid_dropped"""
    kind: str
    identity: str
    authority: str
    pid: str
    version: int
    token: int
    reason: str
    observed_ms: int
    """Unix time"""


_event = record(PlacementEvent)


def gap(error: KazahanaError) -> KazahanaError:
    """Return the error to raise when no more events can be received."""
    if not isinstance(error, DaemonUnavailableError):
        return error
    return WatchEndedError(f"the events end here: {error.message}", reason="disconnected")


def event_of(unasked: Unasked) -> PlacementEvent | None:
    """Convert a notification; raise the error that ends the watch."""
    about = unasked.params[0] if isinstance(unasked.params, list) and unasked.params else None
    if unasked.method == "Placement.WatchEnded":
        reason = str(about.get("reason", "")) if isinstance(about, dict) else ""
        raise WatchEndedError(f"the daemon tells of no more events: {reason or 'it does not say why'}", reason=reason)
    if unasked.method != "Placement.Event":
        return None
    event: PlacementEvent = _event(about)
    return event


def report(work: Work[Any, Any], error: BaseException) -> None:
    log.error("could not %s %s: %s", work.doing, work.activation, error, exc_info=not isinstance(error, LateError))
