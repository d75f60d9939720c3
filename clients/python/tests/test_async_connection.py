"""Connections for asyncio, against a scripted daemon that does not read, or that turns clients away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import kazahana
from harness import PATIENCE
from kazahana.clock import monotonic
from kazahana.protocol import Call

LARGE = 100_000


def echo(timeout: float) -> Call[int]:
    return Call("Echo", ["x" * LARGE], int, timeout, {})


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


def test_requests_that_cannot_be_sent_are_not_kept(script: Any, gate: threading.Event) -> None:
    """A daemon that is frozen reads nothing, while calls are made, and fail, without end."""

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        gate.wait(PATIENCE)
        peer.result(msgid, len(params[0]))

    server = script(answer)

    async def main() -> None:
        async with kazahana.AsyncClient(server.socket) as client:
            for _ in range(5):
                failed = await asyncio.gather(*(client._perform(echo(0.1)) for _ in range(20)), return_exceptions=True)
                assert {type(one) for one in failed} == {kazahana.RequestTimeoutError}
            (connection,) = client._of_loop.values()
            assert len(connection._rest) < 25 * LARGE and not connection._unsent and not connection._waiting
            asked = [asyncio.ensure_future(client._perform(echo(PATIENCE))) for _ in range(20)]
            await asyncio.sleep(0)
            gate.set()
            assert await asyncio.gather(*asked) == [LARGE] * 20
            assert len(server.peers) == 1

    asyncio.run(main())


def test_each_call_ends_at_its_own_deadline(script: Any, gate: threading.Event) -> None:
    """They share an alarm, which has to ring earlier for a call that may take less time, and again for the others."""
    server = script(lambda *_: gate.wait(PATIENCE))

    async def call(client: kazahana.AsyncClient, timeout: float) -> None:
        began = monotonic()
        with pytest.raises(kazahana.RequestTimeoutError):
            await client.ping(timeout=timeout)
        assert monotonic() - began >= timeout

    async def main() -> None:
        async with kazahana.AsyncClient(server.socket) as client:
            long = asyncio.ensure_future(call(client, 2 * PATIENCE))
            await asyncio.sleep(0)
            await asyncio.wait_for(asyncio.gather(call(client, 0.1), call(client, 0.2)), PATIENCE)
            long.cancel()

    asyncio.run(main())


def test_requests_that_were_not_sent_are_repeated_on_another_connection(script: Any, gate: threading.Event) -> None:
    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if len(server.peers) == 1:
            gate.wait(PATIENCE)
            peer.close()
        else:
            peer.result(msgid, len(params[0]))

    server = script(answer)

    async def main() -> None:
        async with kazahana.AsyncClient(server.socket) as client:
            asked = [asyncio.ensure_future(client._perform(echo(PATIENCE))) for _ in range(30)]
            while not any(connection._rest for connection in client._of_loop.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            gate.set()
            assert await asyncio.gather(*asked) == [LARGE] * 30

    asyncio.run(main())


@pytest.mark.parametrize("text", ["OVERLOADED: too many connections", "PERMISSION_DENIED: not you"])
def test_a_daemon_that_turns_a_client_away(script: Any, text: str) -> None:
    """It answers the first request, and closes: there is no use in asking again for the others."""

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        peer.error(msgid, text)
        peer.close()

    server = script(answer)

    async def main() -> list[Any]:
        async with kazahana.AsyncClient(server.socket, timeout=3) as client:
            return await asyncio.gather(*(client.next_id() for _ in range(20)), return_exceptions=True)

    code = text.partition(":")[0]
    failed = asyncio.run(main())
    assert [error.code for error in failed] == [code] * 20 and len(set(map(id, failed))) == 20
    assert len(server.peers) == 1


def test_a_refusal_that_was_not_the_last_word(script: Any) -> None:
    """One call was too much; the end of the connection has another cause, and the others are repeated."""
    refused: list[int] = []

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if method == "Ping":
            peer.result(msgid, "pong")
        elif len(server.peers) > 1:
            peer.result(msgid, 7)
        elif refused:
            peer.result(refused.pop(), 5)
            peer.close()
        else:
            peer.error(msgid, "OVERLOADED: too many requests")
            refused.append(msgid + 1)

    server = script(answer)

    async def main() -> list[Any]:
        async with kazahana.AsyncClient(server.socket, timeout=PATIENCE) as client:
            await client.ping()
            return await asyncio.gather(*(client.next_id() for _ in range(3)), return_exceptions=True)

    first, *others = asyncio.run(main())
    assert isinstance(first, kazahana.OverloadedError) and others == [5, 7]
