#!/usr/bin/env python3
"""Prints the output of `go test -json` as `go test` does, and writes to the file in $1 which
tests were skipped because they belong to the ring "all": a pattern for -run, and the packages."""

import collections
import json
import sys

said = collections.defaultdict(list)
names, packages = set(), set()
for line in sys.stdin:
    try:
        event = json.loads(line)
    except ValueError:
        print(line, end="")
        continue
    action, package, test = event["Action"], event.get("Package"), event.get("Test")
    if action == "output" and test:
        said[package, test].append(event["Output"])
        if "runs with KZTEST_RING=all" in event["Output"]:
            names.add(test.split("/")[0])
            packages.add(package)
    elif action in ("output", "build-output"):
        if event["Output"] != "PASS\n":
            print(event["Output"], end="")
    elif action in ("pass", "skip") and test:
        said.pop((package, test), None)
    elif action == "fail":  # of a package: also what its unfinished tests said
        for key in [key for key in said if key[0] == package and test in (key[1], None)]:
            print("".join(said.pop(key)), end="")
with open(sys.argv[1], "w") as out:
    if names:
        print(f"^({'|'.join(sorted(names))})$\n{' '.join(sorted(packages))}", file=out)
