"""The real daemon, and a scripted one that speaks what a test tells it to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import msgpack
import pytest
from hypothesis import configuration, settings

import kazahana

settings.register_profile("kazahana", database=None, deadline=None)  # a busy machine is no failure
settings.load_profile("kazahana")

PACKAGE = Path(__file__).resolve().parents[1]
REPOSITORY = PACKAGE.parents[1]
TOOLS = REPOSITORY / ".tools" / "python-client"
PATIENCE = 120.0  # s; how long anything may take on a machine that is busy with other things
# The kernel ends the daemon when the tests are killed (Linux).
DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
configuration.set_hypothesis_home_dir(TOOLS / "hypothesis")


def build_daemon() -> str:
    """The binary of KAZAHANAD, else one that is built once."""
    named = os.environ.get("KAZAHANAD")
    if named:
        return os.path.abspath(named)
    built = TOOLS / "kazahanad"
    built.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["go", "build", "-tags", "grpcnotrace,nopgxregisterdefaulttypes", "-o", str(built), "./cmd/kazahanad"],
        cwd=REPOSITORY,
        check=True,
    )
    return str(built)


class Daemon:
    """A daemon with a directory of its own."""

    def __init__(self, binary: str, *arguments: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="kzpy"))
        self.socket = str(self.directory / "k.sock")
        serve = [binary, "serve", "--config", "none", "--socket", self.socket, "--state-dir", str(self.directory)]
        serve += ["--startup-wait", "60s", "--provider-timeout", "60s"]  # a busy machine is no failure
        self._command = [*DIE_WITH_PARENT, *serve, *arguments]
        self._log = (self.directory / "log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Daemon:
        # Variables that configure the daemon of whoever runs the tests are none of this one's.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KAZAHANA")}
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log, env=environment)
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(PATIENCE)
                probe.connect(self.socket)
                probe.sendall(msgpack.packb([0, 1, "Ping", []]))
                assert probe.recv(100)
                return self
            assert self._process.poll() is None and time.monotonic() < deadline, (self.directory / "log").read_text()
            time.sleep(0.01)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            if number == signal.SIGSTOP:
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)
            if number in (signal.SIGTERM, signal.SIGKILL):
                self._process.wait(timeout=PATIENCE)
                self._process = None

    def remove(self) -> None:
        self.stop(signal.SIGKILL)
        self._log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class LeaseServer:
    """A lease server, whose store daemons share."""

    def __init__(self, binary: str) -> None:
        self._directory = tempfile.mkdtemp(prefix="kzpy")
        log = Path(self._directory, "log")
        serve = [binary, "lease-server", "--config", "none", "--listen", "127.0.0.1:0", "--rate-limit", "0"]
        serve += ["--provider-timeout", "60s", "--log-format", "json"]
        serve += ["--provider", f"sqlite:{self._directory}/leases.db"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KAZAHANA")}
        with log.open("wb") as said:
            self._process = subprocess.Popen([*DIE_WITH_PARENT, *serve], stdout=said, stderr=said, env=environment)
        ready = re.compile(r'"msg":"the lease server is ready".*"listen":"([^"]+)"')
        wait_until(lambda: ready.search(log.read_text()) or self._process.poll() is not None)
        found = ready.search(log.read_text())
        assert found, log.read_text()
        self.url = f"http://{found[1]}"

    def remove(self) -> None:
        self._process.kill()
        self._process.wait(timeout=PATIENCE)
        shutil.rmtree(self._directory, ignore_errors=True)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for what will come true; only a hang lets it fail."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Clock:
    """Stands in for the clock by which the age of IDs, and the end of a lock, is judged."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in ("client", "prefetch", "holding"):
        monkeypatch.setattr(f"kazahana.{module}.now", made)
    return made


@pytest.fixture(scope="session")
def binary() -> str:
    return build_daemon()


@pytest.fixture
def make_daemon(binary: str) -> Iterator[Callable[..., Daemon]]:
    made: list[Daemon] = []

    def make(*arguments: str) -> Daemon:
        made.append(Daemon(binary, *arguments))
        return made[-1].start()

    yield make
    for one in made:
        one.remove()


@pytest.fixture
def lease_server(binary: str) -> Iterator[LeaseServer]:
    one = LeaseServer(binary)
    yield one
    one.remove()


@pytest.fixture(scope="session")
def daemon(binary: str) -> Iterator[Daemon]:
    one = Daemon(binary)
    try:
        yield one.start()
    finally:
        one.remove()


