from __future__ import annotations

import asyncio
import functools
import threading
import time
from concurrent import futures
from typing import Any

import pytest

import kazahana
from harness import PATIENCE, Clock, Daemon, Driven, Script, wait_until
from kazahana import prefetch
from kazahana.clock import INF
from kazahana.errors import lost


def counting(script: Any) -> Script:
    """A daemon whose IDs count up, which shows who got which batch."""
    last = [0]

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        count = params[0] if method == "NextIDs" else 1
        ids = list(range(last[0] + 1, last[0] + count + 1))
        last[0] += count
        peer.result(msgid, ids if method == "NextIDs" else ids[0])

    made: Script = script(answer)
    return made


def together(client: Any, count: int) -> list[Any]:
    """Return what so many callers get who ask at the same time: IDs and errors."""
    if isinstance(client, Driven):

        async def ask() -> list[Any]:
            return list(await asyncio.gather(*(client.client.next_id() for _ in range(count)), return_exceptions=True))

        return client.loop.run_until_complete(ask())  # type: ignore[no-any-return]
    got: list[Any] = []

    def call() -> None:
        try:
            got.append(client.next_id())
        except kazahana.KazahanaError as error:
            got.append(error)

    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return got


def test_batches(connect: Any, script: Any, clock: Clock) -> None:
    server = counting(script)
    client = connect(server.socket, prefetch=10, max_age=1000)
    for id in range(1, 26):
        assert client.next_id() == id
        clock.now += 0.001
    assert [(method, params) for _, method, params in server.asked] == [("NextIDs", [10])] * 3


def test_batches_grow_while_they_are_used_up_fast(connect: Any, script: Any, clock: Clock) -> None:
    server = counting(script)
    client = connect(server.socket, prefetch=10, max_age=1000)

    def asked_for(pause: float) -> int:
        """Use up a batch, and return the size of the next one."""
        before = len(server.asked)
        while len(server.asked) == before:
            client.next_id()
        clock.now += pause
        return int(server.asked[-1][2][0])

    assert [asked_for(0.0009) for _ in range(6)] == [10, 20, 40, 80, 160, 160]
    assert [asked_for(0.0011) for _ in range(7)] == [160, 80, 40, 20, 10, 10, 10]


def test_nothing_older_than_max_age(connect: Any, script: Any, clock: Clock) -> None:
    client = connect(counting(script).socket, prefetch=10, max_age=0.05)
    assert [client.next_id(), client.next_id()] == [1, 2]
    clock.now += 0.049
    assert client.next_id() == 3
    clock.now += 0.002
    assert client.next_id() == 11
    clock.now += 0.049
    assert client.next_id() == 12


def test_an_id_that_grows_old_while_it_is_taken(connect: Any, script: Any, clock: Clock) -> None:
    class Stopped(list[int]):
        """The process is stopped before it takes an ID."""

        def pop(self, *_: Any) -> int:
            clock.now += 1
            return super().pop()

    client = connect(counting(script).socket, prefetch=10, max_age=0.5)
    assert client.next_id() == 1
    kept = getattr(client, "client", client)._prefetch
    ids, asked, expires = kept.batch
    kept.batch = Stopped(ids), asked, expires
    assert client.next_id() == 11


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock tells here")
def test_age_counts_a_suspend() -> None:
    assert isinstance(prefetch.now, functools.partial) and prefetch.now.args == (time.CLOCK_BOOTTIME,)


def test_age_counts_from_the_question(connect: Any, script: Any, clock: Clock) -> None:
    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        clock.now += 1  # the daemon had to wait
        first = len(server.asked) * 100
        peer.result(msgid, list(range(first, first + params[0])))

    server = script(answer)
    client = connect(server.socket, prefetch=10, max_age=0.5)
    assert [client.next_id() for _ in range(3)] == [100, 200, 300]


def test_order_across_other_calls(connect: Any, script: Any) -> None:
    """What was fetched is dropped once the caller has got larger IDs."""
    client = connect(counting(script).socket, prefetch=10, max_age=1000)
    assert client.next_id() == 1
    assert client.next_ids(3) == [11, 12, 13]
    assert client.next_id() == 14
    assert client.next_id(timeout=5) == 24
    assert client.next_id() == 25


