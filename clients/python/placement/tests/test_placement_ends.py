"""How activations and events end: both clients against a scripted daemon."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import kazahana
import kazahana_placement as placement
from actors import Actors, place
from harness import PATIENCE
from kazahana.errors import closed
from kazahana_placement import threads
from test_placement import Host, event


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.mark.parametrize("pid", [7, "", "x" * 257, "\udc80"])
def test_an_actor_whose_pid_is_wrong_is_ended(connect: Any, script: Any, host: Host, pid: Any) -> None:
    """It runs, and the daemon will not passivate what it believes to have failed."""
    actors = Actors(connect(script(host).socket))
    actors.pid = pid
    host.ask(1, "Activate")
    actors.until(lambda: 1 in host.answers and actors.of("1") == ["activate", "ended"])
    assert host.answers[1][0] is not None and actors.executor.activations == []
    with pytest.raises(placement.ActivationEndedError) as caught:
        actors.check()
    assert caught.value.reason == "failed"
    actors.pid = None
    host.ask(2, "Activate", "1", 2)
    actors.until(lambda: 2 in host.answers)
    assert host.answers[2][0] is None
    actors.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is set, executors for threads go no further than to the end of their connection."""
    made, close = threading.Event(), threads.Link.close
    monkeypatch.setattr(threads.Link, "close", lambda self: (made.wait(PATIENCE), close(self)))
    yield made
    made.set()


@pytest.mark.parametrize("is_new", [False, True])
def test_a_promise_ends_with_its_connection(
    connect: Any, script: Any, host: Host, gate: threading.Event, is_new: bool
) -> None:
    """From then on the daemon may let another host act, whatever it has promised."""
    actors = Actors(connect(script(host).socket))
    host.ask(1, "Activate")
    actors.until(lambda: 1 in host.answers)
    activation = actors.seen[0]
    link, call = activation._link, activation._link.call

    def call_and_lose(*args: Any) -> Any:
        result = call(*args)
        link.fail(closed())
        return result

    async def call_and_lose_async(*args: Any) -> Any:
        result = await call(*args)
        link.fail(closed())
        return result

    async def lose_and_check() -> None:
        link.fail(closed())
        await activation.check()

    if is_new:
        link.call = call_and_lose if actors.loop is None else call_and_lose_async
    else:
        actors.check()
    with pytest.raises(placement.ActivationEndedError) as caught:
        if is_new:
            actors.check()
        elif actors.loop is not None:
            actors.run(lose_and_check())
        else:
            link.fail(closed())
            actors.check()
    assert caught.value.reason == "disconnected" and activation.ended
    gate.set()
    actors.until(lambda: actors.of("1") == ["activate", "ended"])
    actors.close()


def test_a_task_that_gave_up_on_the_first_event_can_wait_again(script: Any, host: Host) -> None:
    """Events that end without an error would look complete."""

    def answer(peer: Any, msgid: int, method: str, params: list[Any]) -> None:
        if len(server.peers) > 1:
            host(peer, msgid, method, params)
            peer.send(2, "Placement.Event", [event(5)])

    server = script(answer)

    async def main() -> None:
        async with kazahana.AsyncClient(server.socket) as client:
            events = place(client).events()
            first = asyncio.ensure_future(events.__anext__())
            while not server.asked:  # noqa: ASYNC110 - by another thread
                await asyncio.sleep(0.001)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            async for one in events:
                assert one.token == 5
                break
            else:
                raise AssertionError("the events ended")
            await events.close()
            assert [one async for one in events] == []

    asyncio.run(main())
    assert server.ended[0].wait(PATIENCE) and server.ended[1].wait(PATIENCE)
