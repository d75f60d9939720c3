"""Placement for unit tests, without a daemon: one host, which is the authority of every actor."""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from concurrent.futures import Future, TimeoutError
from dataclasses import dataclass
from typing import Any, Callable, Protocol, Union

import msgpack

from kazahana.clock import within
from kazahana.errors import InvalidParamsError, KazahanaError, UnknownMethodError, from_wire, lost
from kazahana.protocol import Call
from kazahana.testing import AsyncFakeClient, FakeClient, FakeDaemon

from .core import Unasked
from .errors import ActivationEndedError, ActivationFailedError, PlacementPendingError, PlacementUnservedError
from .tasks import AsyncDialer, AsyncPlacement
from .threads import Dialer, Placement

AUTHORITY = "fake:1"
_TTL_MS, _VALID_MS = 10_000, 1_000

Key = tuple[str, str]
Told = Union[Unasked, KazahanaError]


class Link(Protocol):
    """The part of an executor's connection that the daemon uses."""

    broken: bool

    def tell(self, told: Told) -> None: ...


@dataclass(eq=False)
class _Actor:
    link: Link
    version: int
    token: int
    resolved: Future[dict[str, Any]]
    passivated: Future[None] | None = None


class _Host:
    """Sends requests to executors, and takes their answers. Callers that wait for answers get a Future."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self._daemon = daemon
        self._mutex = threading.RLock()  # futures that are done call back
        self._kinds: dict[Link, list[str]] = {}
        self._actors: dict[Key, _Actor] = {}
        self._versions: dict[Key, int] = {}
        self._snapshots: dict[Key, bytes] = {}  # the last that was left
        self._tokens = self._msgids = 0
        self._asked: dict[tuple[Link, int], Callable[[KazahanaError | None, Any], None]] = {}

    def begin(self, method: str, given: list[Any], link: Link | None = None) -> Any:
        """Carry out a request; return a Future if it waits for an actor's process."""
        with self._mutex:
            params, _ = self._daemon.note(method, given)
            if method == "Placement.Resolve":
                return self._resolve((params[0], params[1]), self._daemon.now_ms)
            if link is not None and method == "Placement.Register":
                kinds = self._kinds.setdefault(link, [])
                kinds += [kind for kind in params[0] if kind not in kinds]
                return {"authority": AUTHORITY, "ttl_ms": _TTL_MS, "kinds": list(kinds)}
            if link is not None and method == "Placement.Unregister":
                return self._unregister(link)
            if method == "Placement.Check":
                actor = self._actors.get((params[0], params[1]))
                if actor is None or actor.token != params[2]:
                    raise ActivationEndedError(f"there is no activation of {params[0]}/{params[1]} with this token")
                return {"valid_ms": _VALID_MS}
        raise UnknownMethodError(f"the fake has no {method!r}")

    def _resolve(self, key: Key, now_ms: int) -> Future[dict[str, Any]]:
        actor = self._actors.get(key)
        if actor is not None:
            return actor.resolved if actor.passivated is None else self._resolve_after(actor.passivated, key, now_ms)
        links = [link for link, kinds in self._kinds.items() if key[0] in kinds]
        if not links:
            raise PlacementUnservedError(f"no process of any host has registered for this kind: {key[0]!r}")
        running = [actor.link for actor in self._actors.values()]
        self._tokens += 1
        version = self._versions[key] = self._versions.get(key, 0) + 1
        actor = _Actor(min(links, key=running.count), version, self._tokens, Future())
        self._actors[key], resolved = actor, actor.resolved
        resolution = {
            "kind": key[0], "identity": key[1], "authority": AUTHORITY, "locality": "local",
            "version": actor.version, "token": actor.token, "observed_ms": now_ms,
        }  # fmt: skip

        def answered(error: KazahanaError | None, result: Any) -> None:
            if error is None:
                resolved.set_result({**resolution, "pid": result["pid"]})
                return
            self._forget(key, actor, None)
            what = f"{'/'.join(key)} could not be activated"
            resolved.set_exception(ActivationFailedError(what, cause=error.message))

        self._ask(
            actor.link, "Activate", {**_about(key, actor), "snapshot": self._snapshots.get(key) or None}, answered
        )
        return resolved

    def _resolve_after(self, passivated: Future[None], key: Key, now_ms: int) -> Future[dict[str, Any]]:
        later: Future[dict[str, Any]] = Future()

        def resolve(_: Future[None]) -> None:
            try:
                self._resolve(key, now_ms).add_done_callback(settle)
            except KazahanaError as error:
                later.set_exception(error)

        def settle(resolved: Future[dict[str, Any]]) -> None:
            error = resolved.exception()
            later.set_result(resolved.result()) if error is None else later.set_exception(error)

        passivated.add_done_callback(resolve)
        return later

    def passivate(self, key: Key) -> Future[None]:
        """Begin to passivate; the future is done at the end."""
        with self._mutex:
            actor = self._actors.get(key)
            if actor is None or not actor.resolved.done():
                raise InvalidParamsError(f"{'/'.join(key)} is not activated")
            if actor.passivated is None:
                done = actor.passivated = Future()

                def answered(error: KazahanaError | None, result: Any) -> None:
                    self._forget(key, actor, None if error is not None else result["snapshot"])
                    done.set_result(None)

                self._ask(actor.link, "Passivate", _about(key, actor), answered)
            return actor.passivated

    def _unregister(self, link: Link) -> Future[dict[str, Any]]:
        self._kinds.pop(link, None)
        left = [
            self.passivate(key) for key, actor in self._actors.items() if actor.link is link and actor.resolved.done()
        ]
        result: Future[dict[str, Any]] = Future()
        waiting, count = set(left), len(left)

        def passivated(one: Future[None]) -> None:
            waiting.discard(one)
            if not waiting and not result.done():
                result.set_result({"passivated": count})

        for one in left:
            one.add_done_callback(passivated)
        if not left:
            result.set_result({"passivated": 0})
        return result

    def gone(self, link: Link) -> None:
        """Take the end of a connection."""
        link.broken = True
        with self._mutex:
            self._kinds.pop(link, None)
            for asked in [asked for asked in self._asked if asked[0] is link]:
                self._asked.pop(asked)(KazahanaError("the process has closed its connection"), None)
            for key, actor in [one for one in self._actors.items() if one[1].link is link]:
                self._forget(key, actor, None)

    def disconnect(self) -> None:
        """End the connections of all executors."""
        with self._mutex:
            for link in list(self._kinds):
                self.gone(link)
                link.tell(lost("the fake daemon"))

    def answer(self, link: Link, data: bytes) -> None:
        """Take the answer of a process."""
        _, msgid, problem, result = msgpack.unpackb(data)
        with self._mutex:
            answered = self._asked.pop((link, msgid), None)
            if answered is not None:
                answered(None if problem is None else from_wire(f"FAILED: {problem[1]}"), result)

    def _ask(self, link: Link, method: str, about: Any, answered: Callable[[KazahanaError | None, Any], None]) -> None:
        self._msgids += 1
        self._asked[link, self._msgids] = answered
        link.tell(Unasked(self._msgids, method, [about]))

    def _forget(self, key: Key, actor: _Actor, snapshot: bytes | None) -> None:
        if self._actors.get(key) is actor:
            del self._actors[key]
            if snapshot is not None:  # otherwise the stored one stays
                self._snapshots[key] = snapshot


