"""asker.py KIND SOCKET FILE: asks for IDs until its standard input ends, and writes what it got.

KIND is threads, prefetch (threads of a client that fetches ahead) or tasks (of one AsyncClient).
storm_test.go says what a record of the file looks like.
"""

from __future__ import annotations

import asyncio
import random
import struct
import sys
import threading
import time

import kazahana

THREADS, TASKS, LARGEST, AHEAD = 2, 200, 100, 64
TIMEOUT = 60.0
FLUSH_NS = 50_000_000

over = threading.Event()


class Record:
    def __init__(self, path: str, prefetched: bool) -> None:
        self._file = open(path, "wb", buffering=1 << 20)  # noqa: SIM115
        self._mutex = threading.Lock()
        self._flags = prefetched << 63
        self._flushed = 0

    def add(self, caller: int, sent: int, ids: list[int]) -> None:
        received = time.monotonic_ns()
        data = struct.pack(f"<{3 + len(ids)}Q", self._flags | caller << 32 | len(ids), sent, received, *ids)
        with self._mutex:
            self._file.write(data)
            if received - self._flushed > FLUSH_NS:
                self._file.flush()
                self._flushed = received

    def failed(self, caller: int, sent: int, error: kazahana.KazahanaError) -> None:
        print(f"{error.code}: {error}", file=sys.stderr)
        self.add(caller, sent, [])

    def close(self) -> None:
        self._file.close()


def call(client: kazahana.Client, record: Record, caller: int, prefetched: bool) -> None:
    while not over.is_set():
        sent = time.monotonic_ns()
        try:
            if prefetched:
                ids = [client.next_id() for _ in range(LARGEST)]
            elif random.random() < 0.5:
                ids = [client.next_id()]
            else:
                ids = client.next_ids(random.randint(1, LARGEST))
        except kazahana.KazahanaError as error:
            record.failed(caller, sent, error)
        else:
            record.add(caller, sent, ids)


async def ask(client: kazahana.AsyncClient, record: Record, caller: int) -> None:
    while not over.is_set():
        sent = time.monotonic_ns()
        try:
            ids = [await client.next_id()]
        except kazahana.KazahanaError as error:
            record.failed(caller, sent, error)
        else:
            record.add(caller, sent, ids)


async def tasks(socket: str, record: Record) -> None:
    async with kazahana.AsyncClient(socket, timeout=TIMEOUT) as client:
        await asyncio.gather(*(ask(client, record, caller) for caller in range(TASKS)))


def main() -> None:
    kind, socket, path = sys.argv[1:]
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    prefetched = kind == "prefetch"
    record = Record(path, prefetched)
    if kind == "tasks":
        asyncio.run(tasks(socket, record))
    else:
        with kazahana.Client(socket, timeout=TIMEOUT, prefetch=AHEAD if prefetched else 0) as client:
            callers = [
                threading.Thread(target=call, args=(client, record, caller, prefetched)) for caller in range(THREADS)
            ]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
    record.close()


main()
