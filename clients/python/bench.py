#!/usr/bin/env python3
"""What an ID costs, beside uuid.uuid4() and a bare round trip over a Unix socket.

    python3 bench.py [--daemon ../../bin/kazahanad] [--rounds 9] [--seconds 0.2] [--json]

All rows run in turn, several rounds, so that a disturbance hits each of them; compare the ratios, not the absolute
figures. `make bench-clients` runs this together with the other languages' benchmarks and checks the aims. The echo
server is a Python process that answers with as many bytes as the daemon would.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Callable

# BENCH_SRC names the sources of another version, to compare two.
sys.path.insert(0, os.environ.get("BENCH_SRC", str(Path(__file__).resolve().parent / "src")))
import kazahana

THREADS, PIPELINED_TASKS = (8, 64), 64
BATCH, PREFETCH = 100, 64
REQUEST, ANSWER = b"\x94\x00\x01\xa6NextID\x90", 13  # what a single call sends, and how much it gets


def repeat(call: Callable[[], object], seconds: float, batch: int = 1) -> tuple[float, list[float]]:
    """Call for a while; return IDs a second, and how long each call took."""
    clock, took = time.perf_counter, []
    begin = before = clock()
    end = begin + seconds
    while before < end:
        call()
        now = clock()
        took.append(now - before)
        before = now
    return len(took) * batch / (before - begin), took


def tight(call: Callable[[], object], seconds: float) -> tuple[float, list[float]]:
    """As repeat, for calls that are cheaper than reading the clock: the rate by whole runs, latencies apart."""
    _, took = repeat(call, seconds / 4)
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(256):
            call()
        done += 256
    return done / (time.perf_counter() - begin), took


def threads(call: Callable[[], object], seconds: float, count: int) -> tuple[float, list[float]]:
    """Many threads that share a client."""
    results: list[tuple[float, list[float]]] = []
    running = [threading.Thread(target=lambda: results.append(repeat(call, seconds))) for _ in range(count)]
    begin = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    took = [one for _, latencies in results for one in latencies]
    return len(took) / (time.perf_counter() - begin), took


def tasks(path: str, seconds: float) -> tuple[float, list[float]]:
    """Many tasks over one connection."""
    took: list[float] = []

    async def work(client: kazahana.AsyncClient, end: float) -> None:
        before = time.perf_counter()
        while before < end:
            await client.next_id()
            now = time.perf_counter()
            took.append(now - before)
            before = now

    async def main() -> float:
        async with kazahana.AsyncClient(path) as client:
            await client.ping()
            begin = time.perf_counter()
            await asyncio.gather(*(work(client, begin + seconds) for _ in range(PIPELINED_TASKS)))
            return time.perf_counter() - begin

    elapsed = asyncio.run(main())
    return len(took) / elapsed, took


def gather(path: str, seconds: float, at_once: int) -> tuple[float, list[float]]:
    """One task that asks for so many IDs at once, again and again."""
    took: list[float] = []

    async def main() -> float:
        async with kazahana.AsyncClient(path) as client:
            await client.ping()
            begin = before = time.perf_counter()
            while before < begin + seconds:
                if at_once == 1:
                    await client.next_id()
                else:
                    await asyncio.gather(*(client.next_id() for _ in range(at_once)))
                now = time.perf_counter()
                took.append(now - before)
                before = now
            return before - begin

    elapsed = asyncio.run(main())
    return len(took) * at_once / elapsed, took


def serve_echo(path: str) -> None:
    """The other end of the bare round trip, in a process of its own."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path + ".new")
        listener.listen()
        os.rename(path + ".new", path)  # a path that is there can be connected to
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(4096):
                connection.sendall(data.ljust(ANSWER)[:ANSWER])


def wait_for(path: str) -> None:
    deadline = time.monotonic() + 30
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            sys.exit(f"nothing listens at {path}")
        time.sleep(0.01)


