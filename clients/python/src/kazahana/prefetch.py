"""Prefetched IDs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

from .calls import MAX_BATCH
from .clock import monotonic, now
from .errors import DaemonUnavailableError, InvalidParamsError, KazahanaError, RequestTimeoutError, ShuttingDownError
from .protocol import INF, Retry, copy_of, late

# Batches grow, up to this factor, while each is used up in less than this many seconds.
GROWTH, SHORT = 16, 0.001
LATE = (RequestTimeoutError, DaemonUnavailableError, ShuttingDownError)  # what a refill fails with at its deadline


class Batch(list[int]):
    """IDs in descending order: pop, which is atomic, takes the smallest. Valid until now() is `expires`."""

    __slots__ = ("asked", "expires")
    asked: float
    expires: float


class Prefetch:
    """The present batch. Check `expires` after pop, so that ID and age belong together."""

    def __init__(self, size: int, max_age: float) -> None:
        if not 0 <= size <= MAX_BATCH:
            raise InvalidParamsError(f"prefetch={size} is out of range: 0 (off) to {MAX_BATCH}")
        if not max_age > 0:
            raise InvalidParamsError(f"max_age={max_age} s is out of range: more than 0")
        self.size = self._count = size
        self.max_age = max_age
        self._asked = float("-inf")
        self.after_fork()

    def after_fork(self) -> None:
        self.batch = Batch()
        self._swap = threading.Lock()  # nobody waits for anything while holding it
        self._refill: Any = None

    def join(self, make: Callable[[], Any], loop: Any = None) -> tuple[bool, Any]:
        """Return the future of the refill under way; True: the caller has begun it, for there was none in its loop."""
        with self._swap:
            is_mine = self._refill is None or (loop is not None and self._refill.get_loop() is not loop)
            self._refill = make() if is_mine else self._refill
            return is_mine, self._refill

    @contextmanager
    def refilling(self, refill: Any, left: float) -> Iterator[None]:
        """End the refill, which has so many seconds; tell those who wait an error, and whether its time was up."""
        told: tuple[KazahanaError | None, bool] = None, False
        deadline = monotonic() + left - min(Retry.LONGEST, left / 2)
        try:
            yield
        except KazahanaError as error:
            told = error, isinstance(error, LATE) and monotonic() >= deadline
            raise
        finally:
            with self._swap:
                if self._refill is refill:
                    self._refill = None
            refill.set_result(told)

    def waited(self, refill: Any, began: float, timeout: float, left: float) -> int | None:
        """Return an ID of the refill that another began, None if there is none left, or raise."""
        error, was_late = refill.result() if refill.done() else (None, False)
        if error is not None and (left <= 0 or not was_late):  # who came later has a time of its own
            raise copy_of(error)
        id = self.pop(began)
        if id is None and left <= 0:  # a refill with no time left would fail for others, too
            raise late(timeout)
        return id

    def pop(self, began: float = INF) -> int | None:
        """Return the smallest ID, None if there is none or it is too old for a call that began then."""
        batch = self.batch
        try:
            id = batch.pop()
        except IndexError:
            return None
        # This process may have been stopped before. What was asked for since the call began is never too old.
        return id if now() < batch.expires or began < batch.asked else None

    def count(self, now: float) -> int:
        """Return how many IDs to request now."""
        larger, smaller = min(2 * self._count, GROWTH * self.size, MAX_BATCH), max(self._count // 2, self.size)
        self._count = larger if now - self._asked < SHORT else smaller
        self._asked = now
        return self._count

    def install(self, asked_after: Batch, ids: list[int], asked: float) -> int:
        """Take over IDs that were requested at the time `asked`; return the first.

        Their age counts from the request, not from the answer. If drop was called since, the rest
        is dropped, too.
        """
        batch = Batch(reversed(ids))
        first = batch.pop()
        batch.asked, batch.expires = asked, asked + self.max_age
        with self._swap:
            if self.batch is asked_after:
                self.batch = batch
        return first

    def drop(self) -> None:
        """Forget the batch: a caller has received larger IDs by now, and the next ID must be larger still."""
        with self._swap:
            self.batch = Batch()
            self._asked = float("-inf")  # it was not used up
