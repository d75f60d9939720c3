"""Finding the daemon's socket, and explaining why it cannot be reached."""

from __future__ import annotations

import errno
import grp
import os
import socket as sockets
import stat
from collections.abc import Mapping

from .errors import DaemonUnavailableError, InvalidParamsError, SocketUnusableError

_NAME = "kazahanad.sock"
_START = "start the daemon with `kazahanad serve`"
_NAMED = ", or name its socket in KAZAHANA_SOCKET or with Client(socket=...)"
# Errors that a restarting daemon causes for a moment.
_TRANSIENT = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.ECONNRESET, errno.EPIPE)


def parse(text: str) -> str:
    """Read a path or a unix:///path URI."""
    text = text.strip()
    path = text[len("unix://") :] if text.startswith("unix://") else text
    if "://" in path or not path or (path != text and not path.startswith("/")):
        raise InvalidParamsError(f"socket {text!r}: want a path or a unix:///path URI")
    return path


def candidates(environ: Mapping[str, str], uid: int) -> list[str]:
    """Return the possible places; if there is one only, KAZAHANA_SOCKET names it.

    RUNTIME_DIRECTORY is not among them: in a client it belongs to the client's own unit.
    """
    named = environ.get("KAZAHANA_SOCKET", "").strip()
    if named:
        return [parse(named)]
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    paths = [os.path.join(runtime, "kazahana", _NAME)] if os.path.isabs(runtime) else []
    return [*paths, f"/run/kazahana/{_NAME}", f"/tmp/kazahana-{uid}/{_NAME}"]


def find(socket: str | None = None) -> str:
    """Return the path of the socket to connect to: the one named, else the first that exists."""
    uid = os.geteuid()
    paths = candidates(os.environ, uid) if socket is None else [parse(socket)]
    if len(paths) == 1:
        return paths[0]
    tried = []
    for path in paths:
        try:
            os.stat(path)
        except OSError as error:
            tried.append(f"{path} ({error.strerror})")
            continue
        if path.startswith(f"/tmp/kazahana-{uid}/"):
            _distrust(os.path.dirname(path), uid)
        return path
    raise DaemonUnavailableError(f"no daemon's socket found; tried {', '.join(tried)}: {_START}{_NAMED}", path=paths[0])


def _distrust(directory: str, uid: int) -> None:
    """Refuse a directory below /tmp that another user may have put there to answer in the daemon's place."""
    info = os.lstat(directory)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != uid or info.st_mode & 0o022:
        why = f"{directory} is not a directory that only user {uid} can write: its socket is not trusted"
        raise SocketUnusableError(why, path=directory)


def connect(path: str) -> sockets.socket:
    """Return a socket that is connected, and does not block: a full backlog is an error, not a wait without end."""
    try:
        made = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.connect(path)
        except BaseException:
            made.close()
            raise
    except OSError as error:
        raise unavailable(path, error) from error
    return made


def unavailable(path: str, error: OSError) -> DaemonUnavailableError:
    """Explain why no daemon answers at path, and what to do."""
    kind = DaemonUnavailableError if error.errno in _TRANSIENT else SocketUnusableError
    if error.errno == errno.ECONNREFUSED and os.path.exists(path) and not stat.S_ISSOCK(os.stat(path).st_mode):
        kind, error = SocketUnusableError, OSError(errno.ENOTSOCK, "it is not a socket")
    if error.errno in (errno.EACCES, errno.EPERM):
        reason = f"permission denied{_who_may(path)}"
    elif error.errno == errno.ENOENT:
        reason = f"it does not exist; {_START}{_NAMED}"
    elif error.errno == errno.ECONNREFUSED:
        reason = f"no daemon listens on it; {_START}"
    else:
        reason = f"{error.strerror or error}; {_START}{_NAMED}"
    return kind(f"cannot connect to {path}: {reason}", path=path)


def _who_may(path: str) -> str:
    for place in (path, os.path.dirname(path)):
        try:
            info = os.stat(place)
        except OSError:  # its directory may not be readable
            continue
        try:
            group = grp.getgrgid(info.st_gid).gr_name
        except KeyError:
            group = str(info.st_gid)
        advice = f"a user of that group may connect (usermod -aG {group} USER, then log in again)"
        if info.st_gid == 0 or not info.st_mode & stat.S_IWGRP:
            advice = "give the daemon a group of its own with --socket-group and --socket-mode 0660"
        mode = f"{info.st_mode & 0o7777:04o}"
        return f"; {place} belongs to user {info.st_uid} and group {group} with mode {mode}: {advice}"
    return ""
