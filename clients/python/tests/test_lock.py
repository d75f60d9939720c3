"""Locks, against a scripted daemon that keeps the rules of the wire, and the real one once it has them."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from typing import Any, Callable

import msgpack
import pytest

import kazahana
from harness import PATIENCE, Clock, Daemon, Driven, wait_until


class Store:
    """Locks of a scripted daemon: held by a connection, and released with it."""

    def __init__(self) -> None:
        self.holder: Any = None
        self.lease: dict[str, Any] = {}
        self.tokens = 41

    def __call__(self, peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        key, options = params[0], params[1] if len(params) > 1 else {}
        if method == "Lock.Acquire":
            assert options["hold"] == "connection" and len(options["request_id"]) == 32
            if self.holder is not None:
                peer.error(msgid, "LOCK_HELD: the lock is held retry_after_ms=1200 owner=anonymous/1001")
                return
            self.tokens += 1
            self.holder = peer
            self.lease = {
                "tenant_id": "default", "lock_key": key, "lease_id": f"lease-{self.tokens}", "owner_id": "anonymous/0",
                "fencing_token": self.tokens, "state": "ACTIVE", "acquired_at": "2026-11-20T20:27:22.455Z",
                "expires_at": "2026-11-20T20:27:52.455Z", "expires_in_ms": options["ttl_ms"],
            }  # fmt: skip
        assert method in ("Lock.Acquire", "Lock.Get") or options["lease_id"] == self.lease["lease_id"]
        if method == "Lock.Release":
            self.holder = None
            self.lease = {**self.lease, "state": "RELEASED", "expires_in_ms": 0}
        peer.result(msgid, self.lease)

    def lose(self, reason: str) -> None:
        self.holder.send(2, "Lock.Lost", [{**self.lease, "reason": reason}])
        self.holder = None


class Held:
    """A lock of either client, as a context manager of this thread."""

    def __init__(self, client: Any, key: str = "reports/daily", **options: Any) -> None:
        self.run = client.loop.run_until_complete if isinstance(client, Driven) else (lambda value: value)
        self.lock = (client.client if isinstance(client, Driven) else client).lock(key, **options)

    def __enter__(self) -> Held:
        self.run(self.lock.acquire())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.lock.release())

    def wait_lost(self) -> str:
        if isinstance(self.lock, kazahana.AsyncLock):
            self.run(asyncio.wait_for(self.lock.lost.wait(), PATIENCE))
            return str(self.lock.lost_reason)
        assert self.lock.lost.wait(PATIENCE)
        return str(self.lock.lost.reason)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for what will come true while others wait for the loss of the lock."""

        async def wait() -> None:
            deadline = time.monotonic() + PATIENCE
            while not condition():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.001)

        if isinstance(self.lock, kazahana.AsyncLock):
            self.run(wait())
        else:
            thread = threading.Thread(target=self.lock.lost.wait, args=(PATIENCE,), daemon=True)
            thread.start()
            wait_until(condition)


@pytest.fixture
def store() -> Store:
    return Store()


def test_held_and_released(connect: Any, script: Any, store: Store) -> None:
    server = script(store)
    client = connect(server.socket)
    with Held(client, ttl=5, wait=1.5) as held:
        assert held.lock.token == 42 and held.lock.state.lease_id == "lease-42" and not held.lock.lost.is_set()
        assert store.holder is not None
        with pytest.raises(RuntimeError, match="already"):
            held.run(held.lock.acquire())
    assert [method for _, method, _ in server.asked] == ["Lock.Acquire", "Lock.Watch", "Lock.Release"]
    assert {number for number, _, _ in server.asked} == {0}
    options = server.asked[0][2][1]
    assert (options["ttl_ms"], options["wait_ms"]) == (5000, 1500)
    assert server.ended[0].wait(30)  # its own connection ends with it
    with held:
        assert held.lock.token == 43