def member(daemon: Daemon, hosts: int = 1) -> Daemon:
    """Wait until the daemon knows that it is one of so many that actors are placed on."""
    with kazahana.Client(daemon.socket) as client:

        def known() -> bool:
            seen = client._perform(client._calls.make("Placement.Snapshot", [], dict))
            return bool(seen["state"] == "member" and len(seen["members"]) == hosts)

        wait_until(known)
    return daemon


@pytest.fixture(scope="session")
def placing(binary: str) -> Iterator[Daemon]:
    """One with placement. Tests use kinds of actors of their own, and leave it as it is."""
    one = Daemon(binary, "--placement-authority", "127.0.0.1:7001")
    try:
        yield member(one.start())
    finally:
        one.remove()


Answer = Callable[["Peer", int, str, "list[Any]"], None]


class Peer:
    """A connection of the scripted daemon."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, *message: Any) -> None:
        self.connection.sendall(msgpack.packb(message))

    def result(self, msgid: int, value: Any) -> None:
        self.send(1, msgid, None, value)

    def error(self, msgid: int, text: str, kind: int = 0) -> None:
        self.send(1, msgid, [kind, text], None)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class Script:
    """A daemon that answers by a function. `asked` holds every request: connection number, method, params."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.directory = tempfile.mkdtemp(prefix="kzpy")
        self.socket = self.directory + "/k.sock"
        self.asked: list[tuple[int, str, list[Any]]] = []
        self.peers: list[Peer] = []
        self.ended: list[threading.Event] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.socket)
        self._listener.listen(64)
        self._run(self._accept)

    def _run(self, target: Callable[..., None], *args: Any) -> None:
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.peers.append(Peer(connection))
            self.ended.append(threading.Event())
            self._run(self._serve, len(self.peers) - 1)

    def _serve(self, number: int) -> None:
        peer, unpacker = self.peers[number], msgpack.Unpacker()
        with contextlib.suppress(OSError):
            while data := peer.connection.recv(65536):
                unpacker.feed(data)
                for _, msgid, method, params in unpacker:
                    self.asked.append((number, method, params))
                    self.answer(peer, msgid, method, params)
        self.ended[number].set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self.peers:
            peer.close()
        for thread in self._threads:
            thread.join(10)
        for peer in self.peers:
            peer.connection.close()
        shutil.rmtree(self.directory)


@pytest.fixture
def script() -> Iterator[Callable[[Answer], Script]]:
    made: list[Script] = []

    def make(answer: Answer) -> Script:
        made.append(Script(answer))
        return made[-1]

    yield make
    for one in made:
        one.close()


def hostile_answers() -> list[dict[str, Any]]:
    """Messages that no daemon sends, each with the method of the request that it answers."""
    answers: list[dict[str, Any]] = json.loads((REPOSITORY / "testdata" / "hostile_answers.json").read_text("utf-8"))
    return answers


def exchanges() -> list[dict[str, Any]]:
    """The recorded exchanges, with integers beyond 2^53 as they are."""

    def integers(table: dict[str, Any]) -> Any:
        return int(table["$int"]) if set(table) == {"$int"} else table

    text = (REPOSITORY / "testdata" / "wire_exchanges.json").read_text("utf-8")
    return json.loads(text, object_hook=integers)


def stateless_exchanges() -> list[dict[str, Any]]:
    """Those to which every daemon gives the recorded answer, whatever it was asked before."""

    def is_stateless(exchange: dict[str, Any]) -> bool:
        if "error" in exchange:
            return bool(exchange["error"]["kind"] == 1 and exchange["error"]["code"] != "REQUEST_ID_REUSED")
        return exchange["method"] in ("Ping", "Inspect", "Bounds", "ToExternal", "ToInternal")

    return list(filter(is_stateless, exchanges()))


class Driven:
    """An AsyncClient that is called as a Client is, so that one test can hold both to the same."""

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or asyncio.new_event_loop()
        self.client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.loop.run_until_complete(getattr(self.client, name)(*args, **kwargs))

    def finish(self) -> None:
        self.loop.run_until_complete(self.client.close())
        self.loop.close()


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes clients of both kinds."""
    made: list[Any] = []

    def make(*args: Any, **options: Any) -> Any:
        if request.param == "sync":
            made.append(kazahana.Client(*args, **options))
        else:
            made.append(Driven(kazahana.AsyncClient(*args, **options)))
        return made[-1]

    yield make
    for client in made:
        client.finish() if isinstance(client, Driven) else client.close()
