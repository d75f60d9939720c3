from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

import kazahana
from harness import Daemon, exchanges, hostile_answers
from kazahana import InvalidParamsError, ProtocolError, ShuttingDownError, other
from kazahana.client import FIRST_CONTACT, LONGEST_PAUSE
from kazahana.clock import INF, monotonic
from kazahana.errors import KazahanaError, lost
from kazahana.holding import lock_state
from kazahana.protocol import ANSWER, MAX_RESPONSE, NOTIFICATION, Call, Calls, Reader

EXCHANGES = exchanges()


def call(method: str = "Ping", *params: Any, **options: Any) -> Call[Any]:
    return Call(method, params, lambda value: value, 10.0, options)


# The errors of kazahana-placement, which makes classes of them.
PLACEMENT_CODES = (
    "PLACEMENT_NOT_READY",
    "PLACEMENT_PENDING",
    "PLACEMENT_UNSERVED",
    "ACTIVATION_FAILED",
    "ACTIVATION_ENDED",
)


def named(exchange: dict[str, Any]) -> str:
    return str(exchange["name"])


@pytest.mark.parametrize("exchange", EXCHANGES, ids=named)
def test_golden_exchange(exchange: dict[str, Any]) -> None:
    """The bytes of the file are read as the file says, and what is sent means what they mean."""
    params = exchange["params"]
    options = params[-1] if params and isinstance(params[-1], dict) else {}
    sent = call(exchange["method"], *(params[:-1] if options else params), **options).request(7)
    request = msgpack.unpackb(bytes.fromhex(exchange["request_hex"]))
    assert msgpack.unpackb(sent) == [0, 7, *request[2:]]

    response = bytes.fromhex(exchange["response_hex"])
    if request[1] == 0 and "error" in exchange:
        return
    for at in range(1, len(response)):  # whole at the end, however it is cut
        reader = Reader()
        assert reader.feed(response[:at]) == []
        assert len(reader.feed(response[at:])) == 1
    ((kind, msgid, error, result),) = Reader().feed(response)
    assert (kind, msgid) == (ANSWER, request[1])
    if "error" in exchange:
        expected = exchange["error"]
        assert error is not None and result is None
        assert (error.code, error.message) == (expected["code"], expected["message"])
        assert {name: str(value) for name, value in error.details.items()} == expected["details"]
        assert type(error) is not KazahanaError or error.code in PLACEMENT_CODES
    else:
        assert error is None and result == exchange["result"]


def test_every_method_is_recorded(daemon: Daemon) -> None:
    """When the daemon learns a method, clients/record has to."""
    with kazahana.Client(daemon.socket) as client, pytest.raises(kazahana.UnknownMethodError) as caught:
        client._perform(call("NoSuchMethod"))
    methods = caught.value.message.partition("there are ")[2].split(", ")
    assert len(methods) >= 17
    assert set(methods) == {one["method"] for one in EXCHANGES if one["recorded"] and "result" in one}


def reply(msgid: int, value: Any) -> bytes:
    return bytes(msgpack.packb([1, msgid, None, value]))


