"""Placement: the core without I/O, and both clients against a scripted daemon."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

import kazahana
import kazahana_placement as placement
from actors import Actors, Watch, keys, place
from harness import Driven, wait_until
from kazahana.protocol import Calls, Reader
from kazahana_placement import core
from kazahana_placement.core import (
    ACTIVATE,
    ANSWER_WITHIN,
    END,
    PASSIVATE,
    ActivationBase,
    LateError,
    Roster,
    TwoWayReader,
    Unasked,
    answer_of,
    response,
    unasked_of,
)

# What a daemon sends, and what it is answered: Activate room/1 with the snapshot "hi" as its request 7.
ACTIVATE_HEX = (
    "940007a841637469766174659185a46b696e64a4726f6f6da86964656e74697479a131a776657273696f6e03a5746f6b656e2a"
    "a8736e617073686f74c4026869"
)  # fmt: skip
PASSIVATE_HEX = (
    "940008a95061737369766174659184a46b696e64a4726f6f6da86964656e74697479a131a776657273696f6e03a5746f6b656e2a"
)


def roster() -> Roster[ActivationBase, str]:
    return Roster(lambda link, *told: ActivationBase(*told))


def asked(method: str, identity: str = "1", token: int = 1, msgid: int = 1, snapshot: bytes | None = None) -> Unasked:
    about = {"kind": "room", "identity": identity, "version": token, "token": token}
    return Unasked(msgid, method, [{**about, "snapshot": snapshot} if method == "Activate" else about])


class Host:
    """A scripted daemon with placement: it registers whoever asks, and tells executors what a test says."""

    def __init__(self) -> None:
        self.executors: list[Any] = []
        self.answers: dict[int, tuple[Any, Any]] = {}  # to what it has asked: error and result
        self.methods: list[str] = []
        self.valid_ms = 60_000
        self.refusal: str | None = None

    def __call__(self, peer: Any, msgid: int, method: Any, params: Any) -> None:
        if not isinstance(method, str):  # an answer
            self.answers[msgid] = (method, params)
            return
        self.methods.append(method)
        if self.refusal is not None:
            peer.error(msgid, self.refusal)
        elif method == "Placement.Register":
            self.executors.append(peer)
            peer.result(msgid, {"authority": "a:1", "ttl_ms": 10_000, "kinds": params[0]})
        elif method == "Placement.Check" and self.valid_ms >= 0:
            peer.result(msgid, {"valid_ms": self.valid_ms})
        elif method in ("Placement.Watch", "Placement.Unregister"):
            peer.result(msgid, {"authority": "a:1", "state": "member", "passivated": 0})

    def ask(self, msgid: int, method: str, identity: str = "1", token: int = 1) -> None:
        unasked = asked(method, identity, token)
        self.executors[-1].send(0, msgid, method, unasked.params)


@pytest.fixture
def host() -> Host:
    return Host()


def test_recorded_requests() -> None:
    """However the bytes are cut, the daemon's requests are read, and the answers are these bytes."""
    data = bytes.fromhex(ACTIVATE_HEX + PASSIVATE_HEX)
    for at in range(1, len(data)):
        reader = TwoWayReader()
        first, second = map(unasked_of, reader.feed(data[:at]) + reader.feed(data[at:]))
    assert first is not None and second is not None
    assert (first.msgid, first.method) == (7, "Activate") and (second.msgid, second.method) == (8, "Passivate")
    assert first.params == [{"kind": "room", "identity": "1", "version": 3, "token": 42, "snapshot": b"hi"}]

    actors = roster()
    answers, work = actors.take("link", first, 0.0)
    assert answers == [] and work is not None and work.doing == ACTIVATE and work.activation.snapshot == b"hi"
    answers, following = actors.finish(work, answer_of(ACTIVATE, "actor-1"), None)
    assert answers == [("link", bytes.fromhex("940107c081a3706964a76163746f722d31"))] and following is None
    assert keys(actors.live.values()) == ["room/1"]
    answers, work = actors.take("link", second, 0.0)
    assert answers == [] and work is not None and work.doing == PASSIVATE and not work.activation.ended
    answers, following = actors.finish(work, answer_of(PASSIVATE, b"bye"), None)
    assert answers == [("link", bytes.fromhex("940108c081a8736e617073686f74c403627965"))] and following is None
    assert not actors.live and work.activation.ended


