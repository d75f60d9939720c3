"""Finding the daemon's socket, and explaining why it cannot be reached."""

from __future__ import annotations

import os
import re
import socket as sockets
import stat
import sys
from collections.abc import Mapping

from .errors import DaemonUnavailableError, InvalidParamsError

_NAME = "kazahanad.sock"
_ADVICE = "start the daemon with `kazahanad serve`, or name its socket in KAZAHANA_SOCKET or with Client(socket=...)"
_BLANK = " \t\r\n"
_PATH_LIMIT = 103 if sys.platform == "darwin" else 107


def parse(text: str, source: str = "socket") -> str:
    """Read PATH, unix:PATH or unix:///PATH, as testdata/socket_addresses.json has it.

    The path is taken as it is, with any percent sign. The errors leave out the text: it may be a URL with a password.
    """
    path = text.strip(_BLANK)
    uri = re.match("(?i)unix:(//)?", path)
    path = path[uri.end() :] if uri else path
    length = len(os.fsencode(path))
    is_other_uri = not uri and re.match("[A-Za-z][A-Za-z0-9+.-]*://", path)
    for wrong, why in (
        (is_other_uri, "is not a Unix socket: write its path, or unix:///PATH"),
        (not path, "is empty: write the path of a Unix socket"),
        (uri and uri[1] and path[:1] != "/", "names a host: write unix:///PATH, with three slashes, or just the path"),
        (path[:1] in "@\0", "is an abstract socket, which every user can open: write a path"),
        ("\0" in path, "holds a zero byte: write the path of a Unix socket"),
        (path.split("/")[0] == "~", "begins with ~, which only a shell replaces: write the whole path"),
        (path.endswith("/"), "is a directory: write the path of a Unix socket"),
        (length > _PATH_LIMIT, f"is {length} bytes long, and the system allows a socket's path {_PATH_LIMIT}"),
    ):
        if wrong:
            raise InvalidParamsError(f"{source} {why}")
    return path


def candidates(environ: Mapping[str, str], uid: int) -> list[tuple[str, str]]:
    """Return the usual places, each with the directory that another user could have made; "" is root's.

    RUNTIME_DIRECTORY is not among them: in a client it belongs to the client's own unit.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    paths = [(os.path.join(runtime, "kazahana", _NAME), os.path.normpath(runtime))] if os.path.isabs(runtime) else []
    return [*paths, (f"/run/kazahana/{_NAME}", ""), (f"/tmp/kazahana-{uid}/{_NAME}", f"/tmp/kazahana-{uid}")]


def find() -> str:
    """Return the path of the socket to connect to: the one that the environment names, else the first that exists."""
    if named := os.environ.get("KAZAHANA_SOCKET", "").strip(_BLANK):
        return parse(named, "KAZAHANA_SOCKET")
    uid, is_denied = os.geteuid(), False
    tried = []
    for path, directory in candidates(os.environ, uid):
        try:
            why = directory and _distrust(directory, uid)
            if not why:
                os.stat(path)
                return path
        except OSError as error:
            why, is_denied = _why(error), is_denied or isinstance(error, PermissionError)
        tried.append(f"{path} ({why})")
    raise _away(f"no daemon's socket found; tried {', '.join(tried)}", path, is_denied)


def _distrust(directory: str, uid: int) -> str:
    """Say why another user may answer in the daemon's place there: `su` keeps XDG_RUNTIME_DIR. "" if none can."""
    info = os.lstat(directory)
    if stat.S_ISDIR(info.st_mode) and info.st_uid == uid and not info.st_mode & 0o022:
        return ""
    owner = f"{directory} belongs to user {info.st_uid} with mode {info.st_mode & 0o7777:04o}"
    return f"ignored: {owner}, and only user {uid} must be able to write to it"


def connect(path: str) -> sockets.socket:
    """Return a socket that is connected, and does not block: a full backlog is an error, not a wait without end."""
    made: sockets.socket | None = None
    try:
        made = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        made.setblocking(False)
        made.connect(path)
        return made
    except OSError as error:
        if made is not None:
            made.close()
        is_other = os.path.isfile(path) or os.path.isdir(path)
        why = "it is not a socket" if is_other else _why(error)
        raise _away(f"cannot connect to {path}: {why}", path, is_other or isinstance(error, PermissionError)) from error


def _away(what: str, path: str, is_hopeless: bool) -> DaemonUnavailableError:
    """Return the error. Nobody waits for the end of a hopeless one: a person has to change something."""
    error = DaemonUnavailableError(f"{what}; {_ADVICE}", path=path)
    error.transient = not is_hopeless
    return error


def _why(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "no daemon listens on it"
    if isinstance(error, PermissionError):
        return f"{error.strerror}: add your user to the socket's group, which the daemon's --socket-group names"
    return error.strerror or str(error)