def test_who_waits_for_a_refill_that_fails_asks_in_its_own_time(connect: Any, script: Any) -> None:
    server = script(lambda peer, msgid, *_: peer.error(msgid, "NO_PROVIDER: none"))
    got = together(connect(server.socket, prefetch=10, timeout=PATIENCE), 8)
    assert [type(error) for error in got] == [kazahana.NoProviderError] * 8
    assert len(set(map(id, got))) == 8 and len(server.asked) == 8  # each has an error of its own


def test_a_daemon_that_is_not_there_costs_all_who_wait_no_more_than_one(connect: Any) -> None:
    started = time.monotonic()
    got = together(connect("/nowhere/k.sock", prefetch=10, timeout=PATIENCE), 60)
    assert {type(error) for error in got} == {kazahana.DaemonUnavailableError} and len(got) == 60
    assert time.monotonic() - started < 30  # one after the other, a second each, would be 60


def test_who_waits_for_a_refill_is_told_that_the_daemon_is_away(connect: Any, script: Any) -> None:
    server = script(lambda *_: None)
    client = connect(server.socket, prefetch=10, timeout=0.05)
    plain, loop = getattr(client, "client", client), getattr(client, "loop", None)
    plain._prefetch.join(loop.create_future() if loop else futures.Future(), loop)  # a wait that does not end
    plain._gives_up = INF
    plain._pause(lost("/nowhere/k.sock"), INF, 0)
    for _ in range(2):
        with pytest.raises(kazahana.DaemonUnavailableError, match="/nowhere/k"):
            client.next_id()
    with pytest.raises(kazahana.RequestTimeoutError):
        client.ping()  # there is a connection now
    with pytest.raises(kazahana.RequestTimeoutError):
        client.next_id()


def test_a_cancelled_refill_is_taken_over(script: Any) -> None:
    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if len(server.asked) > 1:
            peer.result(msgid, list(range(1, params[0] + 1)))

    server = script(answer)

    async def main() -> int:
        async with kazahana.AsyncClient(server.socket, prefetch=10, timeout=60) as client:
            first, second = asyncio.ensure_future(client.next_id()), asyncio.ensure_future(client.next_id())
            while not server.asked:  # noqa: ASYNC110 - by another thread
                await asyncio.sleep(0.001)
            first.cancel()
            return await second

    assert asyncio.run(main()) == 1


def test_dropped_while_it_was_asked_for() -> None:
    ahead = prefetch.Prefetch(10, 1.0)
    asked_after = ahead.batch
    ahead.drop()
    assert ahead.install(asked_after, [1, 2, 3], 0.0) == 1
    assert ahead.batch[0] == []
    assert ahead.install(ahead.batch, [4, 5, 6], 7.0) == 4
    assert ahead.batch == ([6, 5], 7.0, 8.0)


def test_threads(daemon: Daemon) -> None:
    with kazahana.Client(daemon.socket, prefetch=64) as client:
        seen: list[list[int]] = []
        threads = [
            threading.Thread(target=lambda: seen.append([client.next_id() for _ in range(5000)])) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(seen) == 8 and all(one == sorted(one) for one in seen)
        assert len(set().union(*seen)) == 8 * 5000


def test_tasks(daemon: Daemon) -> None:
    async def main() -> None:
        async with kazahana.AsyncClient(daemon.socket, prefetch=64) as client:

            async def some() -> list[int]:
                return [await client.next_id() for _ in range(100)]

            seen = await asyncio.gather(*(some() for _ in range(50)))
            assert all(one == sorted(one) for one in seen)
            assert len(set().union(*seen)) == 5000

    asyncio.run(main())


def test_limits() -> None:
    for wrong in ({"prefetch": -1}, {"prefetch": 65_537}, {"max_age": 0}, {"max_age": float("nan")}):
        with pytest.raises(kazahana.InvalidParamsError, match="out of range"):
            kazahana.Client(**wrong)  # type: ignore[arg-type]


def test_waiting_for_a_refill_ends_at_the_deadline(script: Any) -> None:
    server = script(lambda *_: None)
    client = kazahana.Client(server.socket, prefetch=10, timeout=3)
    failures: list[BaseException] = []
    together = threading.Barrier(4)

    def wait() -> None:
        together.wait()
        try:
            client.next_id()
        except kazahana.RequestTimeoutError as error:
            failures.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    client.close()
    assert len(failures) == 4
    first, *later = (params[-1]["timeout_ms"] for _, _, params in server.asked)
    assert first == 3000 and (not later or min(later) < 3000)  # the rest, not as much again


def test_tasks_that_wait_for_a_refill_end_at_the_deadline(script: Any) -> None:
    server = script(lambda *_: None)

    async def main() -> None:
        async with kazahana.AsyncClient(server.socket, prefetch=10, timeout=2) as client:
            for failure in await asyncio.gather(*(client.next_id() for _ in range(4)), return_exceptions=True):
                assert isinstance(failure, kazahana.RequestTimeoutError)

    asyncio.run(main())
    first, *later = (params[-1]["timeout_ms"] for _, _, params in server.asked)
    assert first == 2000 and all(timeout < 2000 for timeout in later)


def test_one_refill_serves_whoever_waits(script: Any) -> None:
    gate = threading.Event()

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        gate.wait(30)
        peer.result(msgid, list(range(1, params[0] + 1)))

    server = script(answer)
    client = kazahana.Client(server.socket, prefetch=10, max_age=1000)
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(client.next_id())) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.asked)
    gate.set()
    for thread in threads:
        thread.join(60)
    client.close()
    assert sorted(got) == [1, 2, 3, 4] and len(server.asked) == 1


