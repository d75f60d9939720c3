"""What type checkers see; mypy checks it, nobody runs it."""

from __future__ import annotations

import uuid
from typing import Union

from typing_extensions import assert_type

import kazahana
from kazahana.placement import Activation, AsyncActivation, AsyncExecutor, AsyncPlacement, Placement
from kazahana.testing import AsyncFakeClient, FakeClient


def begin(activation: Activation) -> str | None:
    assert_type(activation.snapshot, Union[bytes, None])
    assert_type(activation.check(), None)
    return None


def end(activation: Activation) -> bytes | None:
    return activation.snapshot


async def async_begin(activation: AsyncActivation) -> str | None:
    return str(activation.token)


async def async_end(activation: AsyncActivation) -> bytes | None:
    return None


def sync(client: kazahana.Client) -> None:
    placement = Placement(client)
    assert_type(client.next_id(), int)
    assert_type(client.next_id(service="web", timeout=1.5, regular_only=True), int)
    assert_type(client.next_id(format="external"), str)
    assert_type(client.next_ids(3), list[int])
    assert_type(client.next_ids(3, format="string"), list[str])
    assert_type(client.inspect("SoAkz6KzylI", service="web").machine_id, int)
    assert_type(client.bounds(1, 2), tuple[int, int])
    assert_type(client.uuid(), uuid.UUID)
    assert_type(client.next_sequences("key", 3, step=2), list[int])
    with client.lock("key", ttl=5, on_lost=print) as lock:
        assert_type(lock.token, int)
        assert_type(lock.lost.wait(1), bool)
    assert_type(placement.resolve("room", "1", wait=2).is_local, bool)
    with placement.register(["room"], begin, end, ended=print, workers=2) as executor:
        assert_type(executor.activations, list[Activation])
    with placement.events(["activated"]) as events:
        for event in events:
            assert_type(event.token, int)
    placement.register("room", end, end)  # type: ignore[arg-type]
    client.next_id(format="roman")  # type: ignore[call-overload]
    client.next_id(servce="web")  # type: ignore[call-overload]
    client.inspect(1.5)  # type: ignore[arg-type]


async def aio(client: kazahana.AsyncClient) -> None:
    placement = AsyncPlacement(client)
    assert_type(await client.next_id(), int)
    assert_type(await client.next_ids(3, format="external"), list[str])
    async with client.lock("key") as lock:
        assert_type(lock.token, int)
        await lock.lost.wait()
    assert_type((await placement.resolve("room", "1")).pid, str)
    async with placement.register("room", async_begin, async_end) as executor:
        for activation in executor.activations:
            assert_type(await activation.check(), None)
    assert_type(await placement.register("room", async_begin, async_end), AsyncExecutor)
    async for event in placement.events():
        assert_type(event.reason, str)
    placement.register("room", begin, end)  # type: ignore[arg-type]


def limit(error: kazahana.ClockBackwardError) -> int:
    return error.limit_ms


sync(FakeClient())
aio(AsyncFakeClient())  # type: ignore[unused-coroutine]
