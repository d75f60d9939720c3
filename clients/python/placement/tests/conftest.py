"""The fixtures of the client's own tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from harness import (
    binary as binary,
    clock as clock,
    connect as connect,
    daemon as daemon,
    make_daemon as make_daemon,
    placing as placing,
    script as script,
)
