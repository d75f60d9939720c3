"""The daemon is killed and started again under load: it costs time, and nothing else."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from typing import Any

import pytest
from conftest import Daemon

import kazahana

LOAD = float(os.environ.get("KAZAHANA_STORM_SECONDS", "2"))


def threads_process(socket: str, prefetch: int, stop: Any, results: Any) -> None:
    client = kazahana.Client(socket, prefetch=prefetch, timeout=60)
    seen: list[list[int]] = []

    def call() -> None:
        mine: list[int] = []
        seen.append(mine)
        while not stop.is_set():
            mine += [client.next_id(), *client.next_ids(5)]
            time.sleep(0.0005)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in seen)
    results.put([id for mine in seen for id in mine])


def tasks_process(socket: str, stop: Any, results: Any) -> None:
    ids: list[int] = []

    async def call(client: kazahana.AsyncClient) -> None:
        while not stop.is_set():
            ids.append(await client.next_id())
            await asyncio.sleep(0.01)

    async def main() -> None:
        async with kazahana.AsyncClient(socket, timeout=60) as client:
            await asyncio.gather(*(call(client) for _ in range(200)))

    asyncio.run(main())
    results.put(ids)


def test_storm(make_daemon: Any) -> None:
    """KAZAHANA_STORM_SECONDS (default 2) is how long the daemon lives each time."""
    daemon: Daemon = make_daemon()
    fork = multiprocessing.get_context("fork")
    stop, results = fork.Event(), fork.Queue()
    processes = [
        fork.Process(target=threads_process, args=(daemon.socket, prefetch, stop, results)) for prefetch in (0, 0, 64)
    ]
    processes.append(fork.Process(target=tasks_process, args=(daemon.socket, stop, results)))
    for process in processes:
        process.start()
    for number in (signal.SIGKILL, signal.SIGTERM):
        time.sleep(LOAD)
        daemon.stop(number)
        time.sleep(LOAD / 10)
        daemon.start()
    time.sleep(LOAD)
    stop.set()
    ids: list[int] = []
    for _ in processes:
        ids += results.get(timeout=120)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(set(ids)) == len(ids) > 1000


def test_away_for_longer_than_the_deadline(connect: Any, make_daemon: Any) -> None:
    daemon: Daemon = make_daemon()
    client = connect(daemon.socket, timeout=0.3)
    first = client.next_id()
    daemon.stop()
    started = time.monotonic()
    with pytest.raises(kazahana.DaemonUnavailableError, match="kazahanad serve") as caught:
        client.next_id()
    assert time.monotonic() - started >= 0.04
    assert caught.value.path == daemon.socket and isinstance(caught.value.__cause__, OSError)
    daemon.start()
    assert client.next_id() > first


def test_a_daemon_that_hangs(connect: Any, make_daemon: Any) -> None:
    daemon: Daemon = make_daemon()
    client = connect(daemon.socket)
    first = client.next_id()
    daemon.stop(signal.SIGSTOP)
    try:
        for _ in range(3):
            with pytest.raises(kazahana.RequestTimeoutError):
                client.next_id(timeout=0.1)
    finally:
        daemon.stop(signal.SIGCONT)
    assert client.next_id() > first
