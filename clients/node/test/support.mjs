// What the tests share: a real daemon, and a scripted one.
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { Channel } from '../dist/channel.js';
import system from '../dist/system.js';
import { Decoder, encode as pieces } from '../dist/wire.js';

export const packageDir = fileURLToPath(new URL('..', import.meta.url));
const repository = path.resolve(packageDir, '../..');
export const testdata = (name) => JSON.parse(fs.readFileSync(path.join(repository, 'testdata', name), 'utf8'));

/** KAZAHANAD, else a binary that is built once for all test files. */
export function kazahanad() {
  if (process.env.KAZAHANAD) return process.env.KAZAHANAD;
  const file = path.join(packageDir, 'node_modules/.cache/kazahanad');
  execFileSync('go', ['build', '-tags', 'grpcnotrace,nopgxregisterdefaulttypes', '-o', file, './cmd/kazahanad'], { cwd: repository, stdio: 'inherit' });
  return (process.env.KAZAHANAD = file);
}

/** A directory that is short enough for sockets and goes away with the test. */
export function temporary(t) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'kz-'));
  t.after(() => fs.rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/** The bytes of a value. */
export const encode = (value) => Buffer.concat(pieces(value));

/** A small generator of numbers that repeats for a seed (mulberry32). */
export function random(seed) {
  return (below) => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return Math.floor((((t ^ (t >>> 14)) >>> 0) / 2 ** 32) * below);
  };
}

export const delay = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Stops a clock of the package, steadyNow or wallNow; the returned function moves it on. */
export function stopClock(t, clock = 'steadyNow') {
  let now = Math.floor(system[clock]()); // sums of whole numbers are exact
  t.mock.method(system, clock, () => now);
  return (ms) => (now += ms);
}

/** Waits for something that will come true; only a hang lets it fail. */
export async function until(what, condition) {
  const end = process.hrtime.bigint() + 120_000_000_000n; // a clock that no test stops
  for (; !(await condition()); await delay(5)) {
    if (process.hrtime.bigint() > end) throw new Error(`in vain: ${what}`);
  }
}

function accepts(file) {
  return new Promise((resolve) => {
    const socket = net.connect({ path: file });
    socket.on('connect', () => socket.destroy());
    socket.on('error', () => {});
    socket.on('close', (failed) => resolve(!failed));
  });
}

/** The kernel ends the daemon when the tests are killed (Linux). */
const dieWithParent = spawnSync('setpriv', ['--version']).error ? [] : ['setpriv', '--pdeathsig', 'KILL'];

/** A real daemon with a state directory of its own, which can be killed and started again. */
export class Daemon {
  static async start(t, ...flags) {
    const daemon = new Daemon();
    const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'kz-'));
    daemon.socket = path.join(directory, 'k.sock');
    daemon.flags = ['serve', '--config', 'none', '--socket', daemon.socket, '--state-dir', path.join(directory, 'state')];
    daemon.flags.push('--startup-wait', '60s', '--provider-timeout', '60s', ...flags); // a busy machine is no failure
    t.after(async () => {
      await daemon.end('SIGKILL');
      fs.rmSync(directory, { recursive: true, force: true });
    });
    await daemon.up();
    return daemon;
  }

  async up() {
    this.log = '';
    const command = [...dieWithParent, kazahanad()];
    this.process = spawn(command[0], [...command.slice(1), ...this.flags], { stdio: ['ignore', 'ignore', 'pipe'] });
    this.process.stderr.on('data', (text) => (this.log += text));
    this.ended = new Promise((resolve) => this.process.on('exit', resolve));
    await until(`the daemon starts: ${this.log}`, () => {
      if (this.process.exitCode !== null) throw new Error(`the daemon ended: ${this.log}`);
      return accepts(this.socket);
    });
  }

  async end(signal) {
    this.process.kill(signal);
    await this.ended;
  }
}

/** A lease server, whose store daemons share; returns its URL. */
export async function leaseServer(t) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'kz-'));
  const flags = ['lease-server', '--config', 'none', '--listen', '127.0.0.1:0', '--rate-limit', '0', '--log-format', 'json', '--provider-timeout', '60s'];
  const command = [...dieWithParent, kazahanad(), ...flags, '--provider', `sqlite:${directory}/leases.db`];
  const server = spawn(command[0], command.slice(1), { stdio: ['ignore', 'ignore', 'pipe'] });
  const ended = new Promise((resolve) => server.on('exit', resolve));
  t.after(async () => {
    server.kill('SIGKILL');
    await ended;
    fs.rmSync(directory, { recursive: true, force: true });
  });
  let log = '';
  server.stderr.on('data', (text) => (log += text));
  let ready;
  await until('the lease server starts', () => {
    if (server.exitCode !== null) throw new Error(`the lease server ended: ${log}`);
    return (ready = /"msg":"the lease server is ready".*"listen":"([^"]+)"/.exec(log));
  });
  return `http://${ready[1]}`;
}

/**
 * A daemon that does what the test says: `answer(request)` is called with { method, params, id, socket, reply, fail } for each request.
 * It counts connections, and keeps the chunks that came and the answers to its own requests.
 */
export class Script {
  connections = [];
  chunks = [];
  requests = [];
  answers = [];

  static async start(t, answer, file = path.join(temporary(t), 's.sock')) {
    const script = new Script();
    script.socket = file;
    script.answer = answer;
    script.server = net.createServer((socket) => script.serve(socket));
    await new Promise((resolve) => script.server.listen(file, resolve));
    t.after(() => script.stop());
    return script;
  }

  stop() {
    this.server.close();
    for (const socket of this.connections) socket.destroy();
  }

  serve(socket) {
    this.connections.push(socket);
    const decoder = new Decoder();
    const heard = ([type, id, method, params]) => {
      if (type === 1) return this.answers.push({ id, error: method, result: params, socket });
      const send = (...message) => socket.destroyed || socket.write(encode(message));
      const request = {
        id, method, params, socket, send,
        reply: (result) => send(1, id, null, result),
        fail: (text, kind = 0) => send(1, id, [kind, text], null),
      };
      this.requests.push(request);
      return this.answer(request);
    };
    socket.on('error', () => {});
    socket.on('data', (chunk) => {
      this.chunks.push(chunk);
      decoder.feed(chunk, heard);
    });
  }
}

/** A channel without a connection, on which calls wait under the msgids 1, 2, ...; `events` has what became of them, and what was told. */
export class Heard extends Channel {
  events = [];
  decoder = new Decoder();

  constructor(...calls) {
    super('/nonexistent');
    for (const [i, call] of calls.entries()) this.begin(i + 1, call);
  }

  begin(msgid, call) {
    const end = (error, value) => {
      this.waiters.delete(msgid);
      this.events.push(['answered', call, error, value]);
    };
    this.waiters.set(msgid, { msgid, request: Buffer.alloc(0), began: 0, timeout: Infinity, end });
  }

  flush() {}

  told(...what) {
    this.events.push(['told', ...what]);
  }

  feed(bytes) {
    this.decoder.feed(bytes, (message) => this.heard(message));
  }
}
