"""What tests of placement have in common: an executor of either client whose callbacks note what they are told."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Iterable
from typing import Any, Callable

import kazahana
from harness import PATIENCE, Driven, wait_until
from kazahana.testing import AsyncFakeClient, FakeClient
from kazahana_placement import AsyncPlacement, Placement
from kazahana_placement.testing import AsyncFakePlacement, FakePlacement


def place(client: Any) -> Any:
    """Return the placement of a client; of a Driven one driven, too."""
    if isinstance(client, kazahana.AsyncClient):
        return AsyncPlacement(client)
    if isinstance(client, Driven):
        kind: Any = AsyncFakePlacement if isinstance(client.client, AsyncFakeClient) else AsyncPlacement
        return Driven(kind(client.client), client.loop)
    return FakePlacement(client) if isinstance(client, FakeClient) else Placement(client)


class Actors:
    """Actors of one process. An actor's name says how it behaves: "slow..." waits for the gate, "bad..." raises."""

    def __init__(self, client: Any, kinds: Any = ("room",), **options: Any) -> None:
        self.loop = client.loop if isinstance(client, Driven) else None
        self.told: list[tuple[str, str]] = []
        self.seen: list[Any] = []  # activations, as activate got them
        self.snapshots: list[bytes | None] = []
        self.gate = threading.Event()
        self.pid: str | None = None
        self.left: Any = None  # what passivate returns, None: the token as text
        callbacks = [self._callback(name) for name in ("activate", "passivate", "ended")]
        placement = place(client)
        maker = placement.client if isinstance(client, Driven) else placement
        made = maker.register(kinds, *callbacks, **options)
        self.executor = made if self.loop is None else self.run(started(made))

    def _callback(self, name: str) -> Callable[[Any], Any]:
        def call(activation: Any) -> Any:
            identity = activation.identity
            self.told.append((name, identity))
            if identity.startswith("slow"):
                assert self.gate.wait(60)
            return self._result(name, activation)

        async def call_async(activation: Any) -> Any:
            identity = activation.identity
            self.told.append((name, identity))
            while identity.startswith("slow") and not self.gate.is_set():  # noqa: ASYNC110 - set by the test
                await asyncio.sleep(0.005)
            return self._result(name, activation)

        return call if self.loop is None else call_async

    def _result(self, name: str, activation: Any) -> Any:
        if activation.identity.startswith("bad"):
            raise RuntimeError(f"{activation} does not want to {name}")
        if name == "activate":
            self.seen.append(activation)
            self.snapshots.append(activation.snapshot)
            return self.pid
        return str(activation.token).encode() if self.left is None else self.left

    def run(self, value: Any) -> Any:
        return self.loop.run_until_complete(value) if self.loop is not None and inspect.isawaitable(value) else value

    def check(self, number: int = -1, **options: Any) -> None:
        self.run(self.seen[number].check(**options))

    def close(self) -> None:
        self.run(self.executor.close())

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for what will come true; the tasks of an asyncio executor run meanwhile."""
        if self.loop is None:
            return wait_until(condition)

        async def wait() -> None:
            deadline = time.monotonic() + 60
            while not condition():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.001)

        return self.run(wait())

    def of(self, identity: str) -> list[str]:
        return [name for name, other in list(self.told) if other == identity]


async def started(executor: Any) -> Any:
    return await executor


def keys(activations: Iterable[Any]) -> list[str]:
    return sorted(map(str, activations))


class Watch:
    """Events of either client, taken one by one."""

    def __init__(self, client: Any, *args: Any) -> None:
        self.run = client.loop.run_until_complete if isinstance(client, Driven) else (lambda value: value)
        placement = place(client)
        self.events = (placement.client if isinstance(client, Driven) else placement).events(*args)
        if isinstance(client, Driven):
            self.run(self.events.__aenter__())

    def next(self) -> Any:
        if not hasattr(self.events, "__anext__"):
            return next(self.events)
        return self.run(asyncio.wait_for(self.events.__anext__(), PATIENCE))

    def close(self) -> None:
        self.run(self.events.close())

    def rest(self) -> list[Any]:
        got = []
        try:
            while True:
                got.append(self.next())
        except (StopIteration, StopAsyncIteration):
            return got
