"""What type checkers see; mypy checks it, nobody runs it."""

from __future__ import annotations

import uuid

from typing_extensions import assert_type

import kazahana
from kazahana.testing import AsyncFakeClient, FakeClient


def sync(client: kazahana.Client) -> None:
    assert_type(client.next_id(), int)
    assert_type(client.next_id(service="web", timeout=1.5, regular_only=True), int)
    assert_type(client.next_id(format="external"), str)
    assert_type(client.next_ids(3), list[int])
    assert_type(client.next_ids(3, format="string"), list[str])
    assert_type(client.inspect("SoAkz6KzylI", service="web").machine_id, int)
    assert_type(client.bounds(1, 2), tuple[int, int])
    assert_type(client.uuid(), uuid.UUID)
    assert_type(client.next_sequences("key", 3, step=2), list[int])
    with client.lock("key", ttl=5) as lock:
        assert_type(lock.token, int)
        assert_type(lock.lost.wait(1), bool)
    client.next_id(format="roman")  # type: ignore[call-overload]
    client.next_id(servce="web")  # type: ignore[call-overload]
    client.inspect(1.5)  # type: ignore[arg-type]


async def aio(client: kazahana.AsyncClient) -> None:
    assert_type(await client.next_id(), int)
    assert_type(await client.next_ids(3, format="external"), list[str])
    async with client.lock("key") as lock:
        assert_type(lock.token, int)
        await lock.lost.wait()


def limit(error: kazahana.ClockBackwardError) -> int:
    return error.limit_ms


sync(FakeClient())
aio(AsyncFakeClient())  # type: ignore[unused-coroutine]