@given(st.lists(st.integers(0, 5), max_size=400), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_messages_are_read_however_they_are_cut(actions: list[int], random: Any) -> None:
    reader = Reader()
    buffer, got, sent = b"", [], []
    for number, action in enumerate(actions):
        if action < 3:
            value = random.choice([number, 1 << 62, "text", [1, 2], {"a": None}])
            message = [NOTIFICATION, "Lock.Lost", [value]] if action == 0 else [ANSWER, number + 1, None, value]
            sent.append(message)
            buffer += msgpack.packb(message)
        else:
            cut = random.randint(0, len(buffer))
            got += reader.feed(buffer[:cut]) if cut else []
            buffer = buffer[cut:]
    got += reader.feed(buffer) if buffer else []
    assert got == sent


def test_part_of_an_answer_is_not_taken_for_one() -> None:
    """Thirteen bytes that read as the answer to NextID may be the middle of another."""
    reader = Reader()
    inner = reply(2, 1 << 62)
    whole = reply(1, inner + b"end")
    at = whole.index(inner)
    assert len(inner) == 13
    assert reader.feed(whole[:at]) == reader.feed(inner) == []
    assert reader.feed(whole[at + 13 :]) == [[ANSWER, 1, None, inner + b"end"]]


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
    reader = Reader()
    at = cut % (len(mutated) + 1)
    with contextlib.suppress(KazahanaError):
        for part in filter(None, (bytes(mutated[:at]), bytes(mutated[at:]))):  # no bytes are the end
            reader.feed(part)


CLIENT = kazahana.Client("/nowhere")
CALLS = CLIENT._calls
READ: dict[str, Any] = {
    "NextID": CALLS.ids(None).parse,
    "NextIDs": CALLS.ids(2).parse,
    "Inspect": other._inspect(CALLS, 1, {}).parse,
    "ToInternal": other._to_internal(CALLS, "x", None, {}).parse,
    "UUID": other._new_uuid(CALLS, 7, None).parse,
    "Status": other.table,
    "Lock.Acquire": lock_state,
}
RESULTS = [(one["method"], bytes.fromhex(one["message_hex"])) for one in hostile_answers() if one["method"] in READ]
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
    messages: list[Any] = []
    with contextlib.suppress(KazahanaError):  # with msgid 0 it is the daemon's last word, of any kind
        messages = Reader().feed(bytes(mutated))
    for kind, *rest in messages:
        if kind == ANSWER and rest[1] is None:
            with contextlib.suppress(ProtocolError):
                READ[method](rest[2])


@pytest.mark.parametrize(
    "message",
    [
        7, {}, [], [1], "HTTP/1.1 400 Bad Request", [0, 1, "Ping", []], [1, "1", None, 2], [1, True, None, 2],
        [1, 1, "text", None], [1, 1, [0], None], [1, 1, [0, 7], None],
    ],
)  # fmt: skip
def test_what_is_no_response(message: Any) -> None:
    with pytest.raises(ProtocolError):
        Reader().feed(msgpack.packb(message))


def test_limits() -> None:
    with pytest.raises(ProtocolError):
        Reader().feed(b"\xc6\xff\xff\xff\xff" + b"x" * MAX_RESPONSE)
    with pytest.raises(ProtocolError):
        Reader().feed(b"\x94" * 100_000)
    with pytest.raises(InvalidParamsError, match="cannot send"):
        call("Inspect", object())
    with pytest.raises(InvalidParamsError, match="cannot send"):
        call("Inspect", 1 << 64)


def test_the_last_word() -> None:
    with pytest.raises(KazahanaError, match="not MessagePack") as caught:
        Reader().feed(reply(1, "pong") + msgpack.packb([1, 0, [1, "PARSE_ERROR: not MessagePack"], None]))
    assert caught.value.code == "PARSE_ERROR"


def test_a_request_that_is_too_large(connect: Any, daemon: Daemon) -> None:
    """The daemon says so, and closes the connection."""
    client = connect(daemon.socket)
    with pytest.raises(KazahanaError) as caught:
        client.next_id(service="x" * (1 << 20))
    assert caught.value.code == "PARSE_ERROR" and "larger than" in caught.value.message
    assert client.next_id()


@pytest.mark.parametrize("timeout", [0, -1, 3601, float("nan"), float("inf")])
def test_timeouts_out_of_range(timeout: float) -> None:
    with pytest.raises(InvalidParamsError, match="timeout"):
        Calls(None, timeout)


def test_the_daemon_is_told_the_timeout() -> None:
    assert Calls(None, 10.0).plain.params == []  # the daemon's own default
    assert Calls("web", 2.5).plain.params == [{"service": "web", "timeout_ms": 2500}]
    assert 2.5 < Calls(None, 2.5).plain.timeout <= 2.55
    for timeout, left, told in ((10.0, 10.05, 10_000), (10.0, 4.05, 4000), (0.2, 0.22, 200), (10.0, -1, 1)):
        again = Calls("web", timeout).plain.again(left)
        assert again.params[0]["service"] == "web" and abs(again.params[0].get("timeout_ms", 10_000) - told) <= 1


@given(st.floats(0.01, 100), st.booleans())
@settings(max_examples=50, derandomize=True)
def test_tries_end_at_the_deadline(timeout: float, reached: bool) -> None:
    client, tries, at = kazahana.Client("/nowhere"), 0, 1000.0
    client._gives_up = INF if reached else None
    limit = at + (timeout if reached else min(timeout, FIRST_CONTACT))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kazahana.client.monotonic", lambda: at)
        while True:
            try:
                pause = client._pause(lost("/x"), 1000.0 + timeout, tries)
            except ConnectionError:
                break
            assert 0 <= pause <= LONGEST_PAUSE and (pause > 0 or tries == 0)
            at, tries = at + pause, tries + 1
            assert at < limit
    assert limit - at <= LONGEST_PAUSE
    assert tries < 100 + 2 * timeout / (LONGEST_PAUSE / 2)


def test_what_is_tried_again() -> None:
    client, deadline = kazahana.Client("/nowhere"), monotonic() + 3600
    assert client._pause(lost("/x"), deadline, 0) == 0
    assert client._pause(ShuttingDownError(), deadline, 0) == 0
    with pytest.raises(InvalidParamsError):
        client._pause(InvalidParamsError(), deadline, 0)


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