def _about(key: Key, actor: _Actor) -> dict[str, Any]:
    return {"kind": key[0], "identity": key[1], "version": actor.version, "token": actor.token}


class FakeLink:
    """The connection of an executor for threads."""

    path = "the fake daemon"
    broken = False

    def __init__(self, host: _Host) -> None:
        self._host = host
        self._inbox: queue.SimpleQueue[Told] = queue.SimpleQueue()

    def tell(self, told: Told) -> None:
        self._inbox.put(told)

    def receive(self) -> list[Unasked]:
        told = self._inbox.get()
        if isinstance(told, KazahanaError):
            raise told
        return [told]

    def send(self, data: bytes, timeout: float) -> None:
        self._host.answer(self, data)

    def call(self, call: Call[Any], deadline: float) -> Any:
        return settled(self._host.begin(call.method, call.params, self), call)

    def fail(self, error: KazahanaError) -> None:
        self._host.gone(self)
        self.tell(error)

    def close(self) -> None:
        """Do nothing: there is no socket."""


class AsyncFakeLink:
    """The connection of an executor for asyncio."""

    path = "the fake daemon"
    broken = False

    def __init__(self, host: _Host) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[Told] = asyncio.Queue()

    def tell(self, told: Told) -> None:
        self._loop.call_soon_threadsafe(self._inbox.put_nowait, told)

    async def receive(self) -> list[Unasked]:
        told = await self._inbox.get()
        if isinstance(told, KazahanaError):
            raise told
        return [told]

    def send(self, data: bytes) -> None:
        self._host.answer(self, data)

    async def call(self, call: Call[Any], deadline: float) -> Any:
        return await async_settled(self._host.begin(call.method, call.params, self), call)

    def fail(self, error: KazahanaError) -> None:
        self._host.gone(self)
        if not self._loop.is_closed():
            self.tell(error)


