"""The errors of placement."""

from __future__ import annotations

from kazahana.errors import KazahanaError


class PlacementNotReadyError(KazahanaError, code="PLACEMENT_NOT_READY"):
    """The daemon places no actors now. `state` is off, stopped, not_ready or client."""

    state: str = ""


class PlacementPendingError(KazahanaError, code="PLACEMENT_PENDING"):
    """The actor is being activated, or passivated, and the wait is over."""

    cause: str = ""


class PlacementUnservedError(KazahanaError, code="PLACEMENT_UNSERVED"):
    """No process of any host has registered for the kind."""


class ActivationFailedError(KazahanaError, code="ACTIVATION_FAILED"):
    """The actor's process did not activate it."""

    cause: str = ""


class ActivationEndedError(KazahanaError, code="ACTIVATION_ENDED"):
    """The activation is over, or it is not known whether it is: stop acting for the actor.

    `reason`: passivated, failed, disconnected, forked, refused (by the daemon) or unanswered.
    """

    reason: str = ""


class WatchEndedError(KazahanaError, code="WATCH_ENDED"):
    """The daemon sends no more events; some may be missing. `reason`: too_slow, stopping or disconnected."""

    reason: str = ""
