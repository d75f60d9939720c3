from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest

from harness import REPOSITORY
from kazahana import Client, DaemonUnavailableError, InvalidParamsError, address

TABLE: list[dict[str, str]] = json.loads((REPOSITORY / "testdata" / "socket_addresses.json").read_text("utf-8"))


@pytest.mark.parametrize("one", TABLE, ids=lambda one: repr(one["text"]))
def test_addresses(one: dict[str, str]) -> None:
    if "path" in one:
        assert address.parse(one["text"]) == one["path"]
        return
    with pytest.raises(InvalidParamsError, match=one["refused"]) as caught:
        Client(one["text"])
    assert "secret" not in str(caught.value)


def test_a_path_is_read_once() -> None:
    with pytest.raises(DaemonUnavailableError) as caught:
        Client("unix:unix:/nowhere/k.sock", single_attempt=True).ping()
    assert caught.value.path == "unix:/nowhere/k.sock"


def test_order(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = ["/run/kazahana/kazahanad.sock", "/tmp/kazahana-7/kazahanad.sock"]

    def paths(environ: dict[str, str]) -> list[str]:
        return [path for path, _ in address.candidates(environ, 7)]

    assert paths({}) == usual
    environ = {"XDG_RUNTIME_DIR": "/run/user/7", "RUNTIME_DIRECTORY": "/run/mine"}
    assert paths(environ) == ["/run/user/7/kazahana/kazahanad.sock", *usual]
    assert paths({"XDG_RUNTIME_DIR": "relative"}) == usual
    monkeypatch.setenv("KAZAHANA_SOCKET", " unix:/x\n")
    assert address.find() == "/x"
    monkeypatch.setenv("KAZAHANA_SOCKET", "http://u:secret@host")
    with pytest.raises(InvalidParamsError, match="KAZAHANA_SOCKET is not a Unix socket"):
        address.find()


def test_first_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.touch()
    monkeypatch.delenv("KAZAHANA_SOCKET", raising=False)
    monkeypatch.setattr(address, "candidates", lambda *_: [(str(missing), ""), (str(there), "")])
    assert address.find() == str(there)
    there.unlink()
    with pytest.raises(DaemonUnavailableError, match="kazahanad serve") as caught:
        address.find()
    assert str(missing) in str(caught.value) and str(there) in str(caught.value)


def test_directory_of_another_user_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`su` and `sudo -E` keep XDG_RUNTIME_DIR, and every user can make a directory below /tmp."""
    socket, second = tmp_path / "kazahana" / "kazahanad.sock", tmp_path / "second"
    socket.parent.mkdir()
    socket.touch()
    second.touch()
    tmp_path.chmod(0o700)
    monkeypatch.delenv("KAZAHANA_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert address.find() == str(socket)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1_000_000)
    places = address.candidates(os.environ, os.geteuid())
    monkeypatch.setattr(address, "candidates", lambda *_: [places[0], (str(second), "")])
    assert address.find() == str(second)
    second.unlink()
    why = f"ignored: {tmp_path} belongs to user {me} with mode 0700, and only user {me + 1_000_000} must"
    with pytest.raises(DaemonUnavailableError, match=why):
        address.find()
    monkeypatch.setattr(os, "geteuid", lambda: me)
    tmp_path.chmod(0o777)
    with pytest.raises(DaemonUnavailableError, match="with mode 0777"):
        address.find()
    assert places[-1] == (f"/tmp/kazahana-{me + 1_000_000}/kazahanad.sock", f"/tmp/kazahana-{me + 1_000_000}")


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


def test_denial_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.delenv("KAZAHANA_SOCKET", raising=False)
    monkeypatch.setattr(os, "stat", denied)
    why = r"kazahanad.sock \(Permission denied: add your user to .* group"
    with pytest.raises(DaemonUnavailableError, match=why) as caught:
        address.find()
    assert not caught.value.transient


def test_what_a_person_has_to_change_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Denied(socket.socket):
        def connect(self, _: object) -> None:
            raise PermissionError(13, "Permission denied")

    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    for path in (file, tmp_path):
        with pytest.raises(DaemonUnavailableError, match="it is not a socket") as caught:
            Client(str(path)).ping()
        assert caught.value.path == str(path)
    monkeypatch.setattr(socket, "socket", Denied)
    with pytest.raises(DaemonUnavailableError, match="socket-group") as caught:
        Client(str(tmp_path / "k.sock")).ping()
    assert isinstance(caught.value.__cause__, PermissionError)
