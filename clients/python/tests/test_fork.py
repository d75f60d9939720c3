"""What a child process must not share with its parent."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import threading
from typing import Any, Callable

import pytest
from conftest import Daemon

import kazahana
from kazahana import aio, fork, sync

CHILDREN = 8


def in_children(work: Callable[[], list[int]]) -> list[int]:
    """Fork at once into several children that do the work; return all that they return."""
    readers = []
    for _ in range(CHILDREN):
        read, write = os.pipe()
        if os.fork() == 0:
            status = 1
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
    for _ in range(CHILDREN):
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
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
    """uWSGI forks in C: nothing tells Python so."""
    if not hasattr(ctypes, "PyDLL"):
        pytest.skip("PyPy cannot call fork past its own")
    monkeypatch.setattr(os, "fork", ctypes.PyDLL(None).fork)
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


def test_a_lock_stays_with_the_parent(script: Any) -> None:
    from test_lock import Store

    server = script(Store())
    with kazahana.Client(server.socket) as client, client.lock("key") as lock:
        asked = len(server.asked)

        def child() -> list[int]:
            assert lock.lost.is_set() and lock.lost.reason == "forked"
            lock.release()
            return [1]

        assert in_children(child) == [1] * CHILDREN
        assert not lock.lost.is_set()
        assert len(server.asked) == asked
    assert server.asked[-1][1] == "Lock.Release"


def test_a_refill_under_way_at_the_fork(daemon: Daemon) -> None:
    client = kazahana.Client(daemon.socket, prefetch=4, timeout=60)
    assert client._prefetch.join(object)[0]
    assert len(set(in_children(lambda: [client.next_id()]))) == CHILDREN
    client.close()


def test_a_fork_while_a_connection_is_made(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may fork as soon as a child would be told of the connection."""

    class Forked(Exception):
        pass

    def track(member: Any) -> None:
        member.after_fork()
        raise Forked

    server, loop = script(lambda *_: None), asyncio.new_event_loop()
    monkeypatch.setattr(fork, "track", track)
    for make in (lambda: sync.Connection(server.socket), lambda: aio.Connection(server.socket, loop)):
        with pytest.raises(Forked):
            make()
    loop.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_connection_ends_with_its_process(script: Any, kind: str) -> None:
    """A process takes a lock, forks and dies. Its child must not keep the connection, and so the lock, alive."""
    from test_lock import Store

    server = script(Store())
    read, write = os.pipe()
    if (parent := os.fork()) == 0:
        if kind == "sync":
            held = kazahana.Client(server.socket).lock("key").acquire()
            connection = held._connection  # as the stack of a thread would: it is not collected
            assert connection is not None
        else:
            loop = asyncio.new_event_loop()
            lock = kazahana.AsyncClient(server.socket).lock("key")
            loop.run_until_complete(lock.acquire())
        if os.fork() == 0:
            os.close(write)
            os.read(read, 1)  # until the test ends
        os._exit(0)
    os.close(read)
    assert os.waitpid(parent, 0)[1] == 0
    assert server.ended[0].wait(30)
    os.close(write)
