"""What type checkers see; mypy checks it, nobody runs it."""

from __future__ import annotations

from typing import Union

from typing_extensions import assert_type

import kazahana
from kazahana_placement import Activation, AsyncActivation, AsyncExecutor, AsyncPlacement, Placement


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
    assert_type(placement.resolve("room", "1", wait=2).is_local, bool)
    with placement.register(["room"], begin, end, ended=print, workers=2) as executor:
        assert_type(executor.activations, list[Activation])
    with placement.events(["activated"]) as events:
        for event in events:
            assert_type(event.token, int)
    placement.register("room", end, end)  # type: ignore[arg-type]


async def aio(client: kazahana.AsyncClient) -> None:
    placement = AsyncPlacement(client)
    assert_type((await placement.resolve("room", "1")).pid, str)
    async with placement.register("room", async_begin, async_end) as executor:
        for activation in executor.activations:
            assert_type(await activation.check(), None)
    assert_type(await placement.register("room", async_begin, async_end), AsyncExecutor)
    async for event in placement.events():
        assert_type(event.reason, str)
    placement.register("room", begin, end)  # type: ignore[arg-type]
