// IDs per second and latencies of this client, beside a raw round trip on a Unix socket and crypto.randomUUID().
//
//   npm run build && node bench.mjs [KAZAHANAD]
//
// The daemon (default: KAZAHANAD, else the repository's bin/kazahanad) is started with a max_throughput_per_ms that does not limit the
// figures. All rows are measured in turn, ROUNDS times, in one process; a ratio is the median of the rounds' ratios, since the machine's
// speed changes between rounds.
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { Client } from './dist/index.mjs';

const ROUNDS = Number(process.env.ROUNDS ?? 5);
const SLICE_MS = Number(process.env.SLICE_MS ?? 300);
const REQUEST = Buffer.from([0x94, 0, 1, 0xa6, ...Buffer.from('NextID'), 0x90]);
const RESPONSE_SIZE = 13; // [1, 1, nil, uint 64]

/** A raw round trip: the bytes of a request there, those of an answer back, nothing encoded, nothing decoded. */
function roundTrips(socket, size) {
  let resolve;
  let missing = 0;
  socket.on('data', (bytes) => (missing -= bytes.length) <= 0 && resolve());
  return () => new Promise((done) => {
    resolve = done;
    missing = size;
    socket.write(REQUEST);
  });
}

const connect = (file) => new Promise((resolve, reject) => {
  const socket = net.connect({ path: file }, () => resolve(socket));
  socket.on('error', reject);
});

/** An echo server in a process of its own, so that both sides of a round trip have one each, as with the daemon. */
async function startEcho(file) {
  const program = 'require("net").createServer((s) => s.pipe(s)).listen(process.argv[1], () => console.log("ready"))';
  const child = spawn(process.execPath, ['-e', program, file], { stdio: ['ignore', 'pipe', 'inherit'] });
  await new Promise((resolve) => child.stdout.once('data', resolve));
  return child;
}

async function startDaemon(binary, directory) {
  const file = path.join(directory, 'k.sock');
  const child = spawn(binary, ['serve', '--config', 'none', '--socket', file, '--state-dir', path.join(directory, 'state'), '--max-throughput-per-ms', '65536'], { stdio: 'ignore' });
  const client = new Client({ socket: file, timeout: 10_000 });
  for (const end = Date.now() + 10_000; ; ) {
    try {
      await client.nextId({ regularOnly: true });
      break;
    } catch (error) {
      if (Date.now() > end || child.exitCode !== null) throw error;
    }
  }
  await client.close();
  return { child, file };
}

/** Calls until the time is up; `perCall` IDs come from each. */
async function measure({ call, perCall = 1, lanes = 1 }) {
  const latencies = [];
  const begin = performance.now();
  const lane = async () => {
    for (let sent = begin; sent < begin + SLICE_MS; ) {
      await call();
      const done = performance.now();
      latencies.push(done - sent);
      sent = done;
    }
  };
  await Promise.all(Array.from({ length: lanes }, lane));
  return figures(latencies.length * perCall, begin, latencies);
}

/** `now` gives an ID, or undefined: then `wait` does. Only every so many calls look at the clock, which costs as much as an ID. */
async function measureHot({ now, wait }) {
  const [latencies, loop, every] = [[], 20_000, 61];
  const begin = performance.now();
  let count = 0;
  for (; performance.now() < begin + SLICE_MS; count += loop) {
    for (let i = 0; i < loop; i++) {
      const sent = i % every === 0 ? performance.now() : 0;
      if (now() === undefined) await wait();
      if (sent > 0) latencies.push(performance.now() - sent);
    }
  }
  return figures(count, begin, latencies);
}

function figures(count, begin, latencies) {
  const rate = (count / (performance.now() - begin)) * 1000;
  latencies.sort((a, b) => a - b);
  const at = (share) => latencies[Math.min(Math.floor(latencies.length * share), latencies.length - 1)] * 1000;
  return { rate, p50: at(0.5), p99: at(0.99) };
}

const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

