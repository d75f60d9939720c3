"""The fakes: deterministic, and true to the daemon where it can be told."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import kazahana
from harness import Daemon, exchanges, stateless_exchanges
from kazahana.testing import AsyncFakeClient, FakeClient, FakeDaemon


def test_deterministic() -> None:
    runs = []
    for _ in range(2):
        with FakeClient() as client:
            runs.append(
                [
                    client.next_id(),
                    *client.next_ids(300),
                    str(client.uuid()),
                    str(client.uuid(4)),
                    client.next_sequence("a"),
                ]
            )
    assert runs[0] == runs[1]
    ids = runs[0][:301]
    assert ids == sorted(set(ids))


def test_ids_are_like_the_daemons(daemon: Daemon) -> None:
    fake = FakeClient()
    with kazahana.Client(daemon.socket) as real:
        for _ in range(2):
            id = fake.next_id()
            assert fake.inspect(id) == real.inspect(id)
            assert fake.to_external(id) == real.to_external(id) and fake.to_internal(fake.to_external(id)) == id
            at = fake.inspect(id).timestamp_ms
            assert fake.bounds(at, at + 1) == real.bounds(at, at + 1)
            fake.daemon.fallback = True
            fake.daemon.advance(5)
        assert fake.is_fallback(fake.next_id())
    assert fake.uuid().version == 7 and fake.uuid(4).version == 4
    assert fake.ping() == "pong" and "locks" in fake.status()["features"]
    assert int(fake.next_id(format="string")) < fake.next_id()
    assert fake.next_sequences("k", 3, step=2) == [2, 4, 6] and fake.next_sequence("k", step=2) == 8


def test_sequences_are_like_the_daemons(daemon: Daemon) -> None:
    fake = FakeClient()
    with kazahana.Client(daemon.socket) as real:
        assert "sequences" in real.status()["features"]
        for key, options in {"plain": {}, "step": {"step": 5}, "start": {"start": 10, "step": 5}}.items():
            key = f"fake/{key}"
            assert fake.next_sequence(key, **options) == real.next_sequence(key, **options)
            assert fake.next_sequences(key, 3, **options) == real.next_sequences(key, 3, **options)


@pytest.mark.parametrize(
    "exchange",
    [one for one in stateless_exchanges() if "result" in one],
    ids=lambda one: one["name"],
)
def test_recorded_results(exchange: dict[str, Any]) -> None:
    assert FakeDaemon().answer(exchange["method"], exchange["params"]) == exchange["result"]


def test_a_lock_looks_as_recorded() -> None:
    (exchange,) = (one for one in exchanges() if one["name"] == "acquire a lock")
    assert FakeDaemon().answer("Lock.Acquire", exchange["params"]).keys() == exchange["result"].keys()


def test_failures() -> None:
    client = FakeClient()
    client.daemon.fail(kazahana.ClockBackwardError(backward_ms=7000, limit_ms=5000), times=2, method="NextID")
    for _ in range(2):
        with pytest.raises(kazahana.ClockBackwardError) as caught:
            client.next_id()
        assert caught.value.limit_ms == 5000
    assert client.next_id()
    client.daemon.fail(kazahana.DaemonUnavailableError())
    for call in (client.next_id, client.ping, client.next_ids):
        with pytest.raises(kazahana.DaemonUnavailableError):
            call(2) if call == client.next_ids else call()
    client.daemon.recover()
    assert client.ping() == "pong"
    assert client.daemon.calls[0] == ("NextID", [])
    client.close()
    with pytest.raises(kazahana.ClientClosedError):
        client.ping()


def test_prefetch_works_on_it_too() -> None:
    client = FakeClient(prefetch=10, max_age=100)
    assert [client.next_id() for _ in range(10)] == sorted(client.daemon._last - i for i in range(10))
    assert len(client.daemon.calls) == 1


def test_locks() -> None:
    fake = FakeDaemon()
    one, two = FakeClient(fake), FakeClient(fake)
    with one.lock("key") as lock:
        assert lock.token == 1 and not lock.lost.is_set()
        with pytest.raises(kazahana.LockHeldError):
            two.lock("key").acquire()
    with pytest.raises(kazahana.LockLostError), two.lock("key") as lock:
        assert lock.token == 2
        fake.lose("key", "taken_over")
        assert lock.lost.wait(10) and lock.lost.reason == "taken_over"
    one.lock("key").acquire()


def test_async() -> None:
    async def main() -> None:
        async with AsyncFakeClient(secret_daemon := FakeDaemon("secret")) as client:
            ids = await asyncio.gather(*(client.next_id() for _ in range(10)))
            assert ids == sorted(set(ids)) and not await client.is_fallback(ids[0])
            assert await client.to_external(ids[0]) == kazahana.ExternalCodec("secret").encode(ids[0])
            async with client.lock("key") as lock:
                assert lock.token == 1
            with pytest.raises(kazahana.LockLostError):
                async with client.lock("key") as lock:
                    secret_daemon.lose("key")
                    await asyncio.wait_for(lock.lost.wait(), 10)
            secret_daemon.fail(kazahana.NoProviderError())
            with pytest.raises(kazahana.NoProviderError):
                await client.next_id()

    asyncio.run(main())


def test_both_clients_have_the_same_calls() -> None:
    def calls(kind: type) -> dict[str, inspect.Signature]:
        members = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(value) for name, value in members if not name.startswith("_")}

    sync, aio = calls(kazahana.Client), calls(kazahana.AsyncClient)
    del sync["lock"], aio["lock"]  # a Lock and an AsyncLock
    assert sync == aio and len(sync) >= 12
