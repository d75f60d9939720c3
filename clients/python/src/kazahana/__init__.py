"""64-bit, time-sortable, unique IDs from the kazahana daemon of this host."""

from .async_client import AsyncClient as AsyncClient
from .client import Client as Client
from .errors import (
    ClientClosedError as ClientClosedError,
    ClockBackwardError as ClockBackwardError,
    DaemonUnavailableError as DaemonUnavailableError,
    InvalidExternalIDError as InvalidExternalIDError,
    InvalidParamsError as InvalidParamsError,
    KazahanaError as KazahanaError,
    LeaseAcquisitionError as LeaseAcquisitionError,
    NoProviderError as NoProviderError,
    OverloadedError as OverloadedError,
    PermissionDeniedError as PermissionDeniedError,
    ProtocolError as ProtocolError,
    RequestTimeoutError as RequestTimeoutError,
    ShuttingDownError as ShuttingDownError,
    SocketUnusableError as SocketUnusableError,
    StartFailedError as StartFailedError,
    TimestampOverflowError as TimestampOverflowError,
    UnknownMethodError as UnknownMethodError,
    UnknownServiceError as UnknownServiceError,
)
from .external import ExternalCodec as ExternalCodec
from .lockerrors import (
    LockExpiredError as LockExpiredError,
    LockFencedError as LockFencedError,
    LockHeldError as LockHeldError,
    LockLostError as LockLostError,
    LockNotFoundError as LockNotFoundError,
    LockNotOwnedError as LockNotOwnedError,
    NoStoreError as NoStoreError,
    RequestIDReusedError as RequestIDReusedError,
    SequenceExhaustedError as SequenceExhaustedError,
    SequenceFencedError as SequenceFencedError,
    StoreFullError as StoreFullError,
    StoreUnavailableError as StoreUnavailableError,
)
from .locks import AsyncLock as AsyncLock, Lock as Lock, LockState as LockState, Lost as Lost
from .other import Inspection as Inspection

__version__ = "0.1.0"
