from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgpack
import pytest
from conftest import Daemon, exchanges, hostile_answers
from hypothesis import given, settings, strategies as st

import kazahana
from kazahana import InvalidParamsError, ProtocolError, ShuttingDownError
from kazahana.calls import Calls
from kazahana.errors import KazahanaError
from kazahana.locks import _acquire
from kazahana.placement.core import resolve
from kazahana.protocol import MAX_RESPONSE, Call, Retry, Session, lost

EXCHANGES = exchanges()


def call(method: str = "Ping", *params: Any, **options: Any) -> Call[Any]:
    return Call(method, params, lambda value: value, 1.0, options)


def named(exchange: dict[str, Any]) -> str:
    return str(exchange["name"])


@pytest.mark.parametrize("exchange", EXCHANGES, ids=named)
def test_golden_exchange(exchange: dict[str, Any]) -> None:
    """The bytes of the file are read as the file says, and what is sent means what they mean."""
    params = exchange["params"]
    options = params[-1] if params and isinstance(params[-1], dict) else {}
    session: Session[str] = Session()
    sent = session.request(call(exchange["method"], *(params[:-1] if options else params), **options), "me")
    request = msgpack.unpackb(bytes.fromhex(exchange["request_hex"]))
    assert msgpack.unpackb(sent) == [0, msgpack.unpackb(sent)[1], *request[2:]]

    session.waiting = {request[1]: "me"}
    response = bytes.fromhex(exchange["response_hex"])
    if request[1] == 0 and "error" in exchange:
        return
    for at in range(1, len(response)):  # whole at the end, however it is cut
        again: Session[str] = Session()
        again.waiting = {request[1]: "me"}
        assert again.feed(response[:at]) == []
        assert len(again.feed(response[at:])) == 1
    ((waiter, error, result),) = session.feed(response)
    assert waiter == "me"
    if "error" in exchange:
        expected = exchange["error"]
        assert error is not None and result is None
        assert (error.code, error.message) == (expected["code"], expected["message"])
        assert {name: str(value) for name, value in error.details.items()} == expected["details"]
        assert type(error) is not KazahanaError
    else:
        assert error is None and result == exchange["result"]


def test_every_method_is_recorded(daemon: Daemon) -> None:
    """When the daemon learns a method, clients/record has to."""
    with kazahana.Client(daemon.socket) as client, pytest.raises(kazahana.UnknownMethodError) as caught:
        client._channel.perform(call("NoSuchMethod"))
    methods = caught.value.message.partition("there are ")[2].split(", ")
    assert len(methods) >= 17
    assert set(methods) == {one["method"] for one in EXCHANGES if one["recorded"] and "result" in one}


def reply(msgid: int, value: Any) -> bytes:
    return bytes(msgpack.packb([1, msgid, None, value]))


