from __future__ import annotations

import pickle

import pytest
from hypothesis import given, strategies as st

import kazahana
from kazahana import errors
from kazahana.errors import from_wire


def test_details_become_attributes() -> None:
    error = from_wire("CLOCK_BACKWARD: the clock is behind backward_ms=7000 limit_ms=5000")
    assert isinstance(error, kazahana.ClockBackwardError)
    assert (error.backward_ms, error.limit_ms, error.code) == (7000, 5000, "CLOCK_BACKWARD")
    assert error.message == "the clock is behind"
    assert str(error) == "the clock is behind (backward_ms=7000, limit_ms=5000)"


@pytest.mark.parametrize(
    ("text", "code", "message", "details"),
    [
        ("TIMEOUT: none waited_ms=3 cause=lease", "TIMEOUT", "none", {"waited_ms": 3, "cause": "lease"}),
        ('NO_PROVIDER: none cause="no route, a=1"', "NO_PROVIDER", "none", {"cause": "no route, a=1"}),
        (r'X: m a="\"\\\n\x41é\U0001F600"', "X", "m", {"a": '"\\\nAé😀'}),
        ('X: m a=""', "X", "m", {"a": ""}),
        ("X: a=1 is not b= 2", "X", "a=1 is not b= 2", {}),
        ("X: m a=1  b=2", "X", "m a=1", {"b": "2"}),
        ("X: m a=1 a=2 b=3", "X", "m", {"a": "1", "b": "3"}),
        ('X: m a="unclosed', "X", 'm a="unclosed', {}),
        ("X:", "X", "X", {}),
        ("X: a=1", "X", "X", {"a": "1"}),
        ("Vim:E492: Not an editor command", "PROTOCOL_ERROR", "Vim:E492: Not an editor command", {}),
        ("", "PROTOCOL_ERROR", "", {}),
        ("LOCK_HELD: held retry_after_ms=soon owner=me", "LOCK_HELD", "held", {"owner": "me"}),
        ("X: m message=1 self=2 code=3 args=4", "X", "m", {"message": "1", "self": "2", "code": "3", "args": "4"}),
    ],
)  # fmt: skip
def test_text_of_the_wire(text: str, code: str, message: str, details: dict[str, object]) -> None:
    error = from_wire(text)
    assert (error.code, error.message, error.details) == (code, message or code, details)


@given(st.text())
def test_any_text_is_an_error(text: str) -> None:
    assert isinstance(from_wire(text), kazahana.KazahanaError)


def test_every_class_has_a_code_of_its_own_and_survives_pickling() -> None:
    kinds = [*errors.BY_CODE.values()]
    assert len({kind.code for kind in kinds}) == len(kinds) > 25
    for kind in kinds:
        error = kind("why", cause="x", until_ms=7)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert (str(again), again.code, again.details) == (str(error), error.code, error.details)
        assert isinstance(error, Exception)
        assert kind.__name__ in vars(kazahana)


def test_kin_of_the_standard_errors() -> None:
    assert issubclass(kazahana.RequestTimeoutError, TimeoutError)
    assert issubclass(kazahana.DaemonUnavailableError, ConnectionError)
    assert issubclass(kazahana.InvalidParamsError, ValueError)
    assert kazahana.ClockBackwardError(backward_ms=1, limit_ms=2).backward_ms == 1
