"""A child process shares neither its parent's connections nor its prefetched IDs."""

from __future__ import annotations

import os
import weakref
from typing import Any

_members: weakref.WeakSet[Any] = weakref.WeakSet()


def track(member: Any) -> None:
    """Call member.after_fork() in every child, before anything else can use it there."""
    _members.add(member)


def _in_child() -> None:
    for member in list(_members):
        member.after_fork()


os.register_at_fork(after_in_child=_in_child)
