// Checks rendezvous.json: the hash of docs/placement.md in JavaScript, with nothing but the standard library.
import { readFileSync } from 'node:fs';

const u64 = (x) => BigInt.asUintN(64, x);
const rotl = (x, n) => u64((x << n) | (x >> (64n - n)));
const P1 = 0x9e3779b185ebca87n;
const P2 = 0xc2b2ae3d27d4eb4fn;
const P3 = 0x165667b19e3779f9n;
const P4 = 0x85ebca77c2b2ae63n;
const P5 = 0x27d4eb2f165667c5n;

const step = (acc, lane) => u64(rotl(u64(acc + lane * P2), 31n) * P1);

// XXH64 with the seed 0.
function xxh64(data) {
  const size = data.length;
  let at = 0;
  let h = P5;
  if (size >= 32) {
    let lanes = [u64(P1 + P2), P2, 0n, u64(-P1)];
    for (; at + 32 <= size; at += 32) {
      lanes = lanes.map((lane, i) => step(lane, data.readBigUInt64LE(at + 8 * i)));
    }
    h = u64([1n, 7n, 12n, 18n].reduce((sum, n, i) => sum + rotl(lanes[i], n), 0n));
    for (const lane of lanes) h = u64((h ^ step(0n, lane)) * P1 + P4);
  }
  h = u64(h + BigInt(size));
  for (; at + 8 <= size; at += 8) h = u64(rotl(h ^ step(0n, data.readBigUInt64LE(at)), 27n) * P1 + P4);
  if (at + 4 <= size) {
    h = u64(rotl(h ^ u64(BigInt(data.readUInt32LE(at)) * P1), 23n) * P2 + P3);
    at += 4;
  }
  for (; at < size; at++) h = u64(rotl(h ^ u64(BigInt(data[at]) * P5), 11n) * P1);
  h = u64((h ^ (h >> 33n)) * P2);
  h = u64((h ^ (h >> 29n)) * P3);
  return h ^ (h >> 32n);
}

function mix(x) {
  x = u64((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n);
  x = u64((x ^ (x >> 27n)) * 0x94d049bb133111ebn);
  return x ^ (x >> 31n);
}

const score = (kind, identity, member) => mix(xxh64(Buffer.from(`${kind}\0${identity}`)) ^ xxh64(Buffer.from(member)));

function authority(kind, identity, members) {
  let best;
  let top;
  for (const member of members) {
    const s = score(kind, identity, member);
    if (best === undefined || s > top || (s === top && Buffer.compare(Buffer.from(member), Buffer.from(best)) < 0)) {
      [best, top] = [member, s];
    }
  }
  return best;
}

const { scores, placements } = JSON.parse(readFileSync(process.argv[2], 'utf8'));
let wrong = 0;
function compare(vector, got, want) {
  if (got === want) return;
  wrong++;
  console.log(`${JSON.stringify(vector)}: ${got}, want ${want}`);
}
for (const v of scores) compare(v, score(v.kind, v.identity, v.member).toString(16).padStart(16, '0'), v.score);
for (const v of placements) compare(v, authority(v.kind, v.identity, v.members), v.authority);
if (wrong > 0) process.exit(1);
console.log(scores.length + placements.length, 'agree');
