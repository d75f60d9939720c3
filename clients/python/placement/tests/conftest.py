"""The fixtures of the client's own tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from harness import (
    binary as binary,
    clock as clock,
    connect as connect,
    daemon as daemon,
    lease_server as lease_server,
    make_daemon as make_daemon,
    placing as placing,
    script as script,
)
