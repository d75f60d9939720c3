"""Both clients against the real daemon, and against a scripted one for what the real one seldom does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import select
import threading
import time
import uuid
import weakref
from datetime import datetime, timedelta, timezone
from typing import Any

import msgpack
import pytest

import kazahana
from harness import PATIENCE, REPOSITORY, Daemon, Driven, hostile_answers, stateless_exchanges, wait_until
from kazahana import fork
from kazahana.client import IDLE


def test_ids(connect: Any, daemon: Daemon) -> None:
    client = connect(daemon.socket)
    ids = [
        client.next_id(),
        *client.next_ids(3),
        client.next_id(),
        *client.next_ids(1000),
        client.next_id(service="default"),
    ]
    assert ids == sorted(set(ids)) and all(type(id) is int for id in ids)
    text = client.next_id(format="string")
    external = client.next_ids(2, format="external", regular_only=True, timeout=60)
    assert int(text) > ids[-1]
    plain = kazahana.ExternalCodec.plain()
    assert [plain.decode(one) for one in external] > [int(text)]


def test_largest_batch(connect: Any, make_daemon: Any) -> None:
    daemon = make_daemon("--max-throughput-per-ms", "4096")
    client = connect(daemon.socket)
    for format, kind in (("int", int), ("string", str)):
        ids = client.next_ids(65_536, format=format)
        assert len(set(ids)) == 65_536 and type(ids[0]) is kind and [int(id) for id in ids] == sorted(map(int, ids))


def test_the_golden_inspections(connect: Any, daemon: Daemon) -> None:
    client = connect(daemon.socket)
    inspected = json.loads((REPOSITORY / "testdata" / "external_ids.json").read_text("utf-8"))["inspected"]
    assert len(inspected) > 20
    for want in inspected:
        seen = client.inspect(int(want["id"]))
        assert {name: getattr(seen, name) for name in want} == {**want, "id": int(want["id"])}


def test_explaining(connect: Any, daemon: Daemon) -> None:
    client = connect(daemon.socket)
    id = client.next_id()
    seen = client.inspect(id)
    assert seen.id == id and seen.kind == "regular" and not seen.is_fallback and not client.is_fallback(id)
    assert client.is_fallback(id | 1 << 21)
    assert abs(seen.datetime - datetime.now(timezone.utc)) < timedelta(minutes=1)
    assert client.inspect(seen.external) == client.inspect(str(id)) == client.inspect(hex(id)) == seen
    assert client.to_external(id) == seen.external == kazahana.ExternalCodec.plain().encode(id)
    assert client.to_internal(seen.external) == client.to_internal(seen.external, latest=seen.datetime) == id
    with pytest.raises(kazahana.InvalidExternalIDError):
        client.to_internal(seen.external, latest=seen.timestamp_ms - 1)
    low, high = client.bounds(seen.datetime, seen.timestamp_ms + 1)
    assert low <= id <= high and client.bounds(seen.timestamp_ms, seen.timestamp_ms + 1) == (low, high)
    with pytest.raises(kazahana.InvalidParamsError, match="time zone"):
        client.bounds(datetime(2026, 1, 1), 0)


def test_the_rest(connect: Any, daemon: Daemon) -> None:
    client = connect("unix://" + daemon.socket, service="default", timeout=60)
    assert client.ping() == "pong"
    assert client.uuid().version == 7 and client.uuid(4).version == 4 and isinstance(client.uuid(), uuid.UUID)
    status = client.status()
    assert status["mode"] == "regular" and "ids" in status["features"]


@pytest.mark.parametrize("exchange", stateless_exchanges(), ids=lambda one: one["name"])
def test_recorded_exchanges_are_still_so(connect: Any, placing: Daemon, exchange: dict[str, Any]) -> None:
    from kazahana.protocol import Call

    client = connect(placing.socket)
    inner = getattr(client, "client", client)
    call: Call[Any] = Call(exchange["method"], exchange["params"], lambda value: value, 10, {})
    run = client.loop.run_until_complete if hasattr(client, "loop") else (lambda value: value)
    if "error" not in exchange:
        assert run(inner._perform(call)) == exchange["result"]
        return
    with pytest.raises(kazahana.KazahanaError) as caught:
        run(inner._perform(call))
    assert caught.value.code == exchange["error"]["code"]
    assert caught.value.message == exchange["error"]["message"]


def test_wrong_requests_leave_the_connection_alone(connect: Any, daemon: Daemon) -> None:
    client = connect(daemon.socket)
    first = client.next_id()
    for wrong, code in [
        (lambda: client.next_id(service="nobody"), "UNKNOWN_SERVICE"),
        (lambda: client.next_id(format="roman"), "INVALID_PARAMS"),
        (lambda: client.next_ids(0), "INVALID_PARAMS"),
        (lambda: client.next_ids(65_537), "INVALID_PARAMS"),
        (lambda: client.inspect(-1), "INVALID_PARAMS"),
        (lambda: client.to_internal("short"), "INVALID_EXTERNAL_ID"),
        (lambda: client.uuid(5), "INVALID_PARAMS"),
        (lambda: client.ping(timeout=0), "INVALID_PARAMS"),
    ]:
        with pytest.raises(kazahana.KazahanaError) as caught:
            wrong()
        assert caught.value.code == code
    assert client.next_id() > first
    assert client.status()["connections"] >= 1


def test_no_id_without_a_lease(connect: Any, make_daemon: Any) -> None:
    client = connect(make_daemon("--provider", "none:").socket)
    assert client.is_fallback(client.next_id())
    with pytest.raises(kazahana.NoProviderError):
        client.next_id(regular_only=True)


def test_deadline(connect: Any, script: Any) -> None:
    """A daemon that does not answer costs the timeout, and its late answer reaches nobody."""
    late: list[Any] = []

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        late.append((peer, msgid)) if len(late) < 1 else peer.result(msgid, 42)

    client = connect(script(answer).socket)
    started = time.monotonic()
    with pytest.raises(kazahana.RequestTimeoutError) as caught:
        client.next_id(timeout=1)
    assert time.monotonic() - started >= 1
    assert caught.value.cause == "answer" and isinstance(caught.value, TimeoutError)
    wait_until(lambda: late)
    with contextlib.suppress(OSError):  # a client for threads has closed that connection
        late[0][0].result(late[0][1], 13)
    assert [client.next_id() for _ in range(300)] == [42] * 300


def test_a_second_answer_reaches_nobody(connect: Any, script: Any) -> None:
    """Else another call would return the same ID."""
    before = [b""]

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        made = msgpack.packb([1, msgid, None, len(server.asked)])
        peer.connection.sendall(made + before[0])
        before[0] = made

    server = script(answer)
    client = connect(server.socket)
    assert [client.next_id() for _ in range(200)] == list(range(1, 201))


def test_timeout_of_the_daemon_tells_the_cause(connect: Any, script: Any) -> None:
    server = script(lambda peer, msgid, *_: peer.error(msgid, "TIMEOUT: no ID in time waited_ms=30000 cause=lease"))
    with pytest.raises(kazahana.RequestTimeoutError) as caught:
        connect(server.socket, timeout=30).next_id()
    assert (caught.value.waited_ms, caught.value.cause) == (30_000, "lease")
    assert server.asked[0][2] == [{"timeout_ms": 30_000}]


def test_shutting_down_is_asked_again_elsewhere(connect: Any, script: Any) -> None:
    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if len(server.peers) < 3:
            peer.error(msgid, "SHUTTING_DOWN: the daemon is stopping: connect again")
        else:
            peer.result(msgid, 7)

    server = script(answer)
    assert connect(server.socket).next_id() == 7
    assert len(server.peers) == 3


def test_lost_connection_is_made_again(connect: Any, script: Any) -> None:
    server = script(
        lambda peer, msgid, *_: peer.close() if len(server.asked) % 2 else peer.result(msgid, len(server.asked))
    )
    client = connect(server.socket)
    assert [client.next_id() for _ in range(3)] == [2, 4, 6]


def test_never_there_fails_soon(connect: Any) -> None:
    started = time.monotonic()
    with pytest.raises(kazahana.DaemonUnavailableError):
        connect("/nowhere/k.sock", timeout=60).next_id()
    assert time.monotonic() - started < 30


def test_what_is_no_daemon(connect: Any, script: Any) -> None:
    server = script(lambda peer, *_: peer.connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with pytest.raises(kazahana.ProtocolError, match="kazahana daemon"):
        connect(server.socket).next_id()


HOSTILE_CALLS = {
    "NextID": lambda client: client.next_id(),
    "NextIDs": lambda client: client.next_ids(2),
    "Inspect": lambda client: client.inspect(1),
    "ToInternal": lambda client: client.to_internal("x"),
    "UUID": lambda client: client.uuid(),
    "Status": lambda client: client.status(),
    "Lock.Acquire": lambda client: client.lock("k").acquire(),
}


@pytest.mark.parametrize(
    "hostile",
    [one for one in hostile_answers() if one["method"] in HOSTILE_CALLS],
    ids=lambda hostile: hostile["name"],
)
def test_hostile_answers(connect: Any, script: Any, hostile: dict[str, Any]) -> None:
    server = script(lambda peer, *_: peer.connection.sendall(bytes.fromhex(hostile["message_hex"])))
    client = connect(server.socket, timeout=60)
    call = HOSTILE_CALLS[hostile["method"]]
    with pytest.raises(kazahana.KazahanaError if hostile.get("any_error") else kazahana.ProtocolError):
        if isinstance(client, Driven) and hostile["method"] == "Lock.Acquire":
            client.loop.run_until_complete(client.client.lock("k").acquire())
        else:
            call(client)


def test_a_deadline_holds_against_a_daemon_that_never_stops_sending(connect: Any, script: Any) -> None:
    def flood(peer: Any, *_: Any) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer.send(2, "Lock.Lost", ["x" * 50_000])

    client = connect(script(flood).socket, timeout=0.1)
    with pytest.raises(kazahana.RequestTimeoutError):
        client.ping()


@pytest.mark.parametrize("begun", ["940101c0c6000fffff", "9302c6000fffff"], ids=["answer", "notification"])
def test_a_deadline_holds_against_a_daemon_that_sends_a_byte_at_a_time(connect: Any, script: Any, begun: str) -> None:
    def trickle(peer: Any, *_: Any) -> None:
        with contextlib.suppress(OSError):
            peer.connection.sendall(bytes.fromhex(begun))
            while True:
                peer.connection.sendall(b"x")
                time.sleep(0.01)

    client = connect(script(trickle).socket, timeout=0.2)
    with pytest.raises(kazahana.RequestTimeoutError):
        client.ping()


def test_a_deadline_holds_where_each_read_brings_something_else(script: Any) -> None:
    class Endless:
        until = time.monotonic() + PATIENCE

        def send(self, data: bytes, flags: int) -> int:
            return len(data)

        def recv(self, size: int) -> bytes:
            assert time.monotonic() < self.until
            return bytes.fromhex("9302a17890")  # a notification

    server = script(lambda peer, msgid, *_: peer.result(msgid, "pong"))
    with kazahana.Client(server.socket) as client:
        assert client.ping() == "pong"
        (connection,) = client._idle
        connection._socket = Endless()  # type: ignore[assignment]
        with pytest.raises(kazahana.RequestTimeoutError):
            client.ping(timeout=0.01)


def test_refusal(connect: Any, script: Any) -> None:
    def refuse(peer: Any, msgid: int, *_: Any) -> None:
        peer.error(msgid, "PERMISSION_DENIED: user 7 may not use this daemon")
        peer.close()

    client = connect(script(refuse).socket)
    for _ in range(2):
        with pytest.raises(kazahana.PermissionDeniedError, match="user 7"):
            client.ping()


def test_close(connect: Any, daemon: Daemon) -> None:
    client = connect(daemon.socket)
    client.ping()
    client.close()
    client.close()
    with pytest.raises(kazahana.ClientClosedError):
        client.ping()


def test_close_leaves_calls_under_way_alone(script: Any) -> None:
    """They end as if the client were open, and their connection with them; none is repeated."""
    held: list[tuple[Any, int]] = []
    server = script(lambda peer, msgid, *_: held.append((peer, msgid)))
    client, got = kazahana.Client(server.socket, timeout=PATIENCE), []

    def ask() -> None:
        try:
            got.append(client.next_id())
        except kazahana.ClientClosedError as error:
            got.append(error.code)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(held) == 2)
    client.close()
    (answered, msgid), (lost, _) = held
    answered.result(msgid, 7)
    assert server.ended[server.peers.index(answered)].wait(PATIENCE)
    lost.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(got, key=str) == [7, "CLIENT_CLOSED"] and len(server.peers) == 2
    assert all(ended.wait(PATIENCE) for ended in server.ended)


def test_a_frozen_daemon_costs_no_memory_for_each_call_that_gave_up(script: Any) -> None:
    server = script(lambda *_: None)

    async def main() -> None:
        async with kazahana.AsyncClient(server.socket) as client:
            kept: list[Any] = []
            for _ in range(3):
                try:
                    await client.next_id(timeout=0.01)
                except kazahana.RequestTimeoutError as error:
                    kept.append(weakref.ref(error))
            await asyncio.sleep(0)  # the loop still holds what it did last
            gc.collect()
            assert [ref() for ref in kept] == [None] * 3  # with all that its traceback holds

    asyncio.run(main())


def test_threads_take_connections_and_put_them_back(daemon: Daemon) -> None:
    with kazahana.Client(daemon.socket) as client:
        before = client.status()["connections"]
        seen: list[list[int]] = []
        threads = [
            threading.Thread(target=lambda: seen.append([client.next_id() for _ in range(300)])) for _ in range(64)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(seen) == 64 and all(one == sorted(one) for one in seen)
        assert len(set().union(*seen)) == 64 * 300
        assert len(client._idle) <= IDLE
        wait_until(lambda: client.status()["connections"] < before + IDLE)


def test_one_call_at_a_time_needs_one_connection(script: Any) -> None:
    server = script(lambda peer, msgid, *_: peer.result(msgid, 7))
    with kazahana.Client(server.socket) as client:
        for _ in range(3):
            thread = threading.Thread(target=client.next_id)
            thread.start()
            thread.join(PATIENCE)
    assert len(server.asked) == 3 and len(server.peers) == 1


def test_one_lost_connection_ends_those_that_are_idle(script: Any) -> None:
    """They lead to the same daemon: a client that does not wait would otherwise fail with the second."""
    held: list[tuple[Any, int]] = []
    server = script(lambda peer, msgid, *_: held.append((peer, msgid)) if len(held) < 3 else peer.result(msgid, 7))
    with kazahana.Client(server.socket, single_attempt=True, timeout=PATIENCE) as client:
        threads = [threading.Thread(target=client.next_id) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(held) == 3)
        for peer, msgid in held:
            peer.result(msgid, 7)
        for thread in threads:
            thread.join(PATIENCE)
        assert len(client._idle) == 3
        for peer in server.peers:
            peer.close()
        assert client.next_id() == 7 and len(server.peers) == 4


def test_no_call_waits_for_another(script: Any) -> None:
    """A daemon that answers nobody: each call has a connection, and ends at its own deadline."""
    held: list[tuple[Any, int]] = []
    server = script(lambda peer, msgid, *_: held.append((peer, msgid)))
    client = kazahana.Client(server.socket, timeout=PATIENCE)
    threads = [threading.Thread(target=client.next_id) for _ in range(2 * IDLE)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(held) == 2 * IDLE)
    with pytest.raises(kazahana.RequestTimeoutError) as caught:
        client.next_id(timeout=0.01)
    assert caught.value.cause == "answer"
    for peer, msgid in held[: 2 * IDLE]:
        peer.result(msgid, 7)
    for thread in threads:
        thread.join(PATIENCE)
    assert len(client._idle) == IDLE  # superfluous connections are closed
    client.close()


def test_interrupted_reader_leaves_no_torn_stream(script: Any) -> None:
    """A signal's exception after the bytes were read: nobody may take what follows for the beginning of an answer."""

    class Interrupted:
        def __init__(self, socket: Any) -> None:
            self.socket = socket

        def recv(self, size: int, flags: int = 0) -> bytes:
            self.socket.recv(4)
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> Any:
            return getattr(self.socket, name)

    server = script(lambda peer, msgid, *_: peer.result(msgid, [7, 8, 9]))
    client = kazahana.Client(server.socket)
    assert client.next_ids(3) == [7, 8, 9]
    (connection,) = client._idle
    connection._socket = Interrupted(connection._socket)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        client.next_ids(3)
    assert connection.broken
    assert client.next_ids(3) == [7, 8, 9]
    assert len(server.peers) == 2
    client.close()