def test_held_by_another(connect: Any, script: Any, store: Store) -> None:
    client = connect(script(store).socket)
    with Held(client):
        with pytest.raises(kazahana.LockHeldError) as caught:
            Held(client).__enter__()
        assert (caught.value.retry_after_ms, caught.value.owner) == (1200, "anonymous/1001")
    with Held(client):
        pass


def test_lost(connect: Any, script: Any, store: Store) -> None:
    held = Held(connect(script(store).socket))
    with pytest.raises(kazahana.LockLostError) as caught, held:
        store.lose("taken_over")
        assert held.wait_lost() == "taken_over"
        assert held.lock.lost.is_set()
    assert caught.value.reason == "taken_over"


def test_lost_with_the_daemon(connect: Any, script: Any, store: Store) -> None:
    server = script(store)
    held = Held(connect(server.socket))
    with pytest.raises(kazahana.LockLostError), held:
        store.holder.close()
        assert held.wait_lost() == "disconnected"
    assert len(server.peers) == 1  # a new connection would not hold it


def test_connection_that_breaks_before_the_lock_is_watched(connect: Any, script: Any, store: Store) -> None:
    """The daemon has taken the lock back with the connection: it is asked for anew, as a new request."""

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if method == "Lock.Watch" and len(server.peers) == 1:
            store.holder = None
            peer.close()
        else:
            store(peer, msgid, method, params)

    server = script(answer)
    with Held(connect(server.socket)) as held:
        assert held.lock.token == 43
    requests = [params[1]["request_id"] for _, method, params in server.asked if method == "Lock.Acquire"]
    assert len(set(requests)) == 2


def test_reused_again_is_the_answer(connect: Any, script: Any, store: Store) -> None:
    """Who gets the same answer to a new request must hear why."""

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        peer.error(msgid, "REQUEST_ID_REUSED: for another request")

    server = script(answer)
    with pytest.raises(kazahana.RequestIDReusedError, match="for another request"):
        Held(connect(server.socket, timeout=60)).__enter__()
    requests = [params[1]["request_id"] for _, _, params in server.asked]
    assert len(requests) > 1 and len(set(requests)) == len(requests)


def test_restart_while_it_is_asked_for(connect: Any, script: Any, store: Store) -> None:
    """The same request again: a lease that was granted before the daemon died is the same one."""

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        peer.close() if len(server.peers) == 1 else store(peer, msgid, method, params)

    server = script(answer)
    with Held(connect(server.socket)):
        requests = [params[1]["request_id"] for _, method, params in server.asked if method == "Lock.Acquire"]
        assert len(requests) == 2 and len(set(requests)) == 1


def test_expired_before_it_was_watched(connect: Any, script: Any, store: Store) -> None:
    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if method == "Lock.Watch" and store.tokens == 42:
            store.holder = None
            peer.result(msgid, {**store.lease, "state": "EXPIRED"})
        else:
            store(peer, msgid, method, params)

    with Held(connect(script(answer).socket)) as held:
        assert held.lock.token == 43


def test_an_error_of_the_block_is_not_hidden(script: Any, store: Store) -> None:
    with kazahana.Client(script(store).socket) as client, pytest.raises(ZeroDivisionError), client.lock("key"):
        store.lose("expired")
        1 / 0  # noqa: B018

    async def main() -> None:
        store.holder = None
        async with kazahana.AsyncClient(script(store).socket) as client:
            async with client.lock("key") as lock:
                assert lock.token == 43
            with pytest.raises(ZeroDivisionError):
                async with client.lock("key"):
                    store.lose("expired")
                    1 / 0  # noqa: B018

    asyncio.run(main())


def test_waiting_for_the_loss_does_not_keep_others_from_releasing(script: Any, store: Store) -> None:
    with kazahana.Client(script(store).socket) as client:
        lock = client.lock("key").acquire()
        assert not lock.lost.wait(0.01)
        waited: list[bool] = []
        thread = threading.Thread(target=lambda: waited.append(lock.lost.wait(60)))
        thread.start()
        time.sleep(0.05)
        lock.release()
        thread.join(30)
        assert waited == [True]
        assert lock.lost.reason == "released"
        lock.release()  # once is enough


