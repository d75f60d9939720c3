from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from harness import REPOSITORY
from kazahana import ExternalCodec, InvalidExternalIDError, InvalidParamsError

VECTORS: dict[str, Any] = json.loads((REPOSITORY / "testdata" / "external_ids.json").read_text("utf-8"))
IDS = st.integers(0, (1 << 63) - 1)


def codec(secret: str | None, service: str = "default") -> ExternalCodec:
    return ExternalCodec.plain() if secret is None else ExternalCodec(secret, service)


def test_golden_vectors() -> None:
    groups = [(ExternalCodec.plain(), VECTORS["plain"])]
    groups += [(codec(one["secret"], one.get("service", "default")), one["vectors"]) for one in VECTORS["keyed"]]
    assert len(groups) > 2
    for golden, vectors in groups:
        for vector in vectors:
            assert golden.encode(int(vector["id"])) == vector["external"]
            assert golden.decode(vector["external"]) == int(vector["id"])


@pytest.mark.parametrize("vector", VECTORS["rejected"], ids=lambda vector: vector["why"])
def test_rejected(vector: dict[str, str]) -> None:
    with pytest.raises(InvalidExternalIDError):
        codec(vector.get("secret")).decode(vector["external"])


@given(IDS, st.none() | st.text(min_size=1))
def test_there_and_back(id: int, secret: str | None) -> None:
    text = codec(secret).encode(id)
    assert len(text) == 11
    assert codec(secret).decode(text) == id


@given(st.text(max_size=12))
def test_one_spelling_each(text: str) -> None:
    plain = ExternalCodec.plain()
    try:
        id = plain.decode(text)
    except InvalidExternalIDError:
        return
    assert plain.encode(id) == text


def test_limits() -> None:
    plain = ExternalCodec.plain()
    for id in (-1, 1 << 63):
        with pytest.raises(InvalidParamsError):
            plain.encode(id)
    with pytest.raises(InvalidParamsError):
        ExternalCodec("")
    assert plain.decode(plain.encode(7), max_id=7) == 7
    with pytest.raises(InvalidExternalIDError, match="later"):
        plain.decode(plain.encode(7), max_id=6)
    assert ExternalCodec(b"x").encode(1) == ExternalCodec("x").encode(1) != ExternalCodec("y").encode(1)