def test_only_a_registered_connection_is_asked() -> None:
    with pytest.raises(kazahana.ProtocolError):
        Reader().feed(bytes.fromhex(ACTIVATE_HEX))


def test_what_nobody_knows_is_answered_at_once() -> None:
    actors = roster()
    (answer,), work = actors.take("link", asked("Passivate", msgid=9), 0.0)
    assert msgpack.unpackb(answer[1]) == [1, 9, None, {"snapshot": None}] and work is None
    (answer,), work = actors.take("link", Unasked(3, "Explode", []), 0.0)
    assert msgpack.unpackb(answer[1])[2][1].startswith("UNKNOWN_METHOD:") and work is None
    assert actors.take("link", Unasked(None, "Activate", []), 0.0) == ([], None)
    for params in ([], [7], [{"kind": "room"}], None, [{"kind": [], "identity": 1, "version": 1, "token": 1}]):
        with pytest.raises(kazahana.ProtocolError):
            actors.take("link", Unasked(1, "Activate", params), 0.0)
    assert not actors._queues


def test_requests_of_one_actor_in_their_order() -> None:
    actors = roster()
    _, first = actors.take("link", asked("Activate", msgid=1), 0.0)
    assert first is not None
    assert actors.take("link", asked("Passivate", msgid=2), 0.0) == ([], None)
    assert actors.take("link", asked("Activate", token=2, msgid=3), 0.0) == ([], None)
    _, other = actors.take("link", asked("Activate", identity="2", msgid=4), 0.0)
    assert other is not None and other.activation.identity == "2"  # another actor does not wait
    doing = []
    following: Any = first
    while following is not None:
        doing.append((following.doing, following.activation.token))
        _, following = actors.finish(following, answer_of(following.doing, None), None)
    assert doing == [(ACTIVATE, 1), (PASSIVATE, 1), (ACTIVATE, 2)]


def test_no_activation_begins_when_its_answer_would_be_late() -> None:
    """The daemon has given it up: it sends a Passivate, and another host may have the actor by then."""
    actors = roster()
    _, work = actors.take("link", asked("Activate", msgid=1), 100.0)
    assert work is not None
    work.begin(99.9 + ANSWER_WITHIN)
    with pytest.raises(LateError) as caught:
        work.begin(100.0 + ANSWER_WITHIN)
    (answer,), _ = actors.finish(work, None, caught.value)
    assert msgpack.unpackb(answer[1])[2][1].startswith("LateError: ") and not actors.live
    (answer,), nothing = actors.take("link", asked("Passivate", msgid=2), 105.0)
    assert nothing is None and msgpack.unpackb(answer[1]) == [1, 2, None, {"snapshot": None}]
    _, work = actors.take("link", asked("Activate", token=2, msgid=3), 106.0)
    assert work is not None
    actors.finish(work, answer_of(ACTIVATE, None), None)
    _, work = actors.take("link", asked("Passivate", token=2, msgid=4), 107.0)
    assert work is not None
    work.begin(1000.0)  # an actor that is activated must end, however late