def test_a_lock_that_is_taken_again_does_not_bring_back_what_was_released(script: Any, store: Store) -> None:
    with kazahana.Client(script(store).socket) as client:
        lock = client.lock("reports/daily").acquire()
        before = lock.lost
        lock.release()
        lock.acquire()
        assert before.is_set() and before.reason == "released"
        assert not lock.lost.is_set()
        lock.release()


def test_not_acquired() -> None:
    lock = kazahana.Client("/nowhere").lock("key")
    with pytest.raises(RuntimeError, match="not been acquired"):
        assert lock.token
    for wrong in ({"ttl": 0}, {"wait": -1}):
        with pytest.raises(kazahana.InvalidParamsError):
            kazahana.Client("/nowhere").lock("key", **wrong).acquire()


def mute(store: Store, *methods: str) -> Callable[..., None]:
    """A daemon that does not answer these requests."""
    return lambda peer, msgid, method, params: None if method in methods else store(peer, msgid, method, params)


@pytest.mark.parametrize("error", [None, "STORE_UNAVAILABLE: away"])
def test_lost_without_a_word(connect: Any, script: Any, store: Store, error: str | None) -> None:
    """A frozen daemon's store will give the lock to another host, while the connection lives."""

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if method in ("Lock.Acquire", "Lock.Watch"):
            store(peer, msgid, method, params)
        elif error is not None:
            peer.error(msgid, error)

    held = Held(connect(script(answer).socket), ttl=0.3)
    with pytest.raises(kazahana.LockLostError) as caught, held:
        assert held.wait_lost() == "unavailable"
        assert held.lock.lost.is_set()
    assert caught.value.reason == "unavailable"


def test_a_frozen_daemon_is_asked_once(connect: Any, script: Any, store: Store) -> None:
    server = script(mute(store, "Lock.Get", "Lock.Release"))
    held = Held(connect(server.socket), ttl=0.3)
    with pytest.raises(kazahana.LockLostError), held:
        assert held.wait_lost() == "unavailable"
    assert [method for _, method, _ in server.asked] == ["Lock.Acquire", "Lock.Watch", "Lock.Get"]


def test_an_answer_that_nobody_has_read_for_long_ends_no_lock(script: Any, store: Store, clock: Clock) -> None:
    answered = threading.Event()

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        store(peer, msgid, method, params)
        if method == "Lock.Get":
            answered.set()

    with kazahana.Client(script(answer).socket) as client, client.lock("key") as lock:
        clock.now += 11
        assert not lock.lost.is_set()  # which asks, and does not wait
        assert answered.wait(PATIENCE)
        clock.now += 60
        assert not lock.lost.is_set()


def test_a_loss_that_is_told_together_with_the_answer_to_watch(connect: Any, script: Any, store: Store) -> None:
    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if method != "Lock.Watch":
            store(peer, msgid, method, params)
            return
        watched, lost = [1, msgid, None, store.lease], [2, "Lock.Lost", [{**store.lease, "reason": "refused"}]]
        peer.connection.sendall(msgpack.packb([1, 99, None, None]) + msgpack.packb(watched) + msgpack.packb(lost))

    held = Held(connect(script(answer).socket))
    with pytest.raises(kazahana.LockLostError), held:
        assert held.wait_lost() == "refused"


def test_a_lock_that_the_daemon_confirms_is_kept(connect: Any, script: Any, store: Store, clock: Clock) -> None:
    server = script(store)
    with Held(connect(server.socket), ttl=0.3) as held:
        for times in range(1, 10):
            clock.now += 0.11
            held.until(lambda times=times: [method for _, method, _ in server.asked].count("Lock.Get") >= times)
        assert not held.lock.lost.is_set()


