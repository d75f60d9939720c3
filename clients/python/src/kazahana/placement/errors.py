"""The errors of placement."""

from __future__ import annotations

from ..errors import KazahanaError


class PlacementNotReadyError(KazahanaError):
    """The daemon places no actors now. `state` is off, stopped, not_ready or client."""

    code = "PLACEMENT_NOT_READY"
    state: str = ""


class PlacementPendingError(KazahanaError):
    """The actor is being activated, or passivated, and the wait is over."""

    code = "PLACEMENT_PENDING"
    cause: str = ""


class PlacementUnservedError(KazahanaError):
    """No process of any host has registered for the kind."""

    code = "PLACEMENT_UNSERVED"


class ActivationFailedError(KazahanaError):
    """The actor's process did not activate it."""

    code = "ACTIVATION_FAILED"
    cause: str = ""


class ActivationEndedError(KazahanaError):
    """The activation is over, or it is not known whether it is: stop acting for the actor.

    `reason`: passivated, failed, disconnected, forked, refused (by the daemon) or unanswered.
    """

    code = "ACTIVATION_ENDED"
    reason: str = ""


class WatchEndedError(KazahanaError):
    """The daemon sends no more events; some may be missing. `reason`: too_slow, stopping or disconnected."""

    code = "WATCH_ENDED"
    reason: str = ""
