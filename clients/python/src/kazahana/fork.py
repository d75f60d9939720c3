"""A child process shares neither its parent's connections nor its prefetched IDs.

What has to change in a child joins with track. A connection closes the child's copy of its socket, and is broken from
then on: the next call makes another. Prefetch forgets its IDs. Python tells of a fork by os.fork; look notices any
other, so calls begin with it.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_process = os.getpid()
_lock = threading.Lock()  # of _process
_members: set[weakref.ref[Any]] = set()  # each step on it is atomic: threads join while others look


def track(member: Any) -> None:
    """Call member._after_fork() in every child, before anything else can use it there."""
    _members.add(weakref.ref(member, _members.discard))


def look() -> None:
    """Notice a fork that went past os.fork, as uWSGI's do: the child would hand out its parent's IDs."""
    if os.getpid() != _process:
        with _lock:
            if os.getpid() != _process:
                _in_child()


def _in_child() -> None:
    global _process
    for ref in list(_members):
        if (member := ref()) is not None:
            member._after_fork()
    _process = os.getpid()  # last: until then, other threads wait in look


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _in_child()


os.register_at_fork(after_in_child=_after_fork)
