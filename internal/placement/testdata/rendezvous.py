"""Checks rendezvous.json: the hash of docs/placement.md in Python, with nothing but the standard library."""

import json
import sys

MASK = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def rotl(x: int, n: int) -> int:
    return ((x << n) | (x >> (64 - n))) & MASK


def step(acc: int, lane: int) -> int:
    return rotl((acc + lane * P2) & MASK, 31) * P1 & MASK


def xxh64(data: bytes) -> int:
    """XXH64 with the seed 0."""

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little")

    at, size = 0, len(data)
    if size >= 32:
        lanes = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while at + 32 <= size:
            lanes = [step(lane, number(at + 8 * i, 8)) for i, lane in enumerate(lanes)]
            at += 32
        h = sum(rotl(lane, n) for lane, n in zip(lanes, (1, 7, 12, 18))) & MASK
        for lane in lanes:
            h = ((h ^ step(0, lane)) * P1 + P4) & MASK
    else:
        h = P5
    h = (h + size) & MASK
    while at + 8 <= size:
        h = (rotl(h ^ step(0, number(at, 8)), 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= size:
        h = (rotl(h ^ (number(at, 4) * P1 & MASK), 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        h = rotl(h ^ (byte * P5 & MASK), 11) * P1 & MASK
    h = (h ^ h >> 33) * P2 & MASK
    h = (h ^ h >> 29) * P3 & MASK
    return h ^ h >> 32


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def score(kind: str, identity: str, member: str) -> int:
    return mix(xxh64(f"{kind}\0{identity}".encode()) ^ xxh64(member.encode()))


def authority(kind: str, identity: str, members: list[str]) -> str:
    return min(members, key=lambda m: (-score(kind, identity, m), m.encode()))


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        vectors = json.load(file)
    wrong = 0
    for v in vectors["scores"]:
        got = format(score(v["kind"], v["identity"], v["member"]), "016x")
        if got != v["score"]:
            wrong += 1
            print(f"{v}: {got}, want {v['score']}")
    for v in vectors["placements"]:
        got = authority(v["kind"], v["identity"], v["members"])
        if got != v["authority"]:
            wrong += 1
            print(f"{v}: {got}, want {v['authority']}")
    if wrong:
        sys.exit(1)
    print(len(vectors["scores"]) + len(vectors["placements"]), "agree")


if __name__ == "__main__":
    main()
