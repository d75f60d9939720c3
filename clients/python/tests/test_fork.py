"""What a child process must not share with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import inspect
import os
import signal
import struct
import threading
from typing import Any, Callable

import pytest

import kazahana
from harness import PATIENCE, Daemon, Driven
from kazahana import fork, locks
from kazahana.connections import AsyncConnection, Connection

CHILDREN = 8


def hide_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork in C, as uWSGI does: nothing tells Python so.

    Only for tests without another thread here, such as a scripted daemon's:
    the child would wait for it in the interpreter.
    """
    if not hasattr(ctypes, "PyDLL"):
        pytest.skip("PyPy cannot call fork past its own")
    monkeypatch.setattr(os, "fork", ctypes.PyDLL(None).fork)


@pytest.fixture(params=["seen", "hidden"])
def forks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "hidden":
        hide_forks(monkeypatch)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """One that no other test uses, for a lock or a kind of actors."""
    return f"fork {request.node.name}"[:60]


def own(value: Any) -> Any:
    """Wait for a coroutine in a loop of this process; anything else is there already."""
    return asyncio.new_event_loop().run_until_complete(value) if inspect.isawaitable(value) else value


def in_children(work: Callable[[], list[int]]) -> list[int]:
    """Fork at once into several children that do the work; return all that they return."""
    readers, children = [], []
    for _ in range(CHILDREN):
        read, write = os.pipe()
        children.append(os.fork())
        if children[-1] == 0:
            status = 1
            signal.alarm(int(PATIENCE))  # a child that hangs fails
            try:
                ids = work()
                with os.fdopen(write, "wb") as pipe:
                    pipe.write(struct.pack(f">{len(ids)}Q", *ids))
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        readers.append(read)
    got: list[int] = []
    for read in readers:
        with os.fdopen(read, "rb") as pipe:
            data = pipe.read()
        got += struct.unpack(f">{len(data) // 8}Q", data)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * CHILDREN
    return got


@pytest.mark.parametrize("prefetch", [0, 500])
def test_nothing_repeats(daemon: Daemon, prefetch: int) -> None:
    """A pre-fork server: the parent has a connection and prefetched IDs, which would serve all children."""
    client = kazahana.Client(daemon.socket, prefetch=prefetch, max_age=3600)
    parent = [client.next_id() for _ in range(3)]
    ids = in_children(lambda: [client.next_id() for _ in range(100)])
    parent += [client.next_id() for _ in range(100)]
    client.close()
    assert len(ids) == 100 * CHILDREN
    assert len(set(ids + parent)) == 100 * CHILDREN + 103


def test_own_connections(daemon: Daemon) -> None:
    with kazahana.Client(daemon.socket) as client:
        before = client.status()["connections"]
        assert max(in_children(lambda: [client.status()["connections"]])) > before
        assert client.ping() == "pong"  # the child closed its copy only


def test_fork_while_threads_call(daemon: Daemon) -> None:
    """Locks that another thread holds at the fork are not waited for in the child."""
    client = kazahana.Client(daemon.socket, prefetch=4)
    plain = kazahana.Client(daemon.socket)
    stop = threading.Event()
    seen: list[list[int]] = []

    def call() -> None:
        mine: list[int] = []
        while not stop.is_set():
            mine += [client.next_id(), plain.next_id()]
        seen.append(mine)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    ids = in_children(lambda: [id for _ in range(20) for id in (client.next_id(), plain.next_id())])
    stop.set()
    for thread in threads:
        thread.join(60)
    client.close()
    plain.close()
    everything = sum(seen, ids)
    assert len(ids) == 40 * CHILDREN and len(set(everything)) == len(everything)


