"""Placement with the real daemon, for both clients."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable

import pytest

import kazahana
import kazahana_placement as placement
from actors import Actors, Watch, keys, place
from harness import DIE_WITH_PARENT, PACKAGE, Daemon, Driven, LeaseServer, member, wait_until

LOOKS = ("--topology-interval", "50ms")


@pytest.fixture
def make_placing(make_daemon: Callable[..., Daemon]) -> Callable[..., Daemon]:
    def make(*arguments: str, number: int = 1) -> Daemon:
        return member(make_daemon("--placement-authority", f"127.0.0.1:700{number}", *LOOKS, *arguments), number)

    return make


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """One that no other test uses."""
    return f"room {request.node.name}"[:64]


def up_to_date(client: Any) -> None:
    """Wait until the daemon has seen what it has announced so far.

    Else who registers again for a kind that was withdrawn could meet what was seen before that.
    """
    mark = f"mark {time.monotonic_ns()}"
    actors = Actors(client, mark)
    place(client).resolve(mark, "1")
    actors.close()


def test_the_life_of_an_actor(connect: Any, placing: Daemon, kind: str) -> None:
    client = connect(placing.socket)
    assert "placement" in client.status()["features"]
    actors = Actors(client, [kind])
    first = place(client).resolve(kind, "1")
    assert (first.pid, first.locality, first.authority) == (str(os.getpid()), "local", "127.0.0.1:7001")
    assert place(client).resolve(kind, "1", pid=True).pid == first.pid
    assert place(client).resolve(kind, "1").token == first.token and actors.of("1") == ["activate"]
    assert (actors.seen[0].token, actors.seen[0].version, actors.seen[0].snapshot) == (first.token, first.version, None)
    assert keys(actors.executor.activations) == [f"{kind}/1"]
    actors.check()

    seen = place(client).snapshot(kind=kind, identity="1")
    assert seen["key"]["record"]["token"] == first.token and seen["state"] == "member"
    page = place(client).snapshot(after=f"{kind}/", limit=1)
    assert page["activations"][0]["identity"] == "1" and kind in page["kinds"]

    actors.close()
    assert actors.of("1") == ["activate", "passivate"] and actors.executor.activations == []
    with pytest.raises(placement.ActivationEndedError) as caught:
        actors.check()
    assert caught.value.reason == "passivated"
    assert not any(one["active"] for one in place(client).snapshot(kind=kind, identity="1")["activations"])

    up_to_date(client)
    again = Actors(client, kind)
    again.pid = "mailbox 7"
    second = place(client).resolve(kind, "1")
    assert second.token > first.token and second.version > first.version and second.pid == "mailbox 7"
    assert again.snapshots == [str(first.token).encode()]
    again.close()


def test_nobody_runs_it(connect: Any, placing: Daemon, kind: str) -> None:
    client = connect(placing.socket)
    with pytest.raises(placement.PlacementUnservedError, match="no process of any host has registered"):
        place(client).resolve(kind, "1", wait=0)
    for wrong in (("a/b", "1"), ("", "1"), (kind, ""), (kind, "x" * 257)):
        with pytest.raises(kazahana.InvalidParamsError):
            place(client).resolve(*wrong)
    for kinds in ([], ["a/b"], [str(number) for number in range(65)]):
        with pytest.raises(kazahana.InvalidParamsError):
            Actors(client, kinds)
    with pytest.raises(kazahana.InvalidParamsError):
        Watch(client, ["exploded"])


def test_off(connect: Any, daemon: Daemon) -> None:
    """The daemon of all other tests has no placement_authority."""
    client = connect(daemon.socket)
    assert "placement" not in client.status()["features"]
    for call in (
        lambda: place(client).resolve("room", "1"),
        lambda: Actors(client),
        lambda: Watch(client),
        place(client).snapshot,
    ):
        with pytest.raises(placement.PlacementNotReadyError) as caught:
            call()
        assert caught.value.state == "off"


def test_callbacks_that_raise(connect: Any, placing: Daemon, kind: str) -> None:
    client = connect(placing.socket)
    actors = Actors(client, kind)
    with pytest.raises(placement.ActivationFailedError, match="does not want to activate") as caught:
        place(client).resolve(kind, "bad")
    assert "RuntimeError" in caught.value.cause
    actors.left = "no bytes"
    place(client).resolve(kind, "1")
    actors.close()
    assert actors.of("1") == ["activate", "passivate"]
    up_to_date(client)
    actors = Actors(client, kind)
    assert place(client).resolve(kind, "1").version == 2 and actors.snapshots == [None]
    actors.close()


def test_a_slow_callback(connect: Any, placing: Daemon, kind: str) -> None:
    client = connect(placing.socket)
    actors = Actors(client, kind)
    assert place(client).resolve(kind, "quick").version == 1  # waits until the kind is announced
    with pytest.raises(placement.PlacementPendingError):
        place(client).resolve(kind, "slow", wait=0.1)
    actors.gate.set()
    assert place(client).resolve(kind, "slow").version == 1
    assert actors.of("slow") == ["activate"]
    actors.close()


def test_a_callback_that_hangs(placing: Daemon, kind: str) -> None:
    """Longer than the daemon waits: it gives the activation up, and the late end of it is passivated."""
    with kazahana.Client(placing.socket, timeout=60) as client:
        actors, failures = Actors(client, kind), Watch(client, ["activation_failed"])
        assert place(client).resolve(kind, "quick").version == 1  # waits until the kind is announced
        with pytest.raises((placement.ActivationFailedError, placement.PlacementPendingError)):
            place(client).resolve(kind, "slow", wait=5.2)
        # The daemon has given it up, and waits for its end.
        look = functools.partial(place(client).snapshot, kind=kind, identity="slow")
        wait_until(lambda: any(one["doing"] == "passivating" for one in look()["activations"]))
        actors.gate.set()
        wait_until(lambda: actors.of("slow") == ["activate", "passivate"])
        with pytest.raises(placement.ActivationEndedError):
            actors.check(-1 if actors.seen[-1].identity == "slow" else 0)
        while failures.next().identity != "slow":
            pass
        failures.close()
        assert place(client).resolve(kind, "slow").version > 1
        assert actors.of("slow") == ["activate", "passivate", "activate"]
        actors.close()


def test_many_at_once(placing: Daemon, kind: str) -> None:
    """Each is activated once, whoever asks first, by one of the two executors."""
    with kazahana.Client(placing.socket, timeout=60) as client:
        executors = [Actors(client, kind), Actors(client, kind)]
        found: list[list[tuple[str, int]]] = []

        def resolve() -> None:
            found.append([(str(number), place(client).resolve(kind, str(number)).token) for number in range(30)])

        threads = [threading.Thread(target=resolve) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(found) == 6 and all(one == found[0] for one in found)
        assert sorted(len(actors.seen) for actors in executors) == [15, 15]
        for actors in executors:
            for number in range(15):
                actors.check(number)
        executors[0].close()  # its actors move to the other one when they are asked for
        before = dict(found[0])
        moved = {activation.identity for activation in executors[0].seen}
        for name, token in before.items():
            now = place(client).resolve(kind, name).token
            assert now > token if name in moved else now == token
        assert len(executors[1].seen) == 30
        executors[1].close()


def test_tasks(placing: Daemon, kind: str) -> None:
    async def main() -> None:
        told: list[str] = []

        async def activate(activation: placement.AsyncActivation) -> str:
            await asyncio.sleep(0.01)
            told.append(activation.identity)
            return f"task {activation.identity}"

        async def passivate(activation: placement.AsyncActivation) -> bytes | None:
            return None

        async with kazahana.AsyncClient(placing.socket, timeout=60) as client:
            async with place(client).register([kind], activate, passivate) as executor:
                asked = [place(client).resolve(kind, str(number % 100)) for number in range(300)]
                found = await asyncio.gather(*asked)
                assert all(one.pid == f"task {one.identity}" for one in found)
                assert sorted(told) == sorted(map(str, range(100))) and len(executor.activations) == 100
                await asyncio.gather(*(activation.check() for activation in executor.activations))
            assert executor.activations == []

    asyncio.run(main())


Both = Callable[[str], list[Any]]


@pytest.fixture
def both() -> Iterator[Both]:
    """Makes a client of each kind, for tests whose time is that of the daemon's terms."""
    made: list[Any] = []

    def make(socket: str) -> list[Any]:
        clients = [kazahana.Client(socket, timeout=60), Driven(kazahana.AsyncClient(socket, timeout=60))]
        made.extend(clients)
        return clients

    yield make
    for client in made:
        client.finish() if isinstance(client, Driven) else client.close()


