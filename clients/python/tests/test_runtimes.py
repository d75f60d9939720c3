"""Where people run the client: each line of the README's table is held here, with the real servers and frameworks."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from harness import DIE_WITH_PARENT, PACKAGE, Daemon

deep = pytest.mark.skipif(os.environ.get("KZTEST_RING") != "deep", reason="KZTEST_RING=deep runs it")


def environment(daemon: Daemon, directory: Path) -> dict[str, str]:
    path = os.pathsep.join([str(directory), str(PACKAGE / "src")])
    # eventlet says at each start that it is no longer developed.
    return {**os.environ, "KAZAHANA_SOCKET": daemon.socket, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}


def run(daemon: Daemon, directory: Path, code: str, interpreter: str = sys.executable) -> str:
    done = subprocess.run(
        [interpreter, "-c", code], env=environment(daemon, directory), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


GREEN = {
    "gevent": ("from gevent import monkey; monkey.patch_all()", "gevent.spawn", "gevent.sleep", "t.join()"),
    "eventlet": ("import eventlet; eventlet.monkey_patch()", "eventlet.spawn", "eventlet.sleep", "t.wait()"),
}
GREEN_PROGRAM = """
{before}
import kazahana, sys, threading
plain, ahead = kazahana.Client(timeout=60), kazahana.Client(timeout=60, prefetch=8)
{after}
import {library}
got, ticks = [], [0]

def ask():
    for _ in range(20):
        got.extend((plain.next_id(), ahead.next_id()))

def tick():
    while True:
        ticks[0] += 1
        {sleep}(0.001)

tasks = [{spawn}(ask) for _ in range(30)]
for t in tasks:
    {join}
assert len(set(got)) == 30 * 40
{spawn}(tick)
for client in (kazahana.Client(sys.argv[1], timeout=0.3), kazahana.Client(sys.argv[1], timeout=0.3, prefetch=8)):
    ticks[0] = 0
    try:
        client.next_id()
    except kazahana.RequestTimeoutError as error:
        assert ticks[0] > 1, "the call kept all others from running"
    else:
        raise SystemExit("a daemon that does not answer must be a timeout")
with plain.lock("{library}{order}") as lock:
    ticks[0] = 0
    assert lock.token
    while ticks[0] <= 1:  # for ever, if the wait keeps all others from running
        assert not lock.lost.wait(0.05)