def test_a_lock_that_nobody_asks_about_is_kept(script: Any, store: Store, clock: Clock) -> None:
    """The daemon is asked before a lock counts as lost."""
    server = script(store)
    with kazahana.Client(server.socket) as client, client.lock("key") as lock:
        for _ in range(3):
            clock.now += 31
            assert not lock.lost.is_set()
            assert not lock.lost.wait(0)
        clock.now += 31
    assert [method for _, method, _ in server.asked[2:]] == ["Lock.Get"] * 4 + ["Lock.Release"]


def test_a_lock_that_nobody_asks_about_is_lost_with_a_frozen_daemon(script: Any, store: Store, clock: Clock) -> None:
    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if method == "Lock.Get":
            clock.now += 10  # it is waited for, and not for long
        else:
            store(peer, msgid, method, params)

    client = kazahana.Client(script(answer).socket)
    with pytest.raises(kazahana.LockLostError) as caught, client.lock("key"):
        clock.now += 31
    client.close()
    assert caught.value.reason == "unavailable"


def test_looking_does_not_wait_before_the_end(script: Any, store: Store, clock: Clock) -> None:
    with kazahana.Client(script(mute(store, "Lock.Get", "Lock.Release")).socket) as client:
        lock = client.lock("key").acquire()
        clock.now += 29
        assert not lock.lost.is_set()
        clock.now += 4  # what was asked just before the end has its time
        assert lock.lost.is_set() and lock.lost.reason == "unavailable"
        with pytest.raises(kazahana.LockLostError):
            lock.release()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"state": "EXPIRED", "expires_in_ms": 0}, "expired"),
        ({"lease_id": "another"}, "taken_over"),
        ({"expires_in_ms": 0}, "expired"),
        ("LOCK_NOT_FOUND: forgotten", "expired"),
    ],
)
def test_a_lock_that_is_not_confirmed(
    connect: Any, script: Any, store: Store, clock: Clock, change: Any, reason: str
) -> None:
    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if method != "Lock.Get":
            store(peer, msgid, method, params)
        elif isinstance(change, str):
            peer.error(msgid, change)
        else:
            peer.result(msgid, {**store.lease, **change})

    held = Held(connect(script(answer).socket), ttl=0.3)
    with pytest.raises(kazahana.LockLostError) as caught, held:
        clock.now += 0.1
        assert held.wait_lost() == reason
    assert caught.value.reason == reason


def test_released_while_the_daemon_is_asked(script: Any, store: Store, clock: Clock) -> None:
    waiting: list[int] = []

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if method == "Lock.Get":
            waiting.append(msgid)
            return
        for late in waiting:
            peer.result(late, {**store.lease, "expires_in_ms": 7})
        store(peer, msgid, method, params)

    with kazahana.Client(script(answer).socket) as client, client.lock("key") as lock:
        clock.now += 15
        assert not lock.lost.is_set()
        wait_until(lambda: waiting)
    assert store.lease["state"] == "RELEASED"


@pytest.fixture
def locking(connect: Any, daemon: Daemon) -> Any:
    client = connect(daemon.socket)
    assert "locks" in client.status()["features"]
    return client


def test_locks_of_the_daemon(locking: Any) -> None:
    key = f"test/{uuid.uuid4()}"
    with Held(locking, key, ttl=5) as held:
        token = held.lock.token
        with pytest.raises(kazahana.LockHeldError):
            Held(locking, key).__enter__()
    with Held(locking, key) as again:
        assert again.lock.token > token


def test_locks_end_with_the_process(locking: Any, daemon: Daemon) -> None:
    key = f"test/{uuid.uuid4()}"
    other = kazahana.Client(daemon.socket).lock(key, ttl=60)
    other.acquire()
    assert other._last is not None
    other._last.close()  # as a process that dies
    with Held(locking, key, wait=10) as held:
        assert held.lock.token > other.token