def test_the_daemon_is_killed(both: Both, make_placing: Any) -> None:
    daemon = make_placing("--placement-ttl", "6s")  # it has to wait for the end of its earlier self
    clients = both(daemon.socket)
    kinds = ["room", "table"]
    each = [(client, kind, Actors(client, kind), Watch(client)) for client, kind in zip(clients, kinds)]
    tokens = [place(client).resolve(kind, "1").token for client, kind, _, _ in each]
    for _, kind, _, watch in each:  # an event may come after the answer, so a daemon killed now may not have sent it
        while (event := watch.next()).kind != kind:
            pass
        assert event.event == "activated"
    daemon.stop(signal.SIGKILL)
    for _, _, actors, watch in each:
        actors.until(lambda actors=actors: actors.of("1") == ["activate", "ended"])
        with pytest.raises(placement.ActivationEndedError):
            actors.check()
        with pytest.raises(placement.WatchEndedError) as caught:
            while True:
                watch.next()
        assert caught.value.reason == "disconnected"
    daemon.start()
    for (client, kind, actors, _), token in zip(each, tokens):
        wait_until(lambda client=client, kind=kind: kind in place(client).snapshot()["kinds"])  # registered again
        assert place(client).resolve(kind, "1", wait=30).token > token
        assert actors.of("1") == ["activate", "ended", "activate"]
        actors.check()
        actors.close()


