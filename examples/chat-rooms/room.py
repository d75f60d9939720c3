"""A process of chat rooms. room.mjs is the same in JavaScript; one host may run several of both.

    python room.py SOCKET STORE

SOCKET is that of the host's kazahanad, STORE the URL of ../fenced-store. The process prints what happens to its
rooms, a line of JSON each, and ends politely when its standard input does.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import kazahana
from kazahana_placement import Activation, Placement

KEPT = 1000  # messages of a room
HOPS = 4  # limit for a message: rooms may move meanwhile
TIMEOUT = 10.0  # s, for answers of others
DOOR_RETRY = 0.5  # s

SOCKET, STORE = sys.argv[1:]
client = kazahana.Client(SOCKET, timeout=TIMEOUT)
placement = Placement(client)
rooms: dict[str, Room] = {}
printing = threading.Lock()


class MovedError(Exception):
    """The room is not, or no longer, here."""


class Room:
    """One activation of a room."""

    def __init__(self, activation: Activation) -> None:
        self.activation = activation
        self.mutex = threading.Lock()  # one message at a time
        self.is_open = True
        self.messages: list[str] | None = None  # as in the store; None: not read yet

    def use(self, text: str | None) -> list[str]:
        """Append a message, if there is one, and return all."""
        with self.mutex:
            if not self.is_open:
                raise MovedError
            messages = self.messages
            if messages is None:  # reading with the token shuts out earlier activations
                messages = json.loads(self.ask_store("GET") or "[]")
            relied = time.monotonic_ns()
            self.activation.check()  # another activation may have written since
            if text is not None:
                self.messages = None  # if this fails, the content of the store is unknown
                messages = [*messages, text][-KEPT:]
                self.ask_store("PUT", json.dumps(messages))
                tell("wrote", self.activation, relied=relied)
            self.messages = messages
            return messages

    def ask_store(self, method: str, value: str | None = None) -> str:
        token = str(self.activation.token)
        headers = {"Fencing-Token": token, "Writer": own}
        body = None if value is None else value.encode()
        request = urllib.request.Request(f"{STORE}/{self.activation.identity}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return str(answer.read(), "utf-8")
        except urllib.error.HTTPError as error:
            tell("refused", self.activation, why=error.read().decode().strip())
            raise MovedError from error

    def close(self) -> None:
        with self.mutex:  # wait for the write under way
            self.is_open = False


def activate(activation: Activation) -> str:
    tell("activated", activation)
    rooms[activation.identity] = Room(activation)
    return own  # callers that resolve the room send its messages there


def passivate(activation: Activation) -> None:
    rooms.pop(activation.identity).close()
    tell("passivated", activation)


def ended(activation: Activation) -> None:
    """The daemon is gone, and another host may have the room by now."""
    rooms.pop(activation.identity).close()
    tell("ended", activation)


def tell(did: str, activation: Activation | None = None, **more: Any) -> None:
    about = {"at": time.monotonic_ns(), "did": did, **more}
    if activation is not None:
        about.update(room=activation.identity, version=activation.version, token=activation.token)
    with printing:
        print(json.dumps(about), flush=True)


class Door(BaseHTTPRequestHandler):
    """GET /ROOM returns its messages, POST /ROOM appends the body as one. Any process finds out where the room is."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self.handle_message(None)

    def do_POST(self) -> None:
        self.handle_message(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def handle_message(self, text: str | None) -> None:
        try:
            status, answer = self.deliver(self.path[1:], text)
        except (MovedError, kazahana.KazahanaError, OSError) as error:
            status, answer = 503, f"try again: {error or 'the room is on the move'}\n".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def deliver(self, name: str, text: str | None) -> tuple[int, bytes]:
        where = placement.resolve("room", name)
        if where.is_local and where.pid == own:
            if name not in rooms:
                raise MovedError
            messages = rooms[name].use(text)
            if text is None:
                return 200, "".join(f"{message}\n" for message in messages).encode()
            return 200, b""
        # To the process on this host that has the room, or to the room's host, which knows the process.
        hops = int(self.headers.get("Hops", "0")) + 1
        if hops > HOPS:
            raise MovedError
        to = where.pid if where.is_local else where.authority
        body = None if text is None else text.encode()
        request = urllib.request.Request(f"http://{to}/{name}", body, {"Hops": str(hops)})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """The client has not waited for the answer."""


def serve(host: str, port: int) -> Server:
    server = Server((host, port), Door)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def keep_door(authority: str) -> None:
    """Listen on the host's public address: one of its processes does, and another one when that is gone."""
    host, port = authority.rsplit(":", 1)
    while True:
        try:
            serve(host, int(port))
            return tell("has the door", address=authority)
        except OSError:
            time.sleep(DOOR_RETRY)


own = f"127.0.0.1:{serve('127.0.0.1', 0).server_port}"
with client, placement.register(["room"], activate, passivate, ended):
    authority = placement.snapshot(limit=0)["authority"]
    threading.Thread(target=keep_door, args=(authority,), daemon=True).start()
    tell("ready", address=own)
    sys.stdin.read()
