"""Placement: one process of all hosts runs an actor (kind, identity), when somebody asks for it. Experimental."""

from .core import PlacementEvent as PlacementEvent, Resolution as Resolution
from .errors import (
    ActivationEndedError as ActivationEndedError,
    ActivationFailedError as ActivationFailedError,
    PlacementNotReadyError as PlacementNotReadyError,
    PlacementPendingError as PlacementPendingError,
    PlacementUnservedError as PlacementUnservedError,
    WatchEndedError as WatchEndedError,
)
from .tasks import (
    AsyncActivation as AsyncActivation,
    AsyncExecutor as AsyncExecutor,
    AsyncPlacement as AsyncPlacement,
    AsyncPlacementEvents as AsyncPlacementEvents,
)
from .threads import (
    Activation as Activation,
    Executor as Executor,
    Placement as Placement,
    PlacementEvents as PlacementEvents,
)
