"""The errors, one class per code; all are KazahanaErrors."""

from __future__ import annotations

import re
from copy import copy
from typing import TYPE_CHECKING

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

    def __init__(self, message: str = "", /, **details: int | str) -> None:
        self.message = message or self.code
        self.details: dict[str, int | str] = {}
        for name, value in details.items():
            documented = type(getattr(type(self), name, None))
            try:
                self.details[name] = int(value) if documented is int else value
            except ValueError:  # a peer may say anything
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
    """No daemon answers at the socket `path`. __cause__ is the system's error, if there is one.

    It is transient, unless the system denies access or something else is in the socket's place: then a person has to
    change something.
    """

    path: str = ""
    transient = True


class ProtocolError(KazahanaError, code="PROTOCOL_ERROR"):
    """The peer is not a kazahana daemon."""


class ClientClosedError(KazahanaError, code="CLIENT_CLOSED"):
    """The client was closed."""


if not TYPE_CHECKING:  # which understands lists of literals only
    __all__ = [name for name in dir() if name.endswith("Error")]

_CODE = re.compile(r"([A-Z][A-Z0-9_]*):(?: |$)")
# A detail, or any other word: that has no key.
_WORD = re.compile(r'(?!\Z)(?:([a-z][a-z0-9_]*)=(?:"((?:[^"\\]|\\.)*)"|([^\s"]\S*))|[^ ]*)(?: |\Z)')


def from_wire(text: str) -> KazahanaError:
    """Parse `CODE: message key=value key="another value"`.

    The details are the longest tail of that form. If a key occurs twice, the first counts.
    """
    found = _CODE.match(text)
    code, rest = (found[1], text[found.end() :]) if found else (ProtocolError.code, text)
    details: dict[str, int | str] = {}
    message_end = 0
    for word in _WORD.finditer(rest):
        key, quoted, bare = word.groups()
        if key is None:
            details, message_end = {}, word.end()
        else:
            value = bare if quoted is None else quoted.encode("latin-1", "backslashreplace").decode("unicode_escape")
            details.setdefault(key, value)
    error = BY_CODE.get(code, KazahanaError)(rest[:message_end].rstrip() or code, **details)
    error.code = code
    return error


def lost(path: str, cause: BaseException | None = None) -> DaemonUnavailableError:
    error = DaemonUnavailableError(f"the daemon at {path} closed the connection", path=path)
    error.__cause__ = cause
    return error


def late(timeout: float, what: str) -> RequestTimeoutError:
    return RequestTimeoutError(f"{what} in time", waited_ms=int(timeout * 1000), cause="answer")


def closed() -> ClientClosedError:
    return ClientClosedError("the client was closed")


def copy_of(error: KazahanaError) -> KazahanaError:
    """Return a copy of the error: one instance must not be raised in several threads."""
    made = copy(error)
    made.__cause__ = error.__cause__
    return made
