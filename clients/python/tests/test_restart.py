"""The daemon is killed and started again under load: it costs time, and nothing else."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import threading
import time
from typing import Any

import pytest

import kazahana
from harness import PATIENCE, Daemon


def test_restarts_under_load(make_daemon: Any) -> None:
    """Threads and tasks go on asking. test/storm/clients does it with many processes."""
    daemon: Daemon = make_daemon()
    over = threading.Event()
    seen: list[list[int]] = []

    def work(client: kazahana.Client) -> None:
        mine: list[int] = []
        seen.append(mine)
        while not over.is_set():
            mine += [client.next_id(), *client.next_ids(5)]

    async def task(client: kazahana.AsyncClient) -> None:
        mine: list[int] = []
        seen.append(mine)
        while not over.is_set():
            mine.append(await client.next_id())

    async def tasks() -> None:
        async with kazahana.AsyncClient(daemon.socket, timeout=PATIENCE) as client:
            await asyncio.gather(*(task(client) for _ in range(50)))

    clients = [kazahana.Client(daemon.socket, timeout=PATIENCE, prefetch=prefetch) for prefetch in (0, 0, 64)]
    with concurrent.futures.ThreadPoolExecutor(7) as pool:
        running = [pool.submit(work, client) for client in clients for _ in range(2)]
        running.append(pool.submit(asyncio.run, tasks()))
        try:
            for number in (signal.SIGKILL, signal.SIGTERM, None):
                enough = {id(mine): len(mine) + 20 for mine in seen}
                deadline = time.monotonic() + PATIENCE
                while len(seen) < 56 or any(len(mine) < enough.get(id(mine), 20) for mine in list(seen)):
                    assert time.monotonic() < deadline
                    [one.result() for one in running if one.done()]  # its error, while all should go on
                    time.sleep(0.01)
                if number is not None:
                    daemon.stop(number)
                    daemon.start()
        finally:
            over.set()
        for one in running:
            one.result(120)
    for client in clients:
        client.close()
    everything = [one for mine in seen for one in mine]
    assert len(set(everything)) == len(everything)
    assert all(mine == sorted(mine) for mine in seen)


def test_away_for_longer_than_the_deadline(connect: Any, make_daemon: Any) -> None:
    daemon: Daemon = make_daemon()
    client = connect(daemon.socket, timeout=60)
    first = client.next_id()
    daemon.stop()
    started = time.monotonic()
    for _ in range(20):  # a process that is not scheduled may find the lost connection only
        with pytest.raises((kazahana.DaemonUnavailableError, kazahana.RequestTimeoutError)) as caught:
            client.next_id(timeout=0.3)
        assert time.monotonic() - started >= 0.04
        if "kazahanad serve" in str(caught.value):
            break
    assert isinstance(caught.value, kazahana.DaemonUnavailableError) and "kazahanad serve" in str(caught.value)
    assert caught.value.path == daemon.socket and isinstance(caught.value.__cause__, OSError)
    daemon.start()
    assert client.next_id() > first


def test_a_restart_costs_a_single_attempt_nothing(connect: Any, make_daemon: Any) -> None:
    daemon: Daemon = make_daemon()
    client = connect(daemon.socket, single_attempt=True, timeout=PATIENCE)
    first = client.next_id()
    daemon.stop(signal.SIGKILL)
    daemon.start()
    assert client.next_id() > first
    daemon.stop(signal.SIGKILL)
    with pytest.raises(kazahana.DaemonUnavailableError):
        client.next_id()


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
