"""Asks for IDs until the file argv[1] exists; prints a dot for every 100, then the number and the longest pause in ms."""

import os
import sys
import time

import kazahana

count = last = 0
longest = 0.0
with kazahana.Client(timeout=60.0) as client:
    while not os.path.exists(sys.argv[1]):
        began = time.monotonic()
        value = client.next_id()
        longest = max(longest, time.monotonic() - began)
        assert value > last, f"{value} after {last}"
        last, count = value, count + 1
        if count % 100 == 0:
            print(".", end="", flush=True)
print(count, round(longest * 1000))
