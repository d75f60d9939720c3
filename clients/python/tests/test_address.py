from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from kazahana import Client, DaemonUnavailableError, InvalidParamsError, SocketUnusableError, address


@pytest.mark.parametrize("text", ["/a/b.sock", " unix:///a/b.sock ", "unix:///a/b.sock"])
def test_paths_and_uris(text: str) -> None:
    assert address.parse(text) == "/a/b.sock"


@pytest.mark.parametrize("text", ["", " ", "http://x", "unix://host/x", "unix://", "tcp://127.0.0.1:1"])
def test_no_paths(text: str) -> None:
    with pytest.raises(InvalidParamsError, match="unix:///path"):
        Client(text)


def test_order() -> None:
    usual = ["/run/kazahana/kazahanad.sock", "/tmp/kazahana-7/kazahanad.sock"]
    assert address.candidates({}, 7) == usual
    environ = {"XDG_RUNTIME_DIR": "/run/user/7", "RUNTIME_DIRECTORY": "/run/mine"}
    assert address.candidates(environ, 7) == ["/run/user/7/kazahana/kazahanad.sock", *usual]
    assert address.candidates({"XDG_RUNTIME_DIR": "relative"}, 7) == usual
    assert address.candidates({**environ, "KAZAHANA_SOCKET": "unix:///x"}, 7) == ["/x"]
    assert address.candidates({**environ, "KAZAHANA_SOCKET": " "}, 7)[1:] == usual


def test_first_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.touch()
    monkeypatch.setattr(address, "candidates", lambda *_: [str(missing), str(there)])
    assert address.find() == str(there)
    there.unlink()
    with pytest.raises(DaemonUnavailableError, match="kazahanad serve") as caught:
        address.find()
    assert str(missing) in str(caught.value) and str(there) in str(caught.value)


def test_directory_of_another_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(SocketUnusableError, match="not trusted"):
        address._distrust(str(tmp_path), os.geteuid())
    tmp_path.chmod(0o700)
    address._distrust(str(tmp_path), os.geteuid())
    with pytest.raises(SocketUnusableError, match="not trusted"):
        address._distrust(str(tmp_path), os.geteuid() + 1)


def test_socket_of_another_user_below_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    uid = 2_000_000_000 + os.getpid()
    directory = Path(f"/tmp/kazahana-{uid}")
    directory.mkdir(0o700)  # ours, and so not that user's
    try:
        (directory / "kazahanad.sock").touch()
        monkeypatch.setattr(address, "candidates", lambda *_: ["/nowhere", str(directory / "kazahanad.sock")])
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        with pytest.raises(SocketUnusableError, match="not trusted"):
            address.find()
    finally:
        (directory / "kazahanad.sock").unlink()
        directory.rmdir()


def test_errors_name_path_and_remedy(tmp_path: Path) -> None:
    missing = tmp_path / "missing.sock"
    with pytest.raises(DaemonUnavailableError) as caught:
        Client(str(missing), timeout=0.05).ping()
    assert str(missing) in str(caught.value) and "kazahanad serve" in str(caught.value)
    assert caught.value.path == str(missing)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert isinstance(caught.value, ConnectionError)

    refused = tmp_path / "refused.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(refused))
    with pytest.raises(DaemonUnavailableError, match="no daemon listens on it; start the daemon"):
        Client(str(refused), timeout=0.05).ping()

    regular = tmp_path / "regular"
    regular.touch()
    with pytest.raises(SocketUnusableError, match="not a socket"):
        Client(str(regular)).ping()

    with pytest.raises(SocketUnusableError, match="too long"):
        Client("/" + "x" * 200).ping()


def test_denial_names_the_group(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    path.touch()
    path.chmod(0o660)
    os.chown(path, -1, os.getegid())
    error = address.unavailable(str(path), PermissionError(13, "Permission denied"))
    assert not error.transient and "permission denied" in str(error)
    group = path.group()
    assert f"group {group}" in str(error)
    assert ("usermod -aG" in str(error)) == (path.stat().st_gid != 0)
    path.chmod(stat.S_IRUSR)
    assert "--socket-group" in str(address.unavailable(str(path), PermissionError(13, "Permission denied")))
