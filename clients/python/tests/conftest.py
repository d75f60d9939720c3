from harness import (
    binary as binary,
    clock as clock,
    connect as connect,
    daemon as daemon,
    make_daemon as make_daemon,
    placing as placing,
    script as script,
)
