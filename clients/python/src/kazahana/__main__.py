"""`python -m kazahana`: print IDs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import Client, InvalidParamsError, KazahanaError, __version__


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kazahana", description="Print new IDs, one a line.")
    parser.add_argument("-n", type=int, default=1, help="how many, 1 to 65536 (default 1)")
    parser.add_argument("--format", choices=["int", "external", "hex"], default="int")
    parser.add_argument("--service", help="default: the daemon's")
    parser.add_argument("--socket", help="default: KAZAHANA_SOCKET, else the usual places")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds (default 10)")
    parser.add_argument("--regular-only", action="store_true", help="fail instead of printing a fallback ID")
    parser.add_argument("--version", action="version", version=__version__)
    options = parser.parse_args(arguments)
    try:
        with Client(options.socket, service=options.service, timeout=options.timeout) as client:
            if options.format == "external":
                lines = client.next_ids(options.n, format="external", regular_only=options.regular_only)
            else:
                show = hex if options.format == "hex" else str
                lines = [show(id) for id in client.next_ids(options.n, regular_only=options.regular_only)]
    except KazahanaError as error:
        print(f"kazahana: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidParamsError) else 1
    sys.stdout.write("".join(line + "\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