def test_more_than_the_socket_takes(script: Any) -> None:
    """A daemon that does not read for a while: what could not be sent waits, and nobody is stuck."""
    gate = threading.Event()

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        gate.wait(30)
        peer.result(msgid, len(params[0]))

    server = script(answer)
    client = kazahana.Client(server.socket)
    big, got = "x" * 900_000, []
    threads = [
        threading.Thread(target=lambda: got.append(client._perform(kazahana.protocol.Call("Echo", [big], int, 60, {}))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(server.peers) == 8)
    gate.set()
    for thread in threads:
        thread.join(60)
    assert got == [900_000] * 8
    client.close()


def test_what_nobody_receives_is_not_kept(connect: Any, script: Any) -> None:
    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        peer.send(2, "Placement.Event", [{"event": "activated"}])
        peer.result(msgid, "pong")

    client = connect(script(answer).socket)
    assert [client.ping() for _ in range(3)] == ["pong"] * 3


def test_more_than_the_socket_takes_of_tasks(script: Any) -> None:
    gate = threading.Event()

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        gate.wait(30)
        peer.result(msgid, len(params[0]))

    server = script(answer)

    async def main() -> list[int]:
        async with kazahana.AsyncClient(server.socket) as client:
            call = kazahana.protocol.Call("Echo", ["x" * 900_000], int, 60, {})
            asked = [asyncio.ensure_future(client._perform(call)) for _ in range(8)]
            while not any(connection._rest for connection in client._of_loop.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            gate.set()
            return await asyncio.gather(*asked)

    assert asyncio.run(main()) == [900_000] * 8


def test_tasks_share_one_connection(daemon: Daemon) -> None:
    async def main() -> None:
        async with kazahana.AsyncClient(daemon.socket) as client:
            before = (await client.status())["connections"]
            ids = await asyncio.gather(*(client.next_id() for _ in range(500)))
            assert len(set(ids)) == 500
            assert (await client.status())["connections"] == before

    asyncio.run(main())


def test_calls_of_gather_are_all_on_the_wire_before_the_first_answer(script: Any) -> None:
    """The daemon answers nobody until all have asked."""
    asked: list[int] = []

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        asked.append(msgid)
        if len(asked) == 300:
            for number, id in enumerate(asked):
                peer.result(id, number + 1)

    server = script(answer)

    async def main() -> list[int]:
        async with kazahana.AsyncClient(server.socket, timeout=60) as client:
            return await asyncio.gather(*(client.next_id() for _ in range(300)))

    assert asyncio.run(main()) == list(range(1, 301)) and len(server.peers) == 1


@pytest.mark.parametrize("prefetch", [0, 8])
def test_no_lock_is_held_while_an_answer_is_waited_for(connect: Any, script: Any, prefetch: int) -> None:
    """Another green thread that wanted it would stop the loop, and so the answer (gunicorn --preload, gevent)."""
    free: dict[str, bool] = {}

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        inner = getattr(client, "client", client)
        for part in (inner, inner._prefetch, fork):
            for name, lock in vars(part).items():
                if hasattr(lock, "acquire"):
                    free[name] = lock.acquire(blocking=False)
                    if free[name]:
                        lock.release()
        peer.result(msgid, list(range(1, params[0] + 1)) if method == "NextIDs" else 1)

    server = script(answer)
    client = connect(server.socket, prefetch=prefetch)
    assert client.next_id() == 1
    assert free == {"_swap": True, "_lock": True}


def test_single_attempt(connect: Any, script: Any) -> None:
    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if method == "Ping":
            peer.result(msgid, "pong")
        elif method == "NextID" and params[0].get("service") == "stopping":
            peer.error(msgid, "SHUTTING_DOWN: the daemon is stopping")
        else:
            peer.close()

    server = script(answer)
    client = connect(server.socket, single_attempt=True, timeout=60)
    assert client.ping() == "pong"
    with pytest.raises(kazahana.DaemonUnavailableError):
        client.next_id()
    assert client.ping() == "pong"  # a new call makes a new connection
    with pytest.raises(kazahana.ShuttingDownError):
        client.next_id(service="stopping")
    with pytest.raises(kazahana.DaemonUnavailableError):
        connect("/nowhere/k.sock", single_attempt=True, timeout=60).next_id()
    with pytest.raises(kazahana.DaemonUnavailableError):
        connect(server.socket, single_attempt=True, prefetch=8, timeout=60).next_id()
    # Each that failed was tried once more, on a new connection.
    asked = ["Ping", "NextID", "NextID", "Ping", "NextID", "NextID", "NextIDs", "NextIDs"]
    assert [method for _, method, _ in server.asked] == asked and len(server.peers) == 6


def test_a_later_try_is_told_what_time_is_left(connect: Any, script: Any) -> None:
    server = script(lambda peer, msgid, *_: peer.close() if len(server.asked) == 1 else peer.result(msgid, 7))
    assert connect(server.socket, timeout=PATIENCE).next_id() == 7
    first, second = (params[0]["timeout_ms"] for _, _, params in server.asked)
    assert 0 < second < first == PATIENCE * 1000


def test_cancelled_task_harms_nobody(script: Any) -> None:
    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if len(server.asked) > 1:
            peer.result(msgid, 2)

    server = script(answer)

    async def main() -> None:
        async with kazahana.AsyncClient(server.socket) as client:
            task = asyncio.ensure_future(client.next_id())
            while not server.asked:  # noqa: ASYNC110 - by another thread
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await client.next_id() == 2
            server.peers[0].result(1, 99)  # the answer for which no call waits
            assert await client.next_id() == 2

    asyncio.run(main())


def test_answer_in_the_moment_of_cancelling(script: Any) -> None:
    """The future is cancelled, and its task has not run yet."""
    server = script(lambda peer, msgid, method, _: peer.result(msgid, "pong") if method == "Ping" else None)

    async def main() -> None:
        async with kazahana.AsyncClient(server.socket) as client:
            assert await client.ping() == "pong"
            task = asyncio.ensure_future(client.next_id())
            await asyncio.sleep(0)
            (connection,) = client._of_loop.values()
            task.cancel()
            server.peers[0].result(connection._msgid, 8)
            select.select([connection._socket], [], [], 60)
            connection._readable()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await client.ping() == "pong"
            assert len(server.peers) == 1

    asyncio.run(main())


def test_loops_at_the_same_time_have_a_connection_each(script: Any) -> None:
    """The daemon answers the call of the first loop only after that of the second."""
    held: list[tuple[Any, int]] = []

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        held.append((peer, msgid))
        if len(held) == 2:
            for number, (asked, id) in enumerate(reversed(held)):
                asked.result(id, number + 1)

    server = script(answer)
    client = kazahana.AsyncClient(server.socket, timeout=PATIENCE)

    async def main() -> None:
        first = asyncio.ensure_future(client.next_id())
        while not held:  # noqa: ASYNC110 - by another thread
            await asyncio.sleep(0.001)
        assert await asyncio.to_thread(asyncio.run, client.next_id()) == 1
        assert await first == 2
        assert len(server.peers) == 2
        await client.close()

    asyncio.run(main())


def test_one_client_under_several_loops(daemon: Daemon) -> None:
    client = kazahana.AsyncClient(daemon.socket)

    async def ask() -> int:
        return await client.next_id()

    async def last() -> int:
        id = await client.next_id()
        await client.close()
        return id

    loops = [asyncio.new_event_loop() for _ in range(2)]
    ids = [loop.run_until_complete(ask()) for loop in [*loops, *loops]]
    assert set(client._of_loop) == set(loops)
    ids.append(loops[0].run_until_complete(last()))
    assert ids == sorted(set(ids))
    first, second = client._of_loop.values()
    assert first.broken and not second.broken  # which its own loop closes
    loops[1].run_until_complete(asyncio.sleep(0))
    assert second.broken
    for loop in loops:
        loop.close()


def test_connections_of_loops_that_are_closed_are_forgotten(daemon: Daemon) -> None:
    client = kazahana.AsyncClient(daemon.socket)
    ids = [asyncio.run(client.next_id()) for _ in range(5)]
    assert ids == sorted(set(ids)) and len(client._of_loop) == 1


def test_a_lost_connection_is_written_to_once(script: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The loop tells of the loss a turn later; meanwhile, asyncio would log a line for each further write."""
    server = script(lambda peer, msgid, method, _: peer.result(msgid, 42))

    async def main() -> None:
        async with kazahana.AsyncClient(server.socket) as client:
            assert await client.next_id() == 42
            server.peers[0].close()
            server.ended[0].wait(30)
            assert await asyncio.gather(*(client.next_id() for _ in range(50))) == [42] * 50

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == []


def test_sequences(connect: Any, script: Any) -> None:
    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if len(server.asked) == 1:
            peer.close()  # the same request ID is used again, so that no value is lost
        elif method == "Sequence.Next":
            peer.result(msgid, 1001)
        else:
            peer.result(msgid, [1002, 1003, 1004])

    server = script(answer)
    client = connect(server.socket)
    assert client.next_sequence("invoices") == 1001
    assert client.next_sequences("invoices", 3, step=1, timeout=3) == [1002, 1003, 1004]
    (_, first, lost), (_, second, again), (_, batch, params) = server.asked
    assert (first, second, batch) == ("Sequence.Next", "Sequence.Next", "Sequence.NextBatch")
    assert lost == again and again[0] == "invoices" and len(again[1]["request_id"]) == 32
    assert (
        params[:2] == ["invoices", 3] and params[2]["step"] == 1 and params[2]["request_id"] != again[1]["request_id"]
    )


def test_sequences_of_the_daemon(connect: Any, daemon: Daemon) -> None:
    client = connect(daemon.socket)
    assert "sequences" in client.status()["features"]
    key = f"test/{uuid.uuid4()}"
    first = client.next_sequence(key)
    assert client.next_sequences(key, 3)[0] > first