def test_the_daemon_stops_and_hands_over(both: Both, make_placing: Any) -> None:
    """What a passivation leaves is there after the restart; and whoever watches is told that it misses something."""
    daemon = make_placing()
    clients = both(daemon.socket)
    kinds = ["room", "table"]
    each = [(client, kind, Actors(client, kind), Watch(client, ["passivated"])) for client, kind in zip(clients, kinds)]
    tokens = [place(client).resolve(kind, "1").token for client, kind, _, _ in each]
    stopping = threading.Thread(target=daemon.stop)
    stopping.start()
    for _, _, actors, _ in reversed(each):  # asyncio first: the loop has to run for it to answer
        actors.until(lambda actors=actors: not actors.executor.activations)
    for _, _, _, watch in each:
        with pytest.raises(placement.WatchEndedError) as caught:
            while watch.next().event == "passivated":
                pass
        assert caught.value.reason == "stopping"
    stopping.join(30)
    daemon.start()
    for (client, kind, actors, _), token in zip(each, tokens):
        wait_until(lambda client=client, kind=kind: kind in place(client).snapshot()["kinds"])
        assert place(client).resolve(kind, "1", wait=30).token > token
        assert actors.snapshots == [None, str(token).encode()]
        assert actors.of("1") == ["activate", "passivate", "activate"]
        actors.close()


PROCESS = """
import sys, time, kazahana
from kazahana_placement import Placement
executor = Placement(kazahana.Client(sys.argv[1], timeout=60)).register(sys.argv[2], lambda _: "other", lambda _: None)
print("registered", flush=True)
time.sleep(600)
"""


def test_the_process_is_killed(connect: Any, placing: Daemon, kind: str) -> None:
    client = connect(placing.socket)
    command = [*DIE_WITH_PARENT, sys.executable, "-c", PROCESS, placing.socket, kind]
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE}/src:{PACKAGE}/placement/src"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == b"registered\n"
        there = place(client).resolve(kind, "1")
        assert there.pid == "other"
        actors = Actors(client, kind)
        process.kill()
        process.wait(30)
    wait_until(lambda: place(client).resolve(kind, "1", wait=30).token > there.token)
    assert actors.of("1") == ["activate"]
    actors.close()


def test_a_fork(connect: Any, placing: Daemon, kind: str) -> None:
    client = connect(placing.socket)
    actors = Actors(client, kind)
    place(client).resolve(kind, "1")
    actors.check()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert actors.executor.activations == [] and actors.seen[0].ended
            with pytest.raises(placement.ActivationEndedError) as caught:
                if actors.loop is None:
                    actors.check()
                else:
                    actors.seen[0].covered(0.0)
            assert caught.value.reason == "forked"
            if actors.loop is None:
                actors.close()
                with kazahana.Client(placing.socket, timeout=60) as own:
                    mine = Actors(own, f"{kind} 2"[-64:])
                    assert place(own).resolve(f"{kind} 2"[-64:], "1").pid == str(os.getpid())
                    mine.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    actors.check()
    assert place(client).resolve(kind, "1").token == actors.seen[0].token and actors.of("1") == ["activate"]
    actors.close()
    assert actors.of("1") == ["activate", "passivate"]


