"""A lease server written from sections 4.2, 4.5, 6.2 and 7.1 of the design alone,
by the standard library: POST /lease and DELETE /lease/{id}, and nothing else.

It says on standard output where it listens, and what it grants and takes back.
"""

import argparse
import hashlib
import hmac
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--term", type=int, default=600_000, help="milliseconds")
options = parser.parse_args()

EPOCH = 1767225600000  # 2026-01-01T00:00:00Z
BIT_TS, BIT_ID, BIT_SEQ = 41, 14, 8
MAX_MACHINE_ID = (1 << (BIT_ID - 1)) - 1
WINDOW = 30_000

lock = threading.Lock()
leases = {}  # machine ID -> its latest lease
last_assigned = -1


def now():
    return int(time.time() * 1000)


def say(*words):
    print(*words, flush=True)


def grant(count):
    """Round-robin: the search begins behind the ID that was assigned last."""
    global last_assigned
    found = []
    start = last_assigned + 1
    for i in range(MAX_MACHINE_ID + 1):
        machine_id = (start + i) % (MAX_MACHINE_ID + 1)
        lease = leases.get(machine_id)
        if lease and now() < lease["expired"]:
            continue
        created = now()
        leases[machine_id] = {
            "id": machine_id,
            "created": created,
            "expired": created + options.term,
            "secret": secrets.token_hex(16),
            "customEpoch": EPOCH,
            "bitReserve": 1,
            "bitTs": BIT_TS,
            "bitId": BIT_ID,
            "bitSeq": BIT_SEQ,
        }
        last_assigned = machine_id
        found.append(leases[machine_id])
        say("granted", machine_id)
        if len(found) == count:
            break
    return found


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def body(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length > 100_000:
            self.close_connection = True
            raise ValueError("too long")
        value = json.loads(self.rfile.read(length) or b"{}")
        if not isinstance(value, dict):
            raise ValueError("no object")
        return value

    def do_POST(self):
        try:
            request = self.body()
        except ValueError as e:
            return self.answer(400, {"error": str(e)})
        if self.path != "/lease":
            return self.answer(404, {"error": "not found"})
        throughput = request.get("throughputPerMs", 1)
        count = -(-throughput // (1 << BIT_SEQ))
        with lock:
            found = grant(max(count, 1))
        if not found:
            return self.answer(503, {"error": "No machine ID available"})
        self.answer(200, {"leases": found})

    def do_DELETE(self):
        try:
            request = self.body()
            machine_id = int(self.path.removeprefix("/lease/"))
            timestamp, signature = int(request["timestamp"]), str(request["signature"])
        except (ValueError, KeyError) as e:
            return self.answer(400, {"error": str(e)})
        with lock:
            lease = leases.get(machine_id)
            if not lease:
                return self.answer(404, {"error": "no such lease"})
            text = f"{machine_id}:{timestamp}".encode()
            expected = hmac.new(lease["secret"].encode(), text, hashlib.sha256).hexdigest()
            if not hmac.compare_digest(expected, signature):
                return self.answer(403, {"error": "wrong signature"})
            if abs(now() - timestamp) > WINDOW:
                return self.answer(403, {"error": "wrong time"})
            # Free at once, but not for the millisecond that the release names.
            lease["expired"] = min(lease["expired"], timestamp + 1)
            say("released", machine_id)
        self.answer(200, {})


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
say("listening", server.server_address[1])
server.serve_forever()