@given(st.lists(st.integers(0, 5), max_size=400), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_answers_find_whoever_waits(gaps: list[int], random: Any) -> None:
    """A model: requests and answers in any order, cut anywhere."""
    session: Session[object] = Session()
    waiting: dict[int, tuple[object, int]] = {}
    buffer, got, expected = b"", [], []
    for number, action in enumerate(gaps):
        if action < 3 or not waiting:
            waiter = object()
            data = session.request(call(), waiter)
            msgid = msgpack.unpackb(data)[1]
            assert msgid not in waiting and msgid != 0
            waiting[msgid] = (waiter, number)
        else:
            msgid = random.choice(list(waiting))
            value = random.choice([number, 1 << 62, "text", [1, 2], {"a": None}])
            buffer += reply(msgid, value)
            expected.append((waiting.pop(msgid)[0], None, value))
            cut = random.randint(0, len(buffer))
            got += session.feed(buffer[:cut]) if cut else []
            buffer = buffer[cut:]
    got += session.feed(buffer) if buffer else []
    assert got == expected


def test_msgids_are_not_used_twice_at_a_time() -> None:
    session: Session[int] = Session()
    sent = [msgpack.unpackb(session.request(call(), i))[1] for i in range(1000)]
    assert len(set(sent)) == 1000
    assert session.feed(reply(sent[500], "x")) == [(500, None, "x")]
    assert session.feed(reply(sent[500], "y")) == []  # nobody waits for that any more


def test_part_of_an_answer_is_not_taken_for_one() -> None:
    """Thirteen bytes that read as the answer to NextID may be the middle of another."""
    session: Session[str] = Session()
    first = msgpack.unpackb(session.request(call(), "first"))[1]
    second = msgpack.unpackb(session.request(call(), "second"))[1]
    inner = reply(second, 1 << 62)
    whole = reply(first, inner + b"end")
    at = whole.index(inner)
    assert len(inner) == 13
    assert session.feed(whole[:at]) == session.feed(inner) == []
    assert session.feed(whole[at + 13 :]) == [("first", None, inner + b"end")]


CORPUS = [bytes.fromhex(one["message_hex"]) for one in hostile_answers()]
CORPUS += [bytes.fromhex(one["response_hex"]) for one in EXCHANGES]


@given(
    st.lists(st.one_of(st.sampled_from(CORPUS), st.binary(max_size=50)), min_size=1, max_size=3).map(b"".join),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=6),
    st.integers(0),
)
@settings(max_examples=1000, derandomize=True)
def test_any_bytes_are_answers_or_errors(data: bytes, changes: list[tuple[int, int]], cut: int) -> None:
    mutated = bytearray(data)
    for at, byte in changes if mutated else []:
        mutated[at % len(mutated)] = byte
    session: Session[int] = Session(two_way=True)
    for waiter in range(3):
        session.request(call(), waiter)
    at = cut % (len(mutated) + 1)
    with contextlib.suppress(KazahanaError):
        session.feed(bytes(mutated[:at]))
        session.feed(bytes(mutated[at:]))


CALLS = Calls(None, 1.0)
READ: dict[str, Call[Any]] = {
    "NextID": CALLS.next_id(),
    "NextIDs": CALLS.next_ids(2),
    "Inspect": CALLS.inspect(1),
    "ToInternal": CALLS.to_internal("x", None),
    "UUID": CALLS.uuid(7, None),
    "Status": CALLS.status(None),
    "Lock.Acquire": _acquire(CALLS, "k", 1.0, 0.0, 1.0),
    "Placement.Resolve": resolve(CALLS, "k", "i", 1.0),
}
RESULTS = [(one["method"], bytes.fromhex(one["message_hex"])) for one in hostile_answers()]
RESULTS += [(one["method"], bytes.fromhex(one["response_hex"])) for one in EXCHANGES if one["method"] in READ]


@given(st.sampled_from(RESULTS), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4))
@settings(max_examples=2000, derandomize=True)
def test_any_result_is_read_or_an_error_of_the_protocol(
    answer: tuple[str, bytes], changes: list[tuple[int, int]]
) -> None:
    method, message = answer
    mutated = bytearray(message)
    for at, byte in changes:
        mutated[at % len(mutated)] = byte
    session: Session[int] = Session(two_way=True)
    session.request(READ[method], 1)
    answers: list[Any] = []
    with contextlib.suppress(KazahanaError):  # with msgid 0 it is the daemon's last word, of any kind
        answers = session.feed(bytes(mutated))
    for _, error, result in answers:
        if error is None:
            with contextlib.suppress(ProtocolError):
                READ[method].parse(result)


@pytest.mark.parametrize(
    "message",
    [
        7, {}, [], [1], "HTTP/1.1 400 Bad Request", [0, 1, "Ping", []], [1, "1", None, 2], [1, True, None, 2],
        [1, 1, "text", None], [1, 1, [0], None], [1, 1, [0, 7], None],
    ],
)  # fmt: skip
def test_what_is_no_response(message: Any) -> None:
    session: Session[int] = Session()
    session.request(call(), 1)
    with pytest.raises(ProtocolError):
        session.feed(msgpack.packb(message))