def test_it_ends_with_its_process_although_a_child_lives(placing: Daemon, kind: str) -> None:
    """The child's copy of the socket must not keep the activations alive."""
    read, write = os.pipe()
    if (parent := os.fork()) == 0:
        client = kazahana.Client(placing.socket, timeout=60)
        Actors(client, kind)
        place(client).resolve(kind, "1")
        if os.fork() == 0:
            os.close(write)
            os.read(read, 1)  # until the test ends
        os._exit(0)
    os.close(read)
    assert os.waitpid(parent, 0)[1] == 0
    with kazahana.Client(placing.socket, timeout=60) as client:
        wait_until(lambda: place(client).snapshot(kind=kind, identity="1")["activations"] == [])
    os.close(write)


def test_events(connect: Any, placing: Daemon, kind: str) -> None:
    client = connect(placing.socket)
    watch, resolved = Watch(client), Watch(client, ["resolved"])
    actors = Actors(client, kind)
    token = place(client).resolve(kind, "1").token
    place(client).resolve(kind, "1")
    with pytest.raises(placement.ActivationFailedError):
        place(client).resolve(kind, "bad")
    actors.close()
    mine = [event for event in (watch.next() for _ in range(3)) if event.kind == kind]
    assert [(event.event, event.identity) for event in mine] == [
        ("activated", "1"),
        ("activation_failed", "bad"),
        ("passivated", "1"),
    ]
    assert mine[0].token == token and "does not want to" in mine[1].reason
    assert abs(mine[0].observed_ms / 1000 - time.time()) < 600
    assert {resolved.next().event for _ in range(2)} == {"resolved"}
    watch.close()
    resolved.close()


def test_two_hosts(both: Both, make_placing: Any, lease_server: LeaseServer) -> None:
    """They agree on every actor, and what one of them leaves behind, the other takes over.

    On the first the process uses threads, on the second asyncio.
    """
    hosts = [make_placing("--store", lease_server.url, number=number) for number in (1, 2)]
    member(hosts[0], 2)
    clients = [both(hosts[0].socket)[0], both(hosts[1].socket)[1]]
    one, two = (Actors(client) for client in clients)
    names = [str(number) for number in range(20)]

    def settle() -> list[int]:
        """Resolve everywhere; return how many live where."""
        count = [0, 0]
        for name in names:
            found = [place(client).resolve("room", name, wait=30) for client in clients]
            assert found[0].authority == found[1].authority
            local = [resolution.is_local for resolution in found].index(True)
            remote = found[1 - local]
            assert (remote.locality, remote.pid, remote.version, remote.token) == ("remote", "", 0, 0)
            assert found[0].authority == f"127.0.0.1:700{local + 1}"
            count[local] += 1
        return count

    def both_serve() -> bool:
        """Each host knows that both have a process for rooms."""
        members = [place(client).snapshot()["members"] for client in clients]
        return all(["room" in member["kinds"] for member in known] == [True, True] for known in members)

    wait_until(both_serve)
    placed = settle()
    assert min(placed) > 0 and [len(one.seen), len(two.seen)] == placed

    moving = {activation.identity: activation.token for activation in two.seen}
    stopping = threading.Thread(target=hosts[1].stop)
    stopping.start()
    two.until(lambda: not stopping.is_alive())  # its process passivates meanwhile
    assert all(two.of(name) == ["activate", "passivate"] for name in moving)
    member(hosts[0])
    assert all(place(clients[0]).resolve("room", name, wait=30).is_local for name in names)
    taken = {activation.identity: activation for activation in one.seen if activation.identity in moving}
    for name, token in moving.items():
        assert taken[name].snapshot == str(token).encode() and taken[name].token > token

    hosts[1].start()  # and back: the first host lets go what is the second's again
    for host in hosts:
        member(host, 2)
    wait_until(both_serve)
    wait_until(lambda: all(one.of(name)[-1] == "passivate" for name in moving))
    assert settle() == placed
    two.close()
    one.close()
