"""The errors, one class per code; all are KazahanaErrors."""

from __future__ import annotations

import re
from copy import copy
from typing import Union

Detail = Union[int, str]

BY_CODE: dict[str, type[KazahanaError]] = {}  # the class of each code


class KazahanaError(Exception):
    """Base of all errors of this package.

    `code` is stable and the same in every language; `details` holds the facts that the
    daemon sent; the documented ones are attributes, too.
    """

    code: str = "ERROR"
    transient = False  # whether the same call may succeed in a moment: a daemon that restarts looks like this

    def __init_subclass__(cls, code: str = "") -> None:
        if code:
            cls.code = code
            BY_CODE[code] = cls

    def __init__(self, message: str = "", /, **details: Detail) -> None:
        self.message = message or self.code
        self.details: dict[str, Detail] = {}
        for name, value in details.items():
            documented = type(getattr(type(self), name, None))
            try:
                self.details[name] = int(value) if documented is int else value
            except ValueError:
                continue
            if documented in (int, str) and name != "code":
                setattr(self, name, self.details[name])
        facts = ", ".join(f"{name}={value}" for name, value in self.details.items() if str(value) not in self.message)
        super().__init__(f"{self.message} ({facts})" if facts else self.message)


class ClockBackwardError(KazahanaError, code="CLOCK_BACKWARD"):
    """The daemon's clock is behind its last ID by more than it may wait for: let NTP slew, not step."""

    backward_ms: int = 0
    limit_ms: int = 0


class LeaseAcquisitionError(KazahanaError, code="LEASE_ACQUISITION"):
    """There is no valid lease, and a fallback ID is not allowed."""

    cause: str = ""


class NoProviderError(KazahanaError, code="NO_PROVIDER"):
    """The daemon has no provider, and a fallback ID is not allowed."""


class RequestTimeoutError(KazahanaError, TimeoutError, code="TIMEOUT"):
    """The time ran out. `cause` says what the call waited for: clock, sequence, lease, or answer."""

    waited_ms: int = 0
    cause: str = ""


class TimestampOverflowError(KazahanaError, code="TIMESTAMP_OVERFLOW"):
    """The layout's time is used up."""


class UnknownServiceError(KazahanaError, code="UNKNOWN_SERVICE"):
    """The daemon has no service of that name."""


class UnknownMethodError(KazahanaError, code="UNKNOWN_METHOD"):
    """The daemon does not know the call: it is older than this client, or was built without it."""


class InvalidParamsError(KazahanaError, ValueError, code="INVALID_PARAMS"):
    """An argument is wrong; the message says what is allowed."""


class InvalidExternalIDError(KazahanaError, ValueError, code="INVALID_EXTERNAL_ID"):
    """The text is not an external ID, or not one of this service."""


class PermissionDeniedError(KazahanaError, PermissionError, code="PERMISSION_DENIED"):
    """The daemon does not let this user in."""


class OverloadedError(KazahanaError, code="OVERLOADED"):
    """The daemon has reached its limit of connections or waiting requests."""


class ShuttingDownError(KazahanaError, code="SHUTTING_DOWN"):
    """The daemon is stopping, and no other has taken over in time."""

    transient = True


class StartFailedError(KazahanaError, code="START_FAILED"):
    """The daemon cannot start; the message says whether it tries again."""


class DaemonUnavailableError(KazahanaError, ConnectionError, code="DAEMON_UNAVAILABLE"):
    """No daemon answers at the socket `path`. __cause__ is the system's error, if there is one."""

    path: str = ""
    transient = True


class SocketUnusableError(DaemonUnavailableError):
    """The socket cannot be used, for a reason that waiting does not end."""

    transient = False


class ProtocolError(KazahanaError, code="PROTOCOL_ERROR"):
    """The peer is not a kazahana daemon."""


class ClientClosedError(KazahanaError, code="CLIENT_CLOSED"):
    """The client was closed."""


_CODE = re.compile(r"([A-Z][A-Z0-9_]*):(?: |$)")
_DETAIL = re.compile(r'([a-z][a-z0-9_]*)=(?:"((?:[^"\\]|\\.)*)"|([^\s"]\S*))(?: |$)')


def _unquoted(text: str) -> str:
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape")


def from_wire(text: str) -> KazahanaError:
    """Parse `CODE: message key=value key="another value"`. The details are the longest tail of that form."""
    code = _CODE.match(text)
    rest = text[code.end() :] if code else text
    details: dict[str, Detail] = {}
    at = begin = 0
    while at < len(rest):
        found = _DETAIL.match(rest, at)
        if found:
            begin = begin if details else at
            details[found[1]] = found[3] if found[2] is None else _unquoted(found[2])
            at = found.end()
            continue
        details.clear()
        at = rest.find(" ", at) + 1 or len(rest)
    message = rest[:begin].rstrip() if details else rest
    name = code[1] if code else ProtocolError.code
    error = BY_CODE.get(name, KazahanaError)(message or name, **details)
    error.code = name
    return error


def lost(path: str, cause: BaseException | None = None) -> DaemonUnavailableError:
    error = DaemonUnavailableError(f"the daemon at {path} closed the connection", path=path)
    error.__cause__ = cause
    return error


def late(timeout: float, what: str) -> RequestTimeoutError:
    return RequestTimeoutError(f"{what} in time", waited_ms=int(timeout * 1000), cause="answer")


def copy_of(error: KazahanaError) -> KazahanaError:
    """Return a copy of the error: one instance must not be raised in several threads."""
    made = copy(error)
    made.__cause__ = error.__cause__
    return made
