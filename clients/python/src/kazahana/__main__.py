"""`python -m kazahana`: print IDs."""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence

from . import Client, InvalidParamsError, KazahanaError, __version__

# What a shell shows for a program that a signal ended.
PIPE, INTERRUPTED = 128 + 13, 128 + 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kazahana", description="Print new IDs, one a line.", add_help=False
    )
    parser.add_argument("-n", type=int, default=1, help="how many, 1 to 65536 (default 1)")
    parser.add_argument("--format", choices=["int", "external", "hex"], default="int")
    parser.add_argument("--service", help="default: the daemon's")
    parser.add_argument("--socket", help="default: KAZAHANA_SOCKET, else the usual places")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds (default 10)")
    parser.add_argument("--regular-only", action="store_true", help="fail instead of printing a fallback ID")
    # argparse would print these two itself, and hide that it cannot.
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    parser.add_argument("--version", action="store_true", help="show the version")
    options = parser.parse_args(arguments)
    try:
        write(parser.format_help() if options.help else f"{__version__}\n" if options.version else ids(options))
    except KazahanaError as error:
        print(f"kazahana: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidParamsError) else 1
    except BrokenPipeError:  # the reader has had enough
        return PIPE
    except OSError as error:
        print(f"kazahana: stdout: {error.strerror}: the output is incomplete", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def ids(options: argparse.Namespace) -> str:
    with Client(options.socket, service=options.service, timeout=options.timeout) as client:
        if options.format == "external":
            lines = client.next_ids(options.n, format="external", regular_only=options.regular_only)
        else:
            show = hex if options.format == "hex" else str
            lines = [show(id) for id in client.next_ids(options.n, regular_only=options.regular_only)]
    return "".join(line + "\n" for line in lines)


def write(text: str) -> None:
    """Write all of the text to stdout. The interpreter's own buffer loses text where a write is cut short."""
    out = 1 if sys.stdout is None else sys.stdout.fileno()  # None: it was closed before the start
    rest = memoryview(text.encode())
    while rest:
        try:
            rest = rest[os.write(out, rest) :]
        except BlockingIOError:  # another process made the pipe non-blocking
            select.select([], [out], [])
    os.close(os.dup(out))  # some file systems report a failure only now


if __name__ == "__main__":
    sys.exit(main())
