"""The fakes: the same callbacks as with a daemon, in the same order, with the same errors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import kazahana
import kazahana_placement as placement
from actors import Actors, place
from harness import Driven
from kazahana.testing import AsyncFakeClient, FakeClient, FakeDaemon


@pytest.fixture(params=["sync", "async"])
def fake(request: pytest.FixtureRequest) -> Iterator[Any]:
    client = FakeClient(timeout=30) if request.param == "sync" else Driven(AsyncFakeClient(timeout=30))
    yield client
    client.finish() if isinstance(client, Driven) else client.close()


def undriven(made: Any) -> Any:
    return made.client if isinstance(made, Driven) else made


def daemon_of(fake: Any) -> FakeDaemon:
    found: FakeDaemon = (fake.client if isinstance(fake, Driven) else fake).daemon
    return found


def test_placement(fake: Any) -> None:
    """The same callbacks as with a daemon, in the same order, with the same errors."""
    with pytest.raises(placement.PlacementUnservedError, match="registered"):
        place(fake).resolve("room", "1")
    actors = Actors(fake, ["room", "table"])
    first = place(fake).resolve("room", "1")
    assert place(fake).resolve("room", "1") == first and actors.of("1") == ["activate"]
    assert (first.is_local, first.version, first.token, first.observed_ms) == (True, 1, 1, 1_800_000_000_000)
    actors.check()
    with pytest.raises(placement.ActivationFailedError) as caught:
        place(fake).resolve("table", "bad")
    assert "does not want to activate" in caught.value.cause
    with pytest.raises(placement.PlacementPendingError):
        place(fake).resolve("room", "slow", wait=0.01)
    actors.gate.set()
    assert place(fake).resolve("room", "slow").version == 1

    undriven(place(fake)).passivate("room", "1")
    second = place(fake).resolve("room", "1")  # after the passivation
    assert (second.version, second.token) == (2, 4)
    assert actors.snapshots == [None, None, b"1"] and actors.of("1") == ["activate", "passivate", "activate"]
    with pytest.raises(placement.ActivationEndedError):
        actors.check(0)
    actors.check()

    undriven(place(fake)).disconnect()
    actors.until(lambda: actors.of("1")[-1] == actors.of("slow")[-1] == "ended")
    actors.until(lambda: [method for method, _ in daemon_of(fake).calls].count("Placement.Register") == 2)
    assert place(fake).resolve("room", "1").version == 3 and actors.snapshots[-1] == b"1"
    actors.close()
    assert actors.of("1")[-1] == "passivate" and actors.executor.activations == []
    with pytest.raises(placement.PlacementUnservedError):
        place(fake).resolve("room", "1")


def test_two_executors_of_the_fake(fake: Any) -> None:
    one, two = Actors(fake), Actors(fake)
    for number in range(10):
        place(fake).resolve("room", str(number))
    assert (len(one.seen), len(two.seen)) == (5, 5)
    daemon_of(fake).fail(kazahana.DaemonUnavailableError(), method="Placement.Check", times=1)
    with pytest.raises(placement.ActivationEndedError):
        one.check()
    one.close()
    two.close()


def test_both_have_the_same_calls() -> None:
    def calls(kind: type) -> dict[str, inspect.Signature]:
        members = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(value) for name, value in members if not name.startswith("_")}

    sync, aio = calls(placement.Placement), calls(placement.AsyncPlacement)
    for name in ("register", "events"):  # callbacks and coroutines
        del sync[name], aio[name]
    assert sync == aio and len(sync) >= 2