print("ok")
"""


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[str]:
    """A socket that is listened on, where nobody ever answers."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "f.sock"))
        listener.listen(64)
        yield str(tmp_path / "f.sock")


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("library", GREEN)
def test_green_threads(daemon: Daemon, tmp_path: Path, frozen: str, library: str, order: str) -> None:
    pytest.importorskip("gevent" if library == "gevent" else "greenlet")
    patch, spawn, sleep, join = GREEN[library]
    parts = {"before": "", "after": "", order: patch}
    code = GREEN_PROGRAM.format(library=library, order=order, spawn=spawn, sleep=sleep, join=join, **parts)
    program = tmp_path / "program.py"
    program.write_text(code)
    done = subprocess.run(
        [sys.executable, str(program), frozen],
        env=environment(daemon, tmp_path), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "ok\n", done.stderr[-4000:]


def test_gevent_interrupts_a_call(daemon: Daemon, tmp_path: Path, frozen: str) -> None:
    """gevent.Timeout and kill end a call in the middle; its connection is not used again."""
    pytest.importorskip("gevent")
    code = f"""
        from gevent import monkey; monkey.patch_all()
        import gevent, kazahana
        client = kazahana.Client({frozen!r})
        try:
            with gevent.Timeout(0.05):
                client.next_id()
        except gevent.Timeout:
            print("ended", bool(client._idle))
    """
    assert run(daemon, tmp_path, textwrap.dedent(code)) == "ended False\n"


def test_anyio_and_trio(daemon: Daemon, tmp_path: Path) -> None:
    """On anyio over asyncio an AsyncClient works; under trio, a Client in threads."""
    pytest.importorskip("trio")
    code = """
        import anyio, trio, kazahana

        async def tasks():
            got = []
            async def ask():
                got.append(await ids.next_id())
            async with kazahana.AsyncClient(timeout=60) as ids, anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(ask)
            print(len(set(got)))

        async def threads():
            got = []
            async def ask():
                got.append(await trio.to_thread.run_sync(client.next_id))
            with kazahana.Client(timeout=60) as client:
                async with trio.open_nursery() as nursery:
                    for _ in range(50):
                        nursery.start_soon(ask)
            print(len(set(got)))

        anyio.run(tasks, backend="asyncio")
        trio.run(threads)
    """
    assert run(daemon, tmp_path, textwrap.dedent(code)) == "50\n50\n"


def test_uvloop(daemon: Daemon, tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")
    code = """
        import asyncio, uvloop, kazahana

        async def main():
            async with kazahana.AsyncClient(timeout=60) as ids, ids.lock("uvloop") as lock:
                print(len(set(await asyncio.gather(*(ids.next_id() for _ in range(500))))), lock.lost.is_set())

        uvloop.install()
        asyncio.run(main())
    """
    assert uvloop and run(daemon, tmp_path, textwrap.dedent(code)) == "500 False\n"


def test_multiprocessing(daemon: Daemon, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import multiprocessing, kazahana
            ahead, plain = kazahana.Client(timeout=60, prefetch=16, max_age=3600), kazahana.Client(timeout=60)

            def ask(_):
                return [ahead.next_id(), plain.next_id()]

            if __name__ == "__main__":
                got = ask(0)
                for method in ("fork", "spawn", "forkserver"):
                    with multiprocessing.get_context(method).Pool(3) as pool:
                        got += sum(pool.map(ask, range(30)), [])
                print(len(got), len(set(got)))
        """)
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        env=environment(daemon, tmp_path), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "182 182\n", done.stderr[-4000:]


def test_nothing_is_left_to_warn_of_at_exit(daemon: Daemon, tmp_path: Path) -> None:
    """Clients of a module, which nobody closes."""
    code = """
        import asyncio, gc, sys, threading, kazahana
        client, ahead = kazahana.Client(timeout=60), kazahana.Client(timeout=60, prefetch=4)
        aio = kazahana.AsyncClient(timeout=60)
        client.next_id(), ahead.next_id()
        threading.Thread(target=client.next_id).start()
        async def main():
            asyncio.get_running_loop().slow_callback_duration = 600  # a busy machine is slow
            await aio.next_id()
        asyncio.run(main())
        lock = client.lock("left at exit").acquire()
        dropped = kazahana.Client(timeout=60)
        dropped.next_id()
        del dropped
        gc.collect()
    """
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "always", str(program)],
        env={**environment(daemon, tmp_path), "PYTHONWARNINGS": "always"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


WSGI = """
import kazahana
ahead, plain = kazahana.Client(timeout=60, prefetch=16, max_age=3600), kazahana.Client(timeout=60)
early = [ahead.next_id(), plain.next_id()]  # with --preload in the master, before its workers are forked

def app(environ, start_response):
    body = f"{ahead.next_id()} {plain.next_id()}".encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
"""
ASGI = """
import kazahana
ahead, plain = kazahana.AsyncClient(timeout=60, prefetch=16, max_age=3600), kazahana.AsyncClient(timeout=60)

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = f"{await ahead.next_id()} {await plain.next_id()}".encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


def fetch(path: str) -> list[int]:
    connection = _Connection(path)
    try:
        connection.request("GET", "/", headers={"Connection": "close"})
        return [int(word) for word in connection.getresponse().read().split()]
    finally:
        connection.close()


@contextlib.contextmanager
def serving(daemon: Daemon, directory: Path, app: str, *command: str) -> Iterator[str]:
    """A server on a Unix socket, once it answers."""
    (directory / "app.py").write_text(app)
    path = str(directory / "http.sock")
    log = directory / "log"
    with log.open("wb") as out:
        arguments = [word.replace("SOCKET", path) for word in command]
        process = subprocess.Popen(
            [*DIE_WITH_PARENT, *arguments],
            cwd=directory, env=environment(daemon, directory), stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 240
            while True:
                try:
                    fetch(path)
                    break
                except (OSError, http.client.HTTPException):
                    assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
                    time.sleep(0.05)
            yield path
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=60)


def requests(path: str) -> None:
    """Ask by eight threads; no ID may be seen twice."""
    got: list[int] = []

    def ask() -> None:
        for _ in range(10):
            got.extend(fetch(path))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(got) == len(set(got)) == 8 * 10 * 2


def tool(name: str) -> str:
    found = Path(sys.executable).with_name(name)
    if not found.exists():
        pytest.skip(f"{name} is not installed")
    return str(found)


# All that gunicorn has (gevent_wsgi is gevent_pywsgi), and uvicorn's.
WORKERS = ["sync", "gthread", "gevent", "gevent_pywsgi", "tornado", "asgi", "uvicorn_worker.UvicornWorker"]


def gunicorn(daemon: Daemon, directory: Path, worker: str, *flags: str) -> None:
    workers = pytest.importorskip("gunicorn.workers").SUPPORTED_WORKERS
    if "." not in worker and worker not in workers:
        pytest.skip("this gunicorn is older")
    if worker not in ("sync", "gthread", "asgi"):
        pytest.importorskip(worker.split("_pywsgi")[0].split(".")[0])
    app = ASGI if worker == "asgi" or "vicorn" in worker else WSGI
    base = [
        tool("gunicorn"),
        "--bind",
        "unix:SOCKET",
        "--workers",
        "2",
        "--worker-class",
        worker,
        "--no-control-socket",
    ]
    threads = ["--threads", "4"] if worker == "gthread" else []
    with serving(daemon, directory, app, *base, *threads, *flags, "app:app") as path:
        requests(path)


def test_every_worker_class_of_gunicorn_is_tried() -> None:
    """Without eventlet's, which older releases have, and without another name of the same."""
    workers = pytest.importorskip("gunicorn.workers").SUPPORTED_WORKERS
    assert set(workers) - {"eventlet", "gevent_wsgi"} <= set(WORKERS)


def test_gunicorn_gevent_preload(daemon: Daemon, tmp_path: Path) -> None:
    """The client is used before the workers are forked, and they patch afterwards."""
    gunicorn(daemon, tmp_path, "gevent", "--preload")


@deep
@pytest.mark.parametrize("flags", [[], ["--preload"]], ids=["", "preload"])
@pytest.mark.parametrize("worker", WORKERS)
def test_gunicorn(daemon: Daemon, tmp_path: Path, worker: str, flags: list[str]) -> None:
    gunicorn(daemon, tmp_path, worker, *flags)


@deep
def test_uvicorn(daemon: Daemon, tmp_path: Path) -> None:
    with serving(daemon, tmp_path, ASGI, tool("uvicorn"), "--uds", "SOCKET", "app:app") as path:
        requests(path)


@deep
@pytest.mark.parametrize("flags", [[], ["--lazy-apps"], ["--enable-threads", "--threads", "4"]], ids=str)
def test_uwsgi(daemon: Daemon, tmp_path: Path, flags: list[str]) -> None:
    base = [tool("pyuwsgi"), "--http-socket", "SOCKET", "--master", "--processes", "2", "--module", "app:app"]
    with serving(daemon, tmp_path, WSGI, *base, "--pythonpath", str(PACKAGE / "src"), *flags) as path:
        requests(path)


@deep
def test_celery_prefork(daemon: Daemon, tmp_path: Path) -> None:
    pytest.importorskip("celery")
    for name in ("queue", "control", "results"):
        (tmp_path / name).mkdir()
    (tmp_path / "work.py").write_text(
        textwrap.dedent(f"""
            import celery, kazahana
            ahead, plain = kazahana.Client(timeout=60, prefetch=16, max_age=3600), kazahana.Client(timeout=60)
            ahead.next_id(), plain.next_id()  # before the workers are forked
            app = celery.Celery("work", broker="filesystem://", backend="file://{tmp_path}/results")
            app.conf.broker_transport_options = {{
                "data_folder_in": "{tmp_path}/queue", "data_folder_out": "{tmp_path}/queue",
                "control_folder": "{tmp_path}/control",
            }}

            @app.task
            def ids():
                return [str(ahead.next_id()), str(plain.next_id())]
        """)
    )
    command = [sys.executable, "-m", "celery", "-A", "work", "worker", "--pool", "prefork", "--concurrency", "2"]
    with (tmp_path / "log").open("wb") as out:
        process = subprocess.Popen(
            [*DIE_WITH_PARENT, *command, "--without-gossip", "--without-mingle", "--without-heartbeat"],
            cwd=tmp_path, env=environment(daemon, tmp_path), stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
        try:
            code = """
                import work
                asked = [work.ids.delay() for _ in range(40)]
                got = [id for one in asked for id in one.get(timeout=100)]
                print(len(got), len(set(got)))
            """
            assert run(daemon, tmp_path, textwrap.dedent(code)) == "80 80\n", (tmp_path / "log").read_text()[-4000:]
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=60)


def free_threaded() -> str | None:
    """Return an interpreter without its lock: this one, else the newest on the PATH."""
    enabled: Any = getattr(sys, "_is_gil_enabled", None)
    if enabled is not None and not enabled():
        return sys.executable
    return next(filter(None, (shutil.which(f"python3.{minor}t") for minor in range(19, 12, -1))), None)


def test_free_threaded(daemon: Daemon, tmp_path: Path) -> None:
    """Without the interpreter's lock, threads share a client."""
    interpreter = free_threaded()
    if interpreter is None:
        pytest.skip("there is no Python without its lock, such as python3.14t, on the PATH")
    if interpreter != sys.executable:  # which finds msgpack's form in Python
        (tmp_path / "msgpack").symlink_to(Path(msgpack.__file__).parent)
    code = """
        import sys, threading, kazahana
        assert not sys._is_gil_enabled()
        plain, ahead, got = kazahana.Client(timeout=60), kazahana.Client(timeout=60, prefetch=16), []
        def ask():
            for _ in range(300):
                got.append(plain.next_id())
                got.append(ahead.next_id())
        threads = [threading.Thread(target=ask) for _ in range(16)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(len(got), len(set(got)))
    """
    assert run(daemon, tmp_path, textwrap.dedent(code), interpreter) == "9600 9600\n"