def test_workers_begin_nothing_late(script: Any, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a process that is asked for more than it can do would do nothing but what nobody waits for any more."""
    with kazahana.Client(script(host).socket) as client:
        actors = Actors(client, workers=1)
        host.ask(1, "Activate", "slow")
        wait_until(lambda: actors.told)
        monkeypatch.setattr(core, "ANSWER_WITHIN", 0.0)
        host.ask(2, "Activate", "2", 2)
        actors.gate.set()
        wait_until(lambda: 2 in host.answers)
        assert host.answers[2][0][1].startswith("LateError") and actors.of("2") == []
        actors.close()


def test_a_stale_passivate_ends_nothing_newer() -> None:
    actors = roster()
    _, work = actors.take("link", asked("Activate", token=5), 0.0)
    assert work is not None
    actors.finish(work, answer_of(ACTIVATE, None), None)
    answers, nothing = actors.take("link", asked("Passivate", token=4), 0.0)
    assert nothing is None and len(answers) == 1 and keys(actors.live.values()) == ["room/1"]
    assert actors.take("link", asked("Passivate", token=5), 0.0)[1] is not None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=200), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_roster_keeps_its_rules(actions: list[tuple[int, int]], random: Any) -> None:
    """A model: a daemon that asks in any order, callbacks that end in any order, or fail, connections that end.

    Of each actor one callback runs at a time; what was activated is ended exactly once; every request of a
    connection that lives on is answered exactly once.
    """
    actors, link, token = roster(), 0, 0
    running: dict[str, Any] = {}
    active: dict[str, ActivationBase] = {}  # activated, and not ended yet
    unanswered: set[int] = set()

    def begin(work: Any) -> None:
        if work is not None:
            assert work.activation.identity not in running
            assert work.doing == END or work.link == link  # nothing is begun for a connection that is gone
            running[work.activation.identity] = work

    def sent(answers: list[tuple[int, bytes]]) -> None:
        for to, data in answers:
            if to == link:
                unanswered.remove(msgpack.unpackb(data)[1])

    def finish(identity: str, fails: bool, returned: bool = True) -> None:
        work = running.pop(identity)
        work.returned = returned
        if work.doing == ACTIVATE and returned:  # with a pid that is wrong, if it fails
            assert identity not in active
            active[identity] = work.activation
        elif work.doing != ACTIVATE:
            assert active.pop(identity) is work.activation
        error = RuntimeError("no") if fails else None
        answers, following = actors.finish(work, None if fails else answer_of(work.doing, None), error)
        sent(answers)
        begin(following)

    for action, which in actions:
        identity = "abc"[which]
        if action < 3:
            token += 1
            unanswered.add(token)
            method = "Activate" if action < 2 else "Passivate"
            answers, work = actors.take(link, asked(method, identity, token, token), 0.0)
            sent(answers)
            begin(work)
        elif action == 3 and identity in running:
            fails = random.random() < 0.3
            finish(identity, fails, returned=not fails or random.random() < 0.5)
        elif action == 4 and random.random() < 0.3:
            for work in actors.end():
                begin(work)
            link, unanswered = link + 1, set()
            assert not actors.live
    while running:
        finish(random.choice(sorted(running)), fails=False)
    assert not unanswered and not actors._queues
    assert active == {identity: one for (_, identity), one in actors.live.items()}
    assert not any(one.ended for one in active.values())


def test_answers_have_limits() -> None:
    assert answer_of(ACTIVATE, None) == {"pid": str(os.getpid())}
    assert answer_of(ACTIVATE, "é" * 128) == {"pid": "é" * 128}
    assert answer_of(PASSIVATE, None) == {"snapshot": None} and answer_of(END, "anything") is None
    assert len(answer_of(PASSIVATE, bytes(1 << 16))["snapshot"]) == 65_536
    for doing, wrong in (
        (ACTIVATE, "é" * 129),
        (ACTIVATE, ""),
        (ACTIVATE, 7),
        (PASSIVATE, bytes((1 << 16) + 1)),
        (PASSIVATE, "text"),
    ):
        with pytest.raises(ValueError, match="returned"):
            answer_of(doing, wrong)
    assert msgpack.unpackb(response(1, "\udc80", None)) == [1, 1, [0, "?"], None]


def test_an_answer_covers_from_before_the_question() -> None:
    activation = ActivationBase("room", "1", 1, 1, None)
    assert not activation.covered(100.0)
    activation.cover(asked=100.0, valid_ms=1500)
    assert activation.covered(101.4) and not activation.covered(101.5)
    activation.end("passivated")
    with pytest.raises(placement.ActivationEndedError) as caught:
        activation.covered(100.1)
    assert caught.value.reason == "passivated"


def test_events_are_read() -> None:
    about = {
        "event": "activated", "kind": "room", "identity": "1", "authority": "a:1", "pid": "7", "version": 1, "token": 9,
        "reason": "", "observed_ms": 1_800_000_000_000, "new": True,
    }  # fmt: skip
    event = core.event_of(Unasked(None, "Placement.Event", [about]))
    assert event is not None and (event.event, event.token) == ("activated", 9)
    assert core.event_of(Unasked(None, "Something.Else", [])) is None
    with pytest.raises(kazahana.ProtocolError):
        core.event_of(Unasked(None, "Placement.Event", [{"event": "activated"}]))
    with pytest.raises(placement.WatchEndedError) as caught:
        core.event_of(Unasked(None, "Placement.WatchEnded", [{"reason": "too_slow"}]))
    assert caught.value.reason == "too_slow"


def test_the_daemon_asks(connect: Any, script: Any, host: Host, caplog: pytest.LogCaptureFixture) -> None:
    actors = Actors(connect(script(host).socket), ["room", "table"])
    host.ask(500, "Activate")
    actors.until(lambda: 500 in host.answers)
    assert host.answers[500] == (None, {"pid": str(os.getpid())}) and keys(actors.executor.activations) == ["room/1"]
    host.ask(501, "Activate", "bad one", 2)
    actors.until(lambda: 501 in host.answers)
    assert host.answers[501] == ([0, "RuntimeError: room/bad one does not want to activate"], None)
    host.ask(502, "Passivate")
    host.ask(503, "Passivate")
    actors.until(lambda: 503 in host.answers)
    assert (host.answers[502], host.answers[503]) == ((None, {"snapshot": b"1"}), (None, {"snapshot": None}))
    assert actors.executor.activations == [] and actors.seen[0].ended
    actors.left = "no bytes"
    host.ask(504, "Activate", "2", 3)
    host.ask(505, "Passivate", "2", 3)
    actors.until(lambda: 505 in host.answers)
    assert "passivate returned 'no bytes'" in host.answers[505][0][1]
    assert actors.of("2") == ["activate", "passivate"] and actors.executor.activations == []
    actors.close()
    actors.close()
    assert host.methods == ["Placement.Register", "Placement.Unregister"]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and said[0].startswith("could not activate room/bad one: ")
    assert said[1].startswith("could not passivate room/2: passivate returned 'no bytes'")


def test_different_actors_at_the_same_time(connect: Any, script: Any, host: Host) -> None:
    actors = Actors(connect(script(host).socket))
    host.ask(1, "Activate", "slow")
    host.ask(2, "Passivate", "slow")
    host.ask(3, "Activate", "quick")
    actors.until(lambda: 3 in host.answers and actors.of("slow"))  # two workers: either may be first
    assert 1 not in host.answers and 2 not in host.answers and actors.of("slow") == ["activate"]
    actors.gate.set()
    actors.until(lambda: 2 in host.answers)
    assert actors.of("slow") == ["activate", "passivate"]
    actors.close()


def test_a_lost_connection_ends_activations(connect: Any, script: Any, host: Host) -> None:
    server = script(host)
    actors = Actors(connect(server.socket))
    for number, identity in enumerate(["1", "2", "slow"]):
        host.ask(number, "Activate", identity)
    actors.until(lambda: 0 in host.answers and 1 in host.answers and actors.of("slow"))
    actors.check(0)
    host.executors[-1].close()
    actors.until(lambda: len(host.executors) == 2)  # it registers again
    host.ask(9, "Activate", "slow", 2)
    actors.until(lambda: actors.of("1")[-1] == actors.of("2")[-1] == "ended")
    assert actors.executor.activations == [] and all(one.ended for one in actors.seen)
    with pytest.raises(placement.ActivationEndedError) as caught:
        actors.check(0)  # although the daemon's last answer would still cover it
    assert caught.value.reason == "disconnected"
    actors.gate.set()
    actors.until(lambda: 9 in host.answers)
    assert actors.of("slow") == ["activate", "ended", "activate"]  # it had begun, and nobody else would end it
    assert len(actors.executor.activations) == 1 and 2 not in host.answers
    actors.close()
    assert actors.of("slow")[3:] == ["ended"]  # this daemon passivates nothing


def test_a_request_that_makes_no_sense(connect: Any, script: Any, host: Host) -> None:
    server = script(host)
    actors = Actors(connect(server.socket))
    host.ask(1, "Activate")
    actors.until(lambda: 1 in host.answers)
    host.executors[-1].send(0, 2, "Activate", [{"kind": "room"}])
    actors.until(lambda: len(host.executors) == 2 and server.ended[0].is_set())
    actors.until(lambda: actors.of("1") == ["activate", "ended"])
    actors.close()


def test_it_registers_when_the_daemon_is_willing(
    connect: Any, script: Any, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    server = script(host)
    actors = Actors(connect(server.socket))
    host.refusal = "PLACEMENT_NOT_READY: placement is off state=off"
    host.executors[-1].close()
    actors.until(lambda: len(host.methods) >= 5)
    host.refusal = None
    actors.until(lambda: len(host.executors) == 2)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1 and said[0].endswith("placement is off")
    host.refusal = "PLACEMENT_NOT_READY: placement is off state=off"
    host.executors[-1].close()
    actors.until(lambda: host.methods[-1] == "Placement.Register" and len(host.methods) > 6)
    actors.close()


def test_refused_at_once(connect: Any, script: Any, host: Host) -> None:
    host.refusal = "PLACEMENT_NOT_READY: placement is off state=off"
    server = script(host)
    client = connect(server.socket)
    with pytest.raises(placement.PlacementNotReadyError) as caught:
        Actors(client)
    assert caught.value.state == "off"
    assert server.ended[0].wait(30)
    if not isinstance(client, Driven):
        assert [one for one in threading.enumerate() if one.name.startswith("kazahana")] == []
        with pytest.raises(kazahana.InvalidParamsError):
            place(client).register("room", lambda _: None, lambda _: None, workers=0)


def test_check(connect: Any, script: Any, host: Host) -> None:
    actors = Actors(connect(script(host).socket))
    host.ask(1, "Activate", "1", 7)
    actors.until(lambda: 1 in host.answers)

    def questions() -> int:
        return host.methods.count("Placement.Check")

    actors.check()
    actors.check()
    assert questions() == 1  # the answer covers the second
    actors.seen[0]._until = 0.0
    actors.check()
    assert questions() == 2
    actors.seen[0]._until = 0.0
    host.refusal = "OVERLOADED: too many requests"
    with pytest.raises(kazahana.OverloadedError):  # which says nothing of the activation
        actors.check()
    host.refusal = None
    for valid_ms, timeout in ((0, None), (-1, 0.05)):  # an answer that is over when it arrives, and none at all
        host.valid_ms, before = valid_ms, questions()
        with pytest.raises(placement.ActivationEndedError) as caught:
            actors.check(timeout=timeout)
        assert caught.value.reason == "unanswered" and questions() <= before + core.CHECKS
    host.valid_ms = 60_000
    actors.check()
    host.ask(2, "Passivate", "1", 7)
    actors.until(lambda: 2 in host.answers)
    with pytest.raises(placement.ActivationEndedError) as caught:
        actors.check()  # although the last answer would still cover it
    assert caught.value.reason == "passivated"

    host.ask(3, "Activate", "2", 8)
    actors.until(lambda: 3 in host.answers)
    host.refusal = "ACTIVATION_ENDED: there is no such activation"
    before = questions()
    for _ in range(3):
        with pytest.raises(placement.ActivationEndedError) as caught:
            actors.check()
        assert caught.value.reason == "refused"
    assert questions() == before + 1 and actors.seen[1].ended  # that is final
    actors.close()


def test_close_is_bounded(connect: Any, script: Any, host: Host) -> None:
    server = script(host)
    actors = Actors(connect(server.socket))
    host.ask(1, "Activate", "slow")
    actors.until(lambda: actors.told)
    actors.executor._calls.timeout = 0.1  # only now: registering may take longer
    started = time.monotonic()
    actors.close()
    assert time.monotonic() - started < 30
    assert server.ended[0].wait(30) and 1 not in host.answers
    actors.gate.set()
    actors.until(lambda: actors.of("slow") == ["activate", "ended"])


def event(number: int, what: str = "activated") -> dict[str, Any]:
    return {
        "event": what, "kind": "room", "identity": str(number), "authority": "a:1", "pid": "7", "version": 1,
        "token": number, "reason": "", "observed_ms": number,
    }  # fmt: skip


def test_events_and_their_end(connect: Any, script: Any, host: Host) -> None:
    server = script(host)
    client = connect(server.socket)
    watch = Watch(client, ["activated"])
    assert server.asked[0][1:] == ("Placement.Watch", [{"events": ["activated"]}])
    for number in range(100):
        server.peers[0].send(2, "Placement.Event", [event(number)])
    server.peers[0].send(2, "Placement.WatchEnded", [{"reason": "too_slow"}])
    assert [watch.next().token for _ in range(100)] == list(range(100))
    with pytest.raises(placement.WatchEndedError) as caught:
        watch.next()
    assert caught.value.reason == "too_slow"
    assert watch.rest() == [] and server.ended[0].wait(30)


def test_a_lost_connection_is_a_gap(connect: Any, script: Any, host: Host) -> None:
    server = script(host)
    watch = Watch(connect(server.socket))
    server.peers[0].send(2, "Placement.Event", [event(1)])
    server.peers[0].close()
    assert watch.next().identity == "1"
    with pytest.raises(placement.WatchEndedError) as caught:
        watch.next()
    assert caught.value.reason == "disconnected" and isinstance(caught.value.__cause__, kazahana.DaemonUnavailableError)
    assert watch.rest() == [] and len(server.peers) == 1


def test_events_are_closed(connect: Any, script: Any, host: Host) -> None:
    server = script(host)
    watch = Watch(connect(server.socket))
    watch.close()
    assert watch.rest() == [] and server.ended[0].wait(30)


def test_close_ends_a_thread_that_waits_for_events(script: Any, host: Host) -> None:
    with kazahana.Client(script(host).socket) as client, place(client).events() as events:
        got: list[list[Any]] = []
        thread = threading.Thread(target=lambda: got.append(list(events)))
        thread.start()
        events.close()
        thread.join(30)
        assert got == [[]]


def test_a_task_that_gave_up_waiting_loses_no_event(script: Any, host: Host) -> None:
    server = script(host)

    async def main() -> None:
        async with kazahana.AsyncClient(server.socket) as client, place(client).events() as events:
            for number in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(events.__anext__(), 0.01)
                server.peers[0].send(2, "Placement.Event", [event(number)])
                assert (await events.__anext__()).token == number

    asyncio.run(main())


def test_events_nobody_takes_stay_with_the_daemon(script: Any, host: Host) -> None:
    """It notices, and ends the watch; a client that took them all would need any amount of memory."""
    server = script(host)

    async def main() -> None:
        async with kazahana.AsyncClient(server.socket) as client, place(client).events() as events:
            sender = threading.Thread(
                target=lambda: [server.peers[0].send(2, "Placement.Event", [event(number)]) for number in range(8_000)]
            )
            sender.start()
            link = events._link
            assert link is not None
            deadline = time.monotonic() + 60
            while not link.paused:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            assert sender.is_alive() and len(link._inbox) < 5_000
            assert [(await events.__anext__()).token for _ in range(8_000)] == list(range(8_000))
            sender.join(30)

    asyncio.run(main())


def test_resolve(connect: Any, script: Any) -> None:
    resolution = {
        "kind": "room", "identity": "1", "authority": "a:1", "locality": "remote", "pid": "", "version": 0, "token": 0,
        "observed_ms": 1_800_000_000_000,
    }  # fmt: skip
    server = script(lambda peer, msgid, *_: peer.result(msgid, resolution) if len(server.asked) > 1 else peer.close())
    client = connect(server.socket, timeout=30)
    found = place(client).resolve("room", "1", wait=2.5)
    assert found == placement.Resolution(**resolution) and not found.is_local
    assert [params for _, _, params in server.asked] == [["room", "1", {"wait_ms": 2500}]] * 2  # over a restart
    assert core.resolve(Calls(None, timeout=2.0), "room", "1", wait=600).timeout == 602
    for wait in (-1, float("nan"), 1e9):
        with pytest.raises(kazahana.InvalidParamsError):
            place(client).resolve("room", "1", wait=wait)


@pytest.mark.parametrize(
    ("text", "kind", "facts"),
    [
        ("PLACEMENT_NOT_READY: x state=client", placement.PlacementNotReadyError, {"state": "client"}),
        ('PLACEMENT_PENDING: x cause="a b"', placement.PlacementPendingError, {"cause": "a b"}),
        ('ACTIVATION_FAILED: x cause="a b"', placement.ActivationFailedError, {"cause": "a b"}),
        ("LOCK_HELD: x owner=b:1 retry_after_ms=5", kazahana.LockHeldError, {"owner": "b:1", "retry_after_ms": 5}),
        ("OVERLOADED: x", kazahana.OverloadedError, {}),
    ],
)
def test_errors_of_resolve(connect: Any, script: Any, text: str, kind: Any, facts: dict[str, Any]) -> None:
    server = script(lambda peer, msgid, *_: peer.error(msgid, text))
    with pytest.raises(kind) as caught:
        place(connect(server.socket)).resolve("room", "1")
    assert {name: getattr(caught.value, name) for name in facts} == facts
