"""What a child process must not share with its parent."""

from __future__ import annotations

from typing import Any

import pytest

import kazahana_placement as placement
from actors import Watch, place
from harness import Daemon
from test_fork import CHILDREN, forks, in_children, key, own

__all__ = ["forks", "key"]  # fixtures


def test_events_stay_with_the_parent(connect: Any, placing: Daemon, forks: None, key: str) -> None:
    client = connect(placing.socket)
    watch = Watch(client, ["unserved"])

    def happen(kind: str) -> None:
        with pytest.raises(placement.PlacementUnservedError):
            place(client).resolve(kind, "1", wait=0)

    def take() -> list[int]:
        with pytest.raises(placement.WatchEndedError):
            next(watch.events)
        return [1]

    def close() -> list[int]:
        own(watch.events.close())
        return [1]

    kinds = [f"{key} 1", f"{key} 2"]
    happen(kinds[0])
    for first in [take, close] if isinstance(watch.events, placement.PlacementEvents) else [close]:
        assert in_children(first) == [1] * CHILDREN
    happen(kinds[1])
    assert [watch.next().kind, watch.next().kind] == kinds
    watch.close()