@pytest.mark.parametrize("prefetch", [0, 500])
def test_forks_that_python_does_not_see(daemon: Daemon, prefetch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_forks(monkeypatch)
    client = kazahana.Client(daemon.socket, prefetch=prefetch, max_age=3600)
    aio, loop = kazahana.AsyncClient(daemon.socket, prefetch=prefetch, max_age=3600), asyncio.new_event_loop()

    async def some(n: int) -> list[int]:
        return [await aio.next_id() for _ in range(n)]

    parent = [client.next_id() for _ in range(3)] + loop.run_until_complete(some(3))
    ids = in_children(
        lambda: [client.next_id() for _ in range(50)] + asyncio.new_event_loop().run_until_complete(some(50))
    )
    parent += [client.next_id() for _ in range(50)] + loop.run_until_complete(some(50))
    client.close()
    loop.run_until_complete(aio.close())
    loop.close()
    assert len(ids) == 100 * CHILDREN
    assert len(set(ids + parent)) == 100 * CHILDREN + 106


@pytest.mark.parametrize("prefetch", [0, 500])
def test_asyncio(daemon: Daemon, prefetch: int) -> None:
    client = kazahana.AsyncClient(daemon.socket, prefetch=prefetch, max_age=3600)

    async def some(n: int) -> list[int]:
        return [await client.next_id() for _ in range(n)]

    loop = asyncio.new_event_loop()
    parent = loop.run_until_complete(some(3))
    ids = in_children(lambda: asyncio.new_event_loop().run_until_complete(some(100)))
    parent += loop.run_until_complete(some(100))
    loop.run_until_complete(client.close())
    loop.close()
    assert len(ids) == 100 * CHILDREN
    assert len(set(ids + parent)) == 100 * CHILDREN + 103


def test_a_lock_stays_with_the_parent(connect: Any, daemon: Daemon, forks: None, key: str) -> None:
    from test_lock import Held

    client = connect(daemon.socket)
    with Held(client, key) as held:

        def release() -> list[int]:
            with contextlib.suppress(kazahana.LockLostError):  # an AsyncLock's
                own(held.lock.release())
            return [1]

        def look() -> list[int]:
            assert held.lock.lost.is_set() and held.lock.lost.reason == "forked"
            return release()

        for first in [release, look] if isinstance(held.lock, locks.Lock) else [release]:
            assert in_children(first) == [1] * CHILDREN
        assert not held.lock.lost.is_set()
        with pytest.raises(kazahana.LockHeldError):
            Held(client, key).__enter__()


def test_connections_stay_with_the_parent(connect: Any, daemon: Daemon, forks: None) -> None:
    """A child closes the client before it has used it."""
    client = connect(daemon.socket, single_attempt=True)  # which shows the loss of a connection
    assert client.ping() == "pong"

    def close() -> list[int]:
        own((client.client if isinstance(client, Driven) else client).close())
        return [1]

    assert in_children(close) == [1] * CHILDREN
    assert client.ping() == "pong"


def test_a_child_needs_no_second_try(connect: Any, daemon: Daemon, forks: None) -> None:
    """It does not take its parent's connection, which is closed in it."""
    client = connect(daemon.socket, single_attempt=True)
    assert client.ping() == "pong"
    ids = in_children(lambda: [own((client.client if isinstance(client, Driven) else client).next_id())])
    assert len(set(ids)) == CHILDREN


def test_a_refill_under_way_at_the_fork(daemon: Daemon) -> None:
    client = kazahana.Client(daemon.socket, prefetch=4, timeout=60)
    client._prefetch.join(object(), None)
    assert len(set(in_children(lambda: [client.next_id()]))) == CHILDREN
    client.close()


def test_a_fork_while_a_connection_is_made(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may fork as soon as a child would be told of the connection."""

    class Forked(Exception):
        pass

    def track(member: Any) -> None:
        member._after_fork()
        raise Forked

    async def connect() -> AsyncConnection:
        return AsyncConnection(server.socket)

    server = script(lambda *_: None)
    monkeypatch.setattr(fork, "track", track)
    with pytest.raises(Forked):
        Connection(server.socket)
    with pytest.raises(Forked):
        asyncio.run(connect())


@pytest.mark.parametrize("kind", ["sync", "async", "hidden"])
def test_a_connection_ends_with_its_process(
    daemon: Daemon, kind: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process takes a lock, forks and dies. Its child must not keep the connection, and so the lock, alive."""
    if kind == "hidden":
        hide_forks(monkeypatch)
    read, write = os.pipe()
    if (parent := os.fork()) == 0:
        if kind != "async":
            held = kazahana.Client(daemon.socket).lock(key).acquire()
            connection = held._last  # as the stack of a thread would: it is not collected
            assert connection is not None
        else:
            loop = asyncio.new_event_loop()
            lock = kazahana.AsyncClient(daemon.socket).lock(key)
            loop.run_until_complete(lock.acquire())
        if os.fork() == 0:
            if kind == "hidden":
                held.lost.is_set()  # the first use shows the fork
            os.close(write)
            os.read(read, 1)  # until the test ends
        os._exit(0)
    os.close(read)
    assert os.waitpid(parent, 0)[1] == 0
    with kazahana.Client(daemon.socket) as client, client.lock(key, wait=PATIENCE):
        os.close(write)
