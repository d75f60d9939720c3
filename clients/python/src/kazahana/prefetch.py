"""IDs that are fetched before they are asked for."""

from __future__ import annotations

import threading
from typing import Any

from . import fork
from .clock import INF, now
from .errors import InvalidParamsError
from .protocol import MAX_BATCH

# Batches grow, up to this factor, while each is used up in less than this many seconds.
GROWTH, SHORT = 16, 0.001
# IDs in descending order, so that pop takes the smallest; when they were asked for; from when on they are too old.
Batch = tuple[list[int], float, float]


class Prefetch:
    """The present batch, and the refill under way: one caller fetches a batch, and others wait for its end.

    No ID is handed out later than max_age after the request for it was sent; pop sees to that. All times are those of
    clock.now, which counts on while the machine is suspended.
    """

    def __init__(self, size: int, max_age: float) -> None:
        if not 0 <= size <= MAX_BATCH:
            raise InvalidParamsError(f"prefetch={size} is out of range: 0 (off) to {MAX_BATCH}")
        if not max_age > 0:
            raise InvalidParamsError(f"max_age={max_age} s is out of range: more than 0")
        self.size = self._count = size
        self.max_age = max_age
        self._after_fork()  # as in a child, there is nothing yet
        fork.track(self)

    def _after_fork(self) -> None:
        self._swap = threading.Lock()  # of batch; its holder waits for nothing
        self.refills: dict[Any, Any] = {}  # the future of the refill under way, by event loop; None for threads
        self.drop()

    def drop(self) -> None:
        """Forget the batch: a caller has received larger IDs by now, and the next ID must be larger still."""
        with self._swap:
            self.batch: Batch = ([], 0.0, 0.0)
            self._asked = -INF  # the dropped batch was not used up: the next one is not larger

    def pop(self, began: float = INF) -> int | None:
        """Return the smallest ID, None if there is none or it is too old.

        A call that has waited tells when it began. If the batch was asked for after that, its IDs sort rightly for this
        call, and their age does not matter. Otherwise a daemon that takes longer than max_age for its answer would
        serve only one caller with each batch.
        """
        ids, asked, expires = self.batch
        try:
            id = ids.pop()
        except IndexError:
            return None
        # The clock is read only now, since this process may have been stopped before it took the ID.
        return id if now() < expires or began < asked else None

    def join(self, mine: Any, loop: Any) -> Any:
        """Return the future of the refill under way. It is `mine`, the caller's, if there was none in its loop."""
        return self.refills.setdefault(loop, mine)  # which is atomic

    def count(self, asked: float) -> int:
        """Return how many IDs to ask for at this time."""
        larger, smaller = min(2 * self._count, GROWTH * self.size, MAX_BATCH), max(self._count // 2, self.size)
        self._count = larger if asked - self._asked < SHORT else smaller
        self._asked = asked
        return self._count

    def install(self, before: Batch, ids: list[int], asked: float) -> int:
        """Take over IDs that were asked for when `before` was the batch; return the first.

        Their age counts from the request, not from the answer. If drop was called since, the rest
        is dropped, too.
        """
        ids.reverse()
        first = ids.pop()
        with self._swap:
            if self.batch is before:
                self.batch = ids, asked, asked + self.max_age
        return first