_hosts: weakref.WeakKeyDictionary[FakeDaemon, _Host] = weakref.WeakKeyDictionary()


def _host_of(daemon: FakeDaemon) -> _Host:
    return _hosts.setdefault(daemon, _Host(daemon))


class _FakeDialer(Dialer):
    def __init__(self, host: _Host) -> None:
        self._host, self._over = host, False

    def dial(self, first: Call[Any]) -> Any:
        link = FakeLink(self._host)
        link.call(first, 0.0)
        return link


class _FakeAsyncDialer(AsyncDialer):
    def __init__(self, host: _Host) -> None:
        self._host, self._over = host, False

    async def dial(self, first: Call[Any]) -> Any:
        link = AsyncFakeLink(self._host)
        await link.call(first, 0.0)
        return link


class FakePlacement(Placement):
    """Placement by a FakeClient's daemon, which places actors as a single host would."""

    def __init__(self, client: FakeClient) -> None:
        super().__init__(client)
        self._host = _host_of(client.daemon)

    def _dialer(self) -> Dialer:
        return _FakeDialer(self._host)

    def _perform(self, call: Call[Any]) -> Any:
        return call.parse(settled(self._host.begin(call.method, call.params), call))

    def passivate(self, kind: str, identity: str) -> None:
        """Make an actor's process passivate it; its snapshot is kept for the next activation."""
        self._host.passivate((kind, identity))

    def disconnect(self) -> None:
        """Cut the connections of executors, which ends their activations; they register again."""
        self._host.disconnect()


class AsyncFakePlacement(AsyncPlacement):
    """The same for an AsyncFakeClient."""

    def __init__(self, client: AsyncFakeClient) -> None:
        super().__init__(client)
        self._host = _host_of(client.daemon)

    def _dialer(self) -> AsyncDialer:
        return _FakeAsyncDialer(self._host)

    async def _perform(self, call: Call[Any]) -> Any:
        return call.parse(await async_settled(self._host.begin(call.method, call.params), call))

    def passivate(self, kind: str, identity: str) -> None:
        """Make an actor's process passivate it; its snapshot is kept for the next activation."""
        self._host.passivate((kind, identity))

    def disconnect(self) -> None:
        """Cut the connections of executors, which ends their activations; they register again."""
        self._host.disconnect()


def settled(result: Any, call: Call[Any]) -> Any:
    """Wait for the result if it is a Future."""
    if not isinstance(result, Future):
        return result
    try:
        return result.result(_patience(call))
    except TimeoutError as error:
        raise _pending() from error


async def async_settled(result: Any, call: Call[Any]) -> Any:
    """Wait for the result if it is a Future, without cancelling it when the time is up."""
    if not isinstance(result, Future):
        return result
    wrapped = asyncio.wrap_future(result)
    await within(_patience(call), wrapped)
    if not wrapped.done():
        raise _pending()
    return wrapped.result()


def _patience(call: Call[Any]) -> float:
    return float(call.params[-1]["wait_ms"]) / 1000 if call.method == "Placement.Resolve" else call.timeout


def _pending() -> PlacementPendingError:
    return PlacementPendingError("the process has not answered yet")