async function main() {
  const here = path.dirname(fileURLToPath(import.meta.url));
  const binary = process.argv[2] ?? process.env.KAZAHANAD ?? path.join(here, '../../bin/kazahanad');
  if (!fs.existsSync(binary)) throw new Error(`there is no daemon at ${binary}: build it with make build, or name one: node bench.mjs KAZAHANAD`);
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'kz-'));
  const children = [];
  try {
    const echoFile = path.join(directory, 'echo.sock');
    children.push(await startEcho(echoFile));
    const daemon = await startDaemon(binary, directory);
    children.push(daemon.child);
    const [echo, raw] = [await connect(echoFile), await connect(daemon.file)];
    const [client, ahead] = [new Client({ socket: daemon.file }), new Client({ socket: daemon.file, prefetch: 64 })];
    const rows = {
      'raw round trip, echo in Node': { call: roundTrips(echo, REQUEST.length) },
      'raw round trip, NextID\'s bytes': { call: roundTrips(raw, RESPONSE_SIZE) },
      'nextId(), one at a time': { call: () => client.nextId() },
      'nextId(), 64 at a time': { call: () => client.nextId(), lanes: 64 },
      'nextIds(100)': { call: () => client.nextIds(100), perCall: 100 },
      'prefetch 64: await nextId()': { now: () => undefined, wait: () => ahead.nextId() },
      'prefetch 64: tryNextId() ?? await nextId()': { now: () => ahead.tryNextId(), wait: () => ahead.nextId() },
      'randomUUID({ disableEntropyCache: true })': { now: () => randomUUID({ disableEntropyCache: true }) },
      'randomUUID()': { now: () => randomUUID() },
    };
    const results = Object.fromEntries(Object.keys(rows).map((name) => [name, []]));
    for (let round = -1; round < ROUNDS; round++) {
      for (const [name, row] of Object.entries(rows)) {
        const result = await (row.now ? measureHot(row) : measure(row));
        if (round >= 0) results[name].push(result); // the first round warms up
      }
    }
    print(results);
    for (const socket of [echo, raw]) socket.destroy();
    await Promise.all([client.close(), ahead.close()]);
  } finally {
    for (const child of children) child.kill();
    fs.rmSync(directory, { recursive: true, force: true });
  }
}

function print(results) {
  console.log(`kazahana for Node ${process.version}: median of ${ROUNDS} rounds of ${SLICE_MS} ms, ${os.cpus()[0].model}, ${os.cpus().length} cores\n`);
  console.log('| work | IDs/s (or calls/s) | p50 µs | p99 µs |\n| --- | --- | --- | --- |');
  for (const [name, rounds] of Object.entries(results)) {
    const [rate, p50, p99] = ['rate', 'p50', 'p99'].map((key) => median(rounds.map((round) => round[key])));
    console.log(`| ${name} | ${Math.round(rate).toLocaleString('en-US')} | ${p50.toFixed(1)} | ${p99.toFixed(1)} |`);
  }
  const ratio = (a, b, invert = false) => median(results[a].map(({ rate }, i) => (invert ? results[b][i].rate / rate : rate / results[b][i].rate)));
  const verdict = (what, value, isMet, aim) => console.log(`- ${what}: ${value} (aim: ${aim}${isMet ? '' : '; MISSED'})`);
  console.log();
  const echo = ratio('nextId(), one at a time', 'raw round trip, echo in Node', true);
  verdict('a single call costs, in round trips to an echo server', echo.toFixed(2), echo <= 1.5, 'at most 1.5');
  const bytes = ratio('nextId(), one at a time', 'raw round trip, NextID\'s bytes', true);
  verdict('a single call costs, in raw round trips to the daemon', bytes.toFixed(2), bytes <= 1.5, 'at most 1.5');
  for (const name of ['prefetch 64: await nextId()', 'prefetch 64: tryNextId() ?? await nextId()']) {
    const rate = median(results[name].map((round) => round.rate));
    verdict(`${name}: IDs/s`, Math.round(rate).toLocaleString('en-US'), rate >= 3e6, 'at least 3,000,000');
    const uncached = ratio(name, 'randomUUID({ disableEntropyCache: true })');
    verdict(`${name}: times randomUUID({ disableEntropyCache: true })`, uncached.toFixed(2), uncached >= 4, 'at least 4');
    console.log(`- ${name}: times randomUUID(), which caches its entropy: ${ratio(name, 'randomUUID()').toFixed(2)}`);
  }
}

await main();