def measure(path: str, echo_path: str, rounds: int, seconds: float) -> dict[str, list[tuple[float, list[float]]]]:
    """Run every row once in each round."""
    plain, fetching = kazahana.Client(path), kazahana.Client(path, prefetch=PREFETCH)
    echo, raw = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    echo.connect(echo_path)
    raw.connect(path)

    def round_trip(peer: socket.socket) -> None:
        peer.sendall(REQUEST)
        peer.recv(4096)

    rows: dict[str, Callable[[], tuple[float, list[float]]]] = {
        "echo": lambda: repeat(lambda: round_trip(echo), seconds),
        "bytes of NextID": lambda: repeat(lambda: round_trip(raw), seconds),
        "single": lambda: repeat(plain.next_id, seconds),
        **{f"{count} threads": partial(threads, plain.next_id, seconds, count) for count in THREADS},
        f"pipelined, {PIPELINED_TASKS} tasks": lambda: tasks(path, seconds),
        "asyncio, one after the other": lambda: gather(path, seconds, 1),
        f"asyncio, gather of {PIPELINED_TASKS}": lambda: gather(path, seconds, PIPELINED_TASKS),
        f"batch of {BATCH}": lambda: repeat(lambda: plain.next_ids(BATCH), seconds, BATCH),
        "uuid4": lambda: tight(uuid.uuid4, seconds),
        f"prefetch {PREFETCH}": lambda: tight(fetching.next_id, seconds),
    }
    for run in rows.values():  # warm up
        run()
    results: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, run in rows.items():
            results[name].append(run())
    for peer in (echo, raw):
        peer.close()
    plain.close()
    fetching.close()
    return results


def summarize(results: dict[str, list[tuple[float, list[float]]]]) -> list[dict[str, float | str]]:
    table: list[dict[str, float | str]] = []
    for name, rounds in results.items():
        took = sorted(one for _, latencies in rounds for one in latencies)

        def against(other: str, rounds: list[tuple[float, list[float]]] = rounds) -> float:
            return statistics.median(mine[0] / theirs[0] for mine, theirs in zip(rounds, results[other]))

        table.append(
            {
                "row": name,
                "per_second": statistics.median(rate for rate, _ in rounds),
                "p50_us": took[len(took) // 2] * 1e6,
                "p99_us": took[len(took) * 99 // 100] * 1e6,
                "of_echo": against("echo"),
                "of_uuid4": against("uuid4"),
            }
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[2] / "bin" / "kazahanad"
    parser.add_argument("--daemon", default=os.environ.get("KAZAHANAD", str(default)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each row in each round")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        serve_echo(options.echo)
        return 0

    directory = tempfile.mkdtemp(prefix="kzbench")
    path, echo_path = directory + "/k.sock", directory + "/echo.sock"
    # By default the daemon gives 256 IDs a millisecond, fewer than one thread can take from a prefetched batch.
    serve = [options.daemon, "serve", "--config", "none", "--socket", path, "--state-dir", directory]
    wide = ["--max-throughput-per-ms", "65536", "--provider", f"sqlite:{directory}/leases.db?bit_seq=16"]
    running = [
        subprocess.Popen([*serve, *wide], stderr=subprocess.DEVNULL),
        subprocess.Popen([sys.executable, __file__, "--echo", echo_path]),
    ]
    try:
        wait_for(path)
        wait_for(echo_path)
        table = summarize(measure(path, echo_path, options.rounds, options.seconds))
    finally:
        for process in running:
            process.terminate()
            process.wait()
        shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        print(json.dumps(table, indent=2))
    else:
        print(f"Python {sys.version.split()[0]}, {options.rounds} rounds of {options.seconds} s a row; medians")
        print(f"{'':32}{'IDs/s':>12}{'p50 us':>10}{'p99 us':>10}{'x echo':>9}{'x uuid4':>9}")
        for row in table:
            print(
                f"{row['row']:32}{row['per_second']:>12,.0f}{row['p50_us']:>10.2f}{row['p99_us']:>10.2f}"
                f"{row['of_echo']:>9.2f}{row['of_uuid4']:>9.2f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