def test_a_slow_batch_serves_whoever_waited_before_it_was_asked_for(connect: Any, script: Any, clock: Clock) -> None:
    """Else answers that take longer than max_age would serve one caller each."""
    joined: list[bool] = []

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        wait_until(lambda: len(joined) >= 4)
        clock.now += 1
        first = len(server.asked) * 100
        peer.result(msgid, list(range(first, first + params[0])))

    server = script(answer)
    client = connect(server.socket, prefetch=10, max_age=0.5, timeout=PATIENCE)
    kept = getattr(client, "client", client)._prefetch
    join = kept.join

    def joining(*args: Any) -> Any:
        made = join(*args)
        joined.append(made is args[0])
        return made

    kept.join = joining
    got = sorted(together(client, 4))
    assert got[0] == 100 and got[1] >= 200 and got[1:] == [got[1], got[1] + 1, got[1] + 2]
    assert len(server.asked) == 2


@pytest.mark.parametrize("is_away", [False, True])
def test_who_joins_a_refill_late_has_a_time_of_its_own(connect: Any, script: Any, is_away: bool) -> None:
    failed = threading.Event()

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if is_away and not failed.is_set():
            peer.close()
            return
        assert failed.wait(PATIENCE)  # the first's caller has gone by then: its connection is closed
        peer.result(msgid, list(range(1, params[0] + 1)))

    server = script(answer)
    client = connect(server.socket, prefetch=10, timeout=0.5)
    plain, got = getattr(client, "client", client), []
    error = (kazahana.DaemonUnavailableError, kazahana.RequestTimeoutError)  # a slow machine may take one for the other

    async def ask() -> None:
        first = asyncio.ensure_future(plain.next_id())
        await asyncio.sleep(0)
        plain._calls.timeout = PATIENCE
        second = asyncio.ensure_future(plain.next_id())
        with pytest.raises(error):
            await first
        failed.set()
        got.append(await second)

    if isinstance(client, Driven):
        client.loop.run_until_complete(ask())
    else:
        join = plain._prefetch.join
        second = threading.Thread(target=lambda: got.append(plain.next_id()))

        def joining(*args: Any) -> Any:
            made = join(*args)
            plain._prefetch.join = join
            plain._calls.timeout = PATIENCE
            second.start()
            return made

        plain._prefetch.join = joining
        try:
            with pytest.raises(error):
                plain.next_id()
        finally:
            failed.set()
        second.join(PATIENCE)
    assert len(got) == 1


def test_a_task_waits_no_longer_than_its_deadline_for_the_refill_of_another(script: Any) -> None:
    server = script(lambda *_: None)

    async def main() -> None:
        async with kazahana.AsyncClient(server.socket, prefetch=10, timeout=0.05) as client:
            loop = asyncio.get_running_loop()
            client._prefetch.join(loop.create_future(), loop)  # a wait that does not end
            with pytest.raises(kazahana.RequestTimeoutError):
                await asyncio.wait_for(client.next_id(), 60)

    asyncio.run(main())
    assert server.asked == []  # with no time left, it begins no refill that would fail for all
