// What an ID costs by this client, beside a raw round trip on a Unix socket and crypto.randomUUID().
//
//   npm run build && node bench.mjs [--daemon ../../bin/kazahanad] [--rounds 9] [--seconds 0.2] [--json]
//
// All rows are measured in turn, several rounds, in one process: compare the ratios, not the absolute figures. `make bench-clients` runs this
// beside the other languages' and holds it against the aims.
import { once } from 'node:events';
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { Client } from './dist/index.mjs';

const { values: options } = parseArgs({
  options: {
    daemon: { type: 'string', default: fileURLToPath(new URL('../../bin/kazahanad', import.meta.url)) },
    rounds: { type: 'string', default: '9' },
    seconds: { type: 'string', default: '0.2' },
    json: { type: 'boolean', default: false },
  },
});
const ROUNDS = Number(options.rounds);
const SLICE_MS = 1000 * Number(options.seconds);
/** IDs a millisecond; by default a daemon gives 256, and that cap, not the client, sets the speed of batches and prefetch. */
const CAP = 65_536;
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
  const child = spawn(binary, ['serve', '--config', 'none', '--socket', file, '--state-dir', path.join(directory, 'state'), '--max-throughput-per-ms', String(CAP)], { stdio: 'ignore' });
  const client = new Client({ socket: file, timeout: 10_000 });
  for (const end = Date.now() + 60_000; ; ) {
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
  const binary = options.daemon;
  if (!fs.existsSync(binary)) throw new Error(`there is no daemon at ${binary}: build it with make build, or name one with --daemon`);
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
      'echo': { call: roundTrips(echo, REQUEST.length) },
      'bytes of NextID': { call: roundTrips(raw, RESPONSE_SIZE) },
      'single': { call: () => client.nextId() },
      'pipelined, 64 calls': { call: () => client.nextId(), lanes: 64 },
      'batch of 100': { call: () => client.nextIds(100), perCall: 100 },
      'uuid4': { now: () => randomUUID({ disableEntropyCache: true }) },
      'uuid4, cached entropy': { now: () => randomUUID() },
      'prefetch 64': { now: () => ahead.tryNextId(), wait: () => ahead.nextId() },
      'prefetch 64, await': { now: () => undefined, wait: () => ahead.nextId() },
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
    await Promise.all(children.map((child) => (child.kill() ? once(child, 'exit') : undefined))); // they write until then
    fs.rmSync(directory, { recursive: true, force: true });
  }
}

function print(results) {
  const against = (name, other) => median(results[name].map(({ rate }, i) => rate / results[other][i].rate));
  const table = Object.entries(results).map(([row, rounds]) => {
    const [per_second, p50_us, p99_us] = ['rate', 'p50', 'p99'].map((key) => median(rounds.map((round) => round[key])));
    return { row, per_second, p50_us, p99_us, of_echo: against(row, 'echo'), of_uuid4: against(row, 'uuid4') };
  });
  if (options.json) return console.log(JSON.stringify(table, null, 2));
  console.log(`Node ${process.version}, ${ROUNDS} rounds of ${SLICE_MS} ms a row; medians; a daemon with a cap of ${CAP} IDs a millisecond (default 256)`);
  console.table(Object.fromEntries(table.map(({ row, ...figures }) => [row, Object.fromEntries(Object.entries(figures).map(([key, value]) => [key, Number(value.toPrecision(3))]))])));
}

await main();
