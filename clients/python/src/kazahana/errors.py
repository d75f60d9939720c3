"""The errors, one class per code; all are KazahanaErrors."""

from __future__ import annotations

import re
from typing import Any, Union

Detail = Union[int, str]


BY_CODE: dict[str, type[KazahanaError]] = {}  # the class of each code


class KazahanaError(Exception):
    """Base of all errors of this package.

    `code` is stable and the same in every language; `details` holds the facts that the
    daemon sent; the documented ones are attributes, too.
    """

    code: str = "ERROR"

    def __init_subclass__(cls) -> None:
        BY_CODE.setdefault(cls.code, cls)

    def __init__(self, message: str = "", /, **details: Detail) -> None:
        self.message = message or self.code
        self.details: dict[str, Detail] = {}
        for name, value in details.items():
            default = getattr(type(self), name, None)
            if type(default) is int:
                try:
                    value = int(value)
                except ValueError:
                    continue
            self.details[name] = value
            if type(default) in (int, str) and name != "code":
                setattr(self, name, value)
        facts = ", ".join(f"{name}={value}" for name, value in self.details.items() if str(value) not in self.message)
        super().__init__(f"{self.message} ({facts})" if facts else self.message)

    def __reduce__(self) -> Any:  # for pickling, as in process pools
        return _rebuild, (type(self), self.code, self.message, self.details)


def _rebuild(kind: type[KazahanaError], code: str, message: str, details: dict[str, Detail]) -> KazahanaError:
    error = kind(message, **details)
    error.code = code
    return error


class ClockBackwardError(KazahanaError):
    """The daemon's clock is behind its last ID by more than it may wait for: let NTP slew, not step."""

    code = "CLOCK_BACKWARD"
    backward_ms: int = 0
    limit_ms: int = 0


class LeaseAcquisitionError(KazahanaError):
    """There is no valid lease, and a fallback ID is not allowed."""

    code = "LEASE_ACQUISITION"
    cause: str = ""


class NoProviderError(KazahanaError):
    """The daemon has no provider, and a fallback ID is not allowed."""

    code = "NO_PROVIDER"


class RequestTimeoutError(KazahanaError, TimeoutError):
    """The time ran out. `cause` says what the call waited for: clock, sequence, lease, or answer."""

    code = "TIMEOUT"
    waited_ms: int = 0
    cause: str = ""


class TimestampOverflowError(KazahanaError):
    """The layout's time is used up."""

    code = "TIMESTAMP_OVERFLOW"


class UnknownServiceError(KazahanaError):
    """The daemon has no service of that name."""

    code = "UNKNOWN_SERVICE"


class UnknownMethodError(KazahanaError):
    """The daemon does not know the call: it is older than this client, or was built without it."""

    code = "UNKNOWN_METHOD"


class InvalidParamsError(KazahanaError, ValueError):
    """An argument is wrong; the message says what is allowed."""

    code = "INVALID_PARAMS"


class InvalidExternalIDError(KazahanaError, ValueError):
    """The text is not an external ID, or not one of this service."""

    code = "INVALID_EXTERNAL_ID"


class PermissionDeniedError(KazahanaError, PermissionError):
    """The daemon does not let this user in."""

    code = "PERMISSION_DENIED"


class OverloadedError(KazahanaError):
    """The daemon has reached its limit of connections or waiting requests."""

    code = "OVERLOADED"


class ShuttingDownError(KazahanaError):
    """The daemon is stopping, and no other has taken over in time."""

    code = "SHUTTING_DOWN"


class StartFailedError(KazahanaError):
    """The daemon cannot start; the message says whether it tries again."""

    code = "START_FAILED"


class DaemonUnavailableError(KazahanaError, ConnectionError):
    """No daemon answers at the socket `path`. __cause__ is the system's error, if there is one."""

    code = "DAEMON_UNAVAILABLE"
    path: str = ""
    transient = True  # a daemon that restarts looks like this


class SocketUnusableError(DaemonUnavailableError):
    """The socket cannot be used, for a reason that waiting does not end."""

    transient = False


class ProtocolError(KazahanaError):
    """The peer is not a kazahana daemon."""

    code = "PROTOCOL_ERROR"


class ClientClosedError(KazahanaError):
    """The client was closed."""

    code = "CLIENT_CLOSED"


_CODE = re.compile(r"([A-Z][A-Z0-9_]*):(?: |$)")
_DETAIL = re.compile(r'([a-z][a-z0-9_]*)=(?:"((?:[^"\\]|\\.)*)"|([^\s"]\S*))(?: |$)')
_ESCAPE = re.compile(r"\\(?:x(..)|u(....)|U(.{8})|(.))")
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _unescape(match: re.Match[str]) -> str:
    number = match[1] or match[2] or match[3]
    return chr(int(number, 16)) if number else _LETTERS.get(match[4], match[4])


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
            details[found[1]] = found[3] if found[2] is None else _ESCAPE.sub(_unescape, found[2])
            at = found.end()
            continue
        details.clear()
        at = rest.find(" ", at) + 1 or len(rest)
    message = rest[:begin].rstrip() if details else rest
    name = code[1] if code else ProtocolError.code
    return _rebuild(BY_CODE.get(name, KazahanaError), name, message or name, details)
