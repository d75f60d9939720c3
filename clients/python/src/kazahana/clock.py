"""The clocks of all waits. Tests that freeze time, such as with freezegun, do not reach them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from functools import partial
from typing import Any, Callable

# freezegun replaces time.monotonic wherever a module has it, time-machine the calendar's clocks; neither this.
monotonic = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
# This one counts time while the machine is suspended, where there is such a clock.
now = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else monotonic

INF = float("inf")
SKEW = 60.0  # s; if the clock of a loop differs by more from ours, a test has replaced it


class Alarm:
    """Calls back in the loop at the earliest time of monotonic() that it was told, unless it is cancelled before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[..., object], *about: Any) -> None:
        self._loop, self._call, self._about = loop, call, about
        self._deadline = INF
        self._waiting: asyncio.TimerHandle | threading.Timer | None = None

    def by(self, deadline: float) -> None:
        if deadline < self._deadline:
            self.cancel()
            self._deadline = deadline
            self._wait()

    def _wait(self) -> None:
        here, there = monotonic(), self._loop.time()
        left = self._deadline - here
        if abs(there - here) < SKEW:
            self._waiting = self._loop.call_at(there + left, self._ring)
        else:  # its timers may never come
            self._waiting = threading.Timer(left, self._wake)
            self._waiting.daemon = True
            self._waiting.start()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        if monotonic() < self._deadline:  # the loop's clock was changed
            self._wait()
        else:
            self._deadline = INF
            self._call(*self._about)

    def cancel(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def within(seconds: float, *futures: asyncio.Future[Any]) -> None:
    """Wait until one of the futures is done, or the time is up."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    alarm = Alarm(loop, _settle, over)
    alarm.by(monotonic() + seconds)
    try:
        await asyncio.wait([over, *futures], return_when=asyncio.FIRST_COMPLETED)
    finally:
        alarm.cancel()
