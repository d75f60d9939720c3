"""Tests of users freeze time, with tools that replace the clocks. No wait may depend on those: it would never end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

from harness import PACKAGE, Daemon

PROGRAM = """
{before}
import asyncio, os, signal, sys, threading
import kazahana
{after}
silent, away, there, daemon = sys.argv[1:]


def outcome(call):
    try:
        return call() and "an ID"
    except kazahana.KazahanaError as error:
        return type(error).__name__


async def outcome_of(client):
    async with client:
        try:
            return await client.next_id() and "an ID"
        except kazahana.KazahanaError as error:
            return type(error).__name__


for options in ({{}}, {{"prefetch": 8}}):
    for path in (silent, away, there):
        at = dict(options, socket=path, timeout=0.3 if path == silent else 60)  # who is away is told sooner
        print(outcome(kazahana.Client(**at).next_id), asyncio.run(outcome_of(kazahana.AsyncClient(**at))))


async def lose():
    async with kazahana.AsyncClient(there, timeout=60) as client:
        lock = await client.lock("async", ttl=1).acquire()
        os.kill(int(daemon), signal.SIGSTOP)
        await lock.lost.wait()
        os.kill(int(daemon), signal.SIGCONT)
        return lock.lost_reason


lock = kazahana.Client(there, timeout=60).lock("sync", ttl=1).acquire()
os.kill(int(daemon), signal.SIGSTOP)
lock.lost.wait()
os.kill(int(daemon), signal.SIGCONT)
print(lock.lost.reason, asyncio.run(lose()))
"""
FREEZES = [
    ("before", "import freezegun; freezegun.freeze_time().start()"),
    ("after", "import freezegun; freezegun.freeze_time().start()"),
    ("after", "import freezegun; freezegun.freeze_time(real_asyncio=True).start()"),
    ("before", "import time_machine, time; time_machine.travel(time.time(), tick=False).start()"),
]


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    """A socket that is listened on, where no answer comes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "f.sock"))
        listener.listen(64)
        yield str(tmp_path / "f.sock")


@pytest.mark.parametrize(("order", "freeze"), FREEZES)
def test_frozen_clock(make_daemon: Callable[..., Daemon], tmp_path: Path, silent: str, order: str, freeze: str) -> None:
    pytest.importorskip(freeze.split()[1].strip(";,"))
    daemon = make_daemon("--store", "sqlite:" + str(tmp_path / "store.db"))
    code = PROGRAM.format(**{"before": "", "after": "", order: freeze})
    assert daemon._process is not None
    arguments = [sys.executable, "-c", code, silent, str(tmp_path / "none"), daemon.socket, str(daemon._process.pid)]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE / "src")}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120)
    lines = ["RequestTimeoutError", "DaemonUnavailableError", "an ID"] * 2 + ["unavailable"]
    assert done.stdout == "".join(f"{line} {line}\n" for line in lines), done.stderr[-4000:]