def test_limits() -> None:
    session: Session[int] = Session()
    with pytest.raises(ProtocolError):
        session.feed(b"\xc6\xff\xff\xff\xff" + b"x" * MAX_RESPONSE)
    nested: Session[int] = Session()
    with pytest.raises(ProtocolError):
        nested.feed(b"\x94" * 100_000)
    with pytest.raises(InvalidParamsError, match="too large"):
        call("Inspect", "x" * (256 << 10))
    with pytest.raises(InvalidParamsError, match="cannot send"):
        call("Inspect", object())
    with pytest.raises(InvalidParamsError, match="cannot send"):
        call("Inspect", 1 << 64)


def test_last_word_and_notifications() -> None:
    session: Session[int] = Session()
    session.request(call(), 1)
    assert session.feed(msgpack.packb([2, "Lock.Lost", [{"reason": "expired"}]])) == []
    assert session.unasked == [(None, "Lock.Lost", [{"reason": "expired"}])]
    with pytest.raises(KazahanaError, match="not MessagePack") as caught:
        session.feed(msgpack.packb([1, 0, [1, "PARSE_ERROR: not MessagePack"], None]))
    assert caught.value.code == "PARSE_ERROR"


def test_nobody_is_forgotten_whose_answer_came_with_the_last_word() -> None:
    session: Session[str] = Session()
    session.request(call(), "first")
    session.request(call(), "second")
    with pytest.raises(KazahanaError):
        session.feed(reply(1, "pong") + msgpack.packb([1, 0, [1, "PARSE_ERROR: not MessagePack"], None]))
    assert set(session.waiting.values()) == {"first", "second"}  # they fail with the connection


@pytest.mark.parametrize("timeout", [0, -1, 3601, float("nan"), float("inf")])
def test_timeouts_out_of_range(timeout: float) -> None:
    with pytest.raises(InvalidParamsError, match="timeout"):
        Calls(None, timeout)


def test_the_daemon_is_told_the_timeout() -> None:
    assert Calls(None, 10.0).plain.params == []  # the daemon's own default
    assert Calls("web", 2.5).plain.params == [{"service": "web", "timeout_ms": 2500}]
    assert 2.5 < Calls(None, 2.5).plain.timeout <= 2.55


@given(st.floats(0, 1e6), st.floats(0.01, 100), st.booleans(), st.floats(0, 1))
def test_retry_ends_at_the_deadline(started: float, timeout: float, reached: bool, chance: float) -> None:
    retry, now, tries = Retry(started, timeout, reached), started, 0
    limit = started + (timeout if reached else min(timeout, Retry.FIRST_CONTACT))
    while True:
        try:
            pause = retry.pause(lost("/x"), now, lambda: chance)
        except ConnectionError:
            break
        assert 0 <= pause <= Retry.LONGEST and (pause > 0 or tries == 0)
        now, tries = now + pause, tries + 1
        assert now < limit
    assert limit - now <= Retry.LONGEST
    assert tries < 100 + 2 * timeout / (Retry.LONGEST / 2)


def test_what_is_tried_again() -> None:
    assert Retry(0, 10, True).pause(lost("/x"), 0) == 0
    assert Retry(0, 10, True).pause(ShuttingDownError(), 0) == 0
    assert Retry(0, 10, False).pause(lost("/x"), 0) > 0
    with pytest.raises(InvalidParamsError):
        Retry(0, 10, True).pause(InvalidParamsError(), 0)


def test_a_library_for_messagepack_rpc(daemon: Daemon) -> None:
    """What docs/protocol.md says of aio-msgpack-rpc: it delivers an error as the array, and goes on."""
    library = pytest.importorskip("aio_msgpack_rpc")

    async def ask() -> list[int]:
        client = library.Client(*await asyncio.open_unix_connection(daemon.socket))
        try:
            ids = [await client.call("NextID"), *await client.call("NextIDs", 3)]
            with pytest.raises(library.error.RPCResponseError) as refused:
                await client.call("NextIDs", 0)
            ((kind, text),) = refused.value.args
            assert kind == 1 and text.startswith("INVALID_PARAMS: a count of 0")
            return [*ids, await client.call("NextID")]
        finally:
            client.close()

    ids = asyncio.run(ask())
    assert len(ids) == 5 and ids == sorted(set(ids))
