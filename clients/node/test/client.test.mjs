// The client against a scripted daemon: what it sends, and what it does when things go wrong.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { performance } from 'node:perf_hooks';
import test from 'node:test';
import * as kazahana from '../dist/index.js';
import { delay, encode, packageDir, Script, stopClock, temporary, until } from './support.mjs';

const { Client } = kazahana;
const FIRST = 117360159400092001n;

/** A scripted daemon that counts up from FIRST. */
function counting() {
  let next = FIRST;
  return ({ method, params, reply }) => {
    if (method === 'NextID') reply(next++);
    else if (method === 'NextIDs') reply(Array.from({ length: params[0] }, () => next++));
    else reply('pong');
  };
}

function connect(t, socket, options = {}) {
  const client = new Client({ socket, ...options });
  t.after(() => client.close());
  return client;
}

test('the calls of a tick share one write and one connection', async (t) => {
  const script = await Script.start(t, counting());
  const client = connect(t, script.socket);
  await client.ping();
  script.chunks.length = 0;
  const ids = await Promise.all(Array.from({ length: 200 }, () => client.nextId()));
  assert.deepEqual(ids, Array.from({ length: 200 }, (_, i) => FIRST + BigInt(i)));
  assert.equal(script.chunks.length, 1);
  assert.equal(script.connections.length, 1);
});

test('answers are matched by msgid, not by order', async (t) => {
  const asked = [];
  const script = await Script.start(t, (request) => {
    asked.push(request);
    if (asked.length === 3) for (const { method, reply } of asked.reverse()) reply(method === 'UUID' ? 'a-uuid' : method === 'NextID' ? 5 : 'pong');
  });
  const client = connect(t, script.socket);
  assert.deepEqual(await Promise.all([client.nextId(), client.uuid(4), client.ping()]), [5n, 'a-uuid', undefined]);
});

test('options reach the daemon under its names, and nothing else does', async (t) => {
  const script = await Script.start(t, ({ method, reply }) => reply(method === 'NextIDs' ? ['x'] : method === 'Inspect' ? { id: 1, bit_id: 14 } : method === 'Bounds' ? [1, 2] : method === 'NextID' || method === 'ToInternal' ? 1 : 'x'));
  const client = connect(t, script.socket, { service: 'orders', timeout: 2000 });
  const sent = async (call) => {
    await call;
    const { method, params } = script.requests.at(-1);
    return [method, ...params];
  };
  // The daemon gives up a little earlier than the client.
  const untimed = ([method, { timeout_ms, ...options }], most) => {
    assert.ok(timeout_ms > 0 && timeout_ms <= most, timeout_ms);
    return [method, options];
  };
  assert.deepEqual(untimed(await sent(client.nextId()), 1900), ['NextID', { service: 'orders' }]);
  const one = client.nextId({ service: 'users', regularOnly: true, timeout: 1000 });
  assert.deepEqual(untimed(await sent(one), 950), ['NextID', { service: 'users', regular_only: true }]);
  const [, count, options] = await sent(client.nextIds(1, { format: 'external' }));
  assert.deepEqual([count, options.format], [1, 'external']);
  assert.deepEqual(await sent(client.inspect(7n)), ['Inspect', 7, { service: 'orders' }]);
  assert.deepEqual(await sent(client.toExternal(FIRST, { service: 'users' })), ['ToExternal', FIRST, { service: 'users' }]);
  assert.deepEqual(await sent(client.toInternal('SoAkz6KzylI', { latest: new Date(5) })), ['ToInternal', 'SoAkz6KzylI', { service: 'orders', latest_ms: 5 }]);
  assert.deepEqual(await sent(client.bounds(new Date(5), 6.2)), ['Bounds', 5, 7, { service: 'orders' }]);
  assert.deepEqual(await sent(client.uuid()), ['UUID']);
  assert.deepEqual(await sent(client.uuid(4)), ['UUID', 4]);
  assert.deepEqual(await sent(client.ping()), ['Ping']);
});

test('wrong options reject, or throw in the constructor, with what would be right', async (t) => {
  for (const options of [{ timeout: 0 }, { timeout: NaN }, { timeout: 3_600_001 }, { prefetch: -1 }, { prefetch: 1.5 }, { prefetch: 65_537 }, { maxAge: 0 }, { socket: 'tcp://x' }]) {
    assert.throws(() => new Client(options), kazahana.InvalidParamsError, JSON.stringify(options));
  }
  const script = await Script.start(t, counting());
  for (const prefetch of [0, 8]) {
    const client = connect(t, script.socket, { prefetch });
    await assert.rejects(client.nextId({ timeout: -1 }), /timeout of -1: 1 to 3600000/);
    await assert.rejects(client.lock('k', { ttl: 0 }), /ttl of 0/);
  }
});

test('an answer of the wrong type is an error, not a wrong ID', async (t) => {
  const script = await Script.start(t, ({ reply }) => reply(true));
  const client = connect(t, script.socket);
  await assert.rejects(client.nextId(), kazahana.ProtocolError);
  await assert.rejects(client.nextIds(2), kazahana.ProtocolError);
  await assert.rejects(client.uuid(), kazahana.ProtocolError);
});

test('small integers are bigints too', async (t) => {
  const script = await Script.start(t, ({ method, reply }) => reply(method === 'NextID' ? 5 : [1, 2n ** 60n]));
  const client = connect(t, script.socket);
  assert.equal(await client.nextId(), 5n);
  assert.deepEqual(await client.nextIds(2), [1n, 2n ** 60n]);
});

test('a call ends at its deadline, and the next one is served', async (t) => {
  const script = await Script.start(t, ({ method, reply }) => method === 'Ping' && reply('pong'));
  const client = connect(t, script.socket, { timeout: 5000 });
  await client.ping();
  const begin = performance.now();
  const long = client.nextId({ timeout: 300 });
  const short = client.nextId({ timeout: 30 });
  await assert.rejects(short, (error) => error instanceof kazahana.RequestTimeoutError && error.code === 'TIMEOUT' && error.waitedMs === 30);
  const waited = performance.now() - begin;
  assert.ok(waited >= 29, `${waited} ms`);
  await assert.rejects(long, { code: 'TIMEOUT', waitedMs: 300 });
  assert.ok(performance.now() - begin >= 299);
  await client.ping();
  assert.equal(script.connections.length, 1);
});

test('a signal ends a call with its reason, and leaves no listener behind', async (t) => {
  const script = await Script.start(t, ({ method, reply }) => method === 'Ping' && reply('pong'));
  for (const prefetch of [0, 8]) {
    const client = connect(t, script.socket, { prefetch });
    const reason = new Error('enough');
    await assert.rejects(client.nextId({ signal: AbortSignal.abort(reason) }), reason);
    const controller = new AbortController();
    let listeners = 0;
    const { signal } = controller;
    const [add, remove] = [signal.addEventListener.bind(signal), signal.removeEventListener.bind(signal)];
    signal.addEventListener = (...args) => (listeners++, add(...args));
    signal.removeEventListener = (...args) => (listeners--, remove(...args));
    await client.ping({ signal });
    const calls = [client.nextId({ signal }), client.nextIds(3, { signal })];
    assert.equal(listeners, 2);
    setTimeout(() => controller.abort(reason), 10);
    for (const call of calls) await assert.rejects(call, reason);
    assert.equal(listeners, 0);
    await client.ping();
    assert.equal(client.channel.waiters.size, prefetch > 0 ? 1 : 0, 'an aborted call is remembered');
  }
});

test('errors of the daemon are typed', async (t) => {
  const script = await Script.start(t, ({ fail }) => fail('CLOCK_BACKWARD: the clock is behind the last ID backward_ms=7000 limit_ms=5000'));
  const client = connect(t, script.socket);
  await assert.rejects(client.nextId(), (error) => error instanceof kazahana.ClockBackwardError && error.backwardMs === 7000 && error.limitMs === 5000);
});

test('calls under way survive a connection that breaks', async (t) => {
  let broken = 0;
  const answer = counting();
  const script = await Script.start(t, (request) => {
    if (broken < 3 && script.requests.length % 10 === 0) {
      broken++;
      request.socket.destroy();
    } else if (!request.socket.destroyed) answer(request);
  });
  const client = connect(t, script.socket);
  const ids = await Promise.all(Array.from({ length: 50 }, () => client.nextId()));
  assert.equal(new Set(ids).size, 50);
  assert.equal(broken, 3);
});

test('SHUTTING_DOWN: all calls under way are asked again, on another connection', async (t) => {
  const answer = counting();
  const script = await Script.start(t, (request) => {
    if (request.socket !== script.connections[0]) answer(request);
    else if (request.method !== 'Ping') request.fail('SHUTTING_DOWN: the daemon is stopping: connect again');
  });
  const client = connect(t, script.socket, { timeout: 60_000 });
  const ping = client.ping(); // begun, and never answered
  assert.deepEqual(await Promise.all([client.nextId(), client.nextId()]), [FIRST, FIRST + 1n]);
  await ping;
  await until('the old connection closes', () => script.connections[0].destroyed);
  await client.nextId();
  assert.equal(script.connections.length, 2);
});

test('a daemon that comes back finds its callers waiting', async (t) => {
  const socket = path.join(temporary(t), 's.sock');
  const first = await Script.start(t, counting(), socket);
  const client = connect(t, socket);
  await client.nextId();
  first.stop();
  await until('the socket is gone', () => !fs.existsSync(socket));
  const waiting = [client.nextId(), client.ping(), client.nextIds(3)];
  await delay(50);
  const second = await Script.start(t, counting(), socket);
  await Promise.all(waiting);
  assert.equal(second.requests.length, 3);
});

test('a daemon that does not come back is named at the deadline', async (t) => {
  const script = await Script.start(t, counting());
  const client = connect(t, script.socket);
  await client.nextId();
  script.stop();
  for (let named = false; !named;) { // at first the deadline may come before the client has tried to connect again
    await assert.rejects(client.nextId({ timeout: 100 }), (error) => {
      named = error.message.includes('kazahanad serve');
      return error instanceof kazahana.DaemonUnavailableError && error.code === 'DAEMON_UNAVAILABLE' && error.message.includes(script.socket) && error.cause instanceof Error;
    });
  }
});

test('a daemon that was never there is told soon, one that is just starting is waited for', async (t) => {
  const socket = path.join(temporary(t), 's.sock');
  const client = connect(t, socket, { timeout: 60_000 });
  const begin = performance.now();
  await assert.rejects(client.nextId(), { code: 'DAEMON_UNAVAILABLE', message: `there is no socket at ${socket}; start it with: kazahanad serve --socket ${socket}` });
  assert.ok(performance.now() - begin < 30_000);
  stopClock(t); // however long the start takes
  const ids = Promise.all([client.nextId(), client.nextId()]);
  await delay(30);
  await Script.start(t, counting(), socket);
  assert.deepEqual(await ids, [FIRST, FIRST + 1n]);
});

test('an address that is none is told at once', async (t) => {
  const { KAZAHANA_SOCKET } = process.env;
  process.env.KAZAHANA_SOCKET = 'http://x';
  t.after(() => (KAZAHANA_SOCKET === undefined ? delete process.env.KAZAHANA_SOCKET : (process.env.KAZAHANA_SOCKET = KAZAHANA_SOCKET)));
  stopClock(t); // whoever waits waits for ever
  await assert.rejects(connect(t, undefined).nextId(), kazahana.InvalidParamsError);
});

for (const [code, kind] of [['PERMISSION_DENIED', kazahana.PermissionDeniedError], ['OVERLOADED', kazahana.OverloadedError]]) {
  test(`whom the daemon turns away it tells once: ${code}`, async (t) => {
    const script = await Script.start(t, ({ socket, id }) => {
      if (socket.told) return;
      socket.told = true;
      socket.end(encode([1, id, [0, `${code}: not you`], null]));
    });
    const client = connect(t, script.socket);
    const results = await Promise.allSettled(Array.from({ length: 20 }, (_, i) => [client.nextId, client.ping, client.uuid][i % 3].call(client)));
    for (const { reason } of results) assert.ok(reason instanceof kind, String(reason));
    assert.equal(script.connections.length, 1);
  });
}

test('an overloaded daemon that goes on costs only the calls that it refused', async (t) => {
  let n = 0;
  const script = await Script.start(t, ({ reply, fail }) => (n++ === 0 ? fail('OVERLOADED: 8192 requests wait') : reply('pong')));
  const client = connect(t, script.socket);
  const [first, second] = await Promise.allSettled([client.ping(), client.ping()]);
  assert.deepEqual([first.reason.code, second.status], ['OVERLOADED', 'fulfilled']);
});

test('what the daemon could not read is told to all that wait', async (t) => {
  const script = await Script.start(t, ({ socket }) => socket.end(encode([1, 0, [1, 'PARSE_ERROR: that was no message'], null])));
  const client = connect(t, script.socket);
  for (const { reason } of await Promise.allSettled([client.ping(), client.nextId()])) assert.equal(reason.code, 'PARSE_ERROR');
});

test('another program behind the socket is an error at once', async (t) => {
  const script = await Script.start(t, ({ socket }) => socket.write('HTTP/1.1 400 Bad Request\r\n\r\n'));
  const client = connect(t, script.socket);
  await assert.rejects(client.nextId(), kazahana.ProtocolError);
});

test('a socket that accepts and closes is tried again with pauses that grow, until the deadline', async (t) => {
  const script = await Script.start(t, ({ socket }) => socket.destroy());
  const client = connect(t, script.socket);
  const controller = new AbortController();
  const begin = performance.now();
  const call = client.nextId({ timeout: 60_000, signal: controller.signal });
  await until('it has tried six times', () => script.connections.length >= 6);
  assert.ok(performance.now() - begin >= (5 + 10 + 20 + 40 + 80) / 2, 'the pauses do not grow');
  controller.abort();
  await assert.rejects(call, { name: 'AbortError' });
  await assert.rejects(client.nextId({ timeout: 50 }), kazahana.KazahanaError);
});

test('one signal may end any number of calls', async (t) => {
  const script = await Script.start(t, () => {});
  const client = connect(t, script.socket);
  const warnings = [];
  process.on('warning', (warning) => warnings.push(warning));
  const controller = new AbortController();
  const calls = Array.from({ length: 300 }, () => client.nextId({ signal: controller.signal }));
  await delay(10);
  controller.abort();
  assert.ok((await Promise.allSettled(calls)).every(({ status }) => status === 'rejected'));
  assert.deepEqual(warnings, []);
});

test('close fails the calls under way, and later ones', async (t) => {
  const script = await Script.start(t, () => {});
  for (const prefetch of [0, 8]) {
    const client = new Client({ socket: script.socket, prefetch });
    const calls = [client.nextId(), client.ping()];
    await delay(5);
    await client.close();
    for (const call of [...calls, client.nextId(), client.nextIds(2)]) await assert.rejects(call, kazahana.ClientClosedError);
    assert.equal(client.tryNextId(), undefined);
    await client.close();
    await until('the memory of the connection is free', () => client.channel.socket === undefined);
  }
  await until('the connections close', () => script.connections.every((socket) => socket.destroyed));
});

test('a client that is closed in the tick of its first call makes no connection', async (t) => {
  const script = await Script.start(t, () => {});
  const client = new Client({ socket: script.socket });
  const call = client.nextId();
  await client.close();
  await assert.rejects(call, kazahana.ClientClosedError);
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(client.channel.socket, undefined);
});

test('more calls at once than a socket takes', async (t) => {
  const answer = counting();
  const script = await Script.start(t, answer);
  const client = connect(t, script.socket, { timeout: 3_600_000 }); // however slow the machine
  const ids = await Promise.all(Array.from({ length: 40_000 }, () => client.nextId()));
  assert.equal(new Set(ids).size, 40_000);
  assert.equal(script.connections.length, 1);
});

test('a daemon that does not read costs little memory, and is served when it reads again', async (t) => {
  const script = await Script.start(t, counting());
  script.server.on('connection', (socket) => socket.pause());
  const client = connect(t, script.socket);
  const text = 'x'.repeat(1000);
  let calls = 0;
  for (let portion = 0; portion < 40; portion++) {
    const some = await Promise.allSettled(Array.from({ length: 200 }, () => client.inspect(text, { timeout: 1 })));
    for (const { reason } of some) assert.equal(reason.code, 'TIMEOUT');
    calls += some.length;
    const { socket, queue } = client.channel;
    assert.ok(socket.writableLength < (1 << 20) + 200 * 1100, `${socket.writableLength} bytes after ${calls} calls`);
    assert.equal(queue.size, 0);
  }
  const pings = [client.ping({ timeout: 3_600_000 }), client.ping({ timeout: 3_600_000 })];
  script.connections[0].resume();
  await Promise.all(pings);
  assert.ok(script.requests.length < calls / 2, `${script.requests.length} of ${calls} calls were sent`);
  assert.equal(script.connections.length, 1);
});

/** Runs a program that uses the package, and returns what it printed. */
function run(socket, program) {
  return new Promise((resolve, reject) => {
    const head = `const { Client } = require(${JSON.stringify(packageDir)});const client = new Client({ socket: ${JSON.stringify(socket)}, prefetch: PREFETCH });`;
    const script = head.replace('PREFETCH', program.prefetch ?? 0) + program.body;
    execFile(process.execPath, ['-e', script], { timeout: 120_000 }, (error, stdout) => (error ? reject(error) : resolve(stdout)));
  });
}

test('an idle client lets the process end, a pending call does not', async (t) => {
  const answer = counting();
  const script = await Script.start(t, (request) => (request.method === 'Ping' ? setTimeout(() => answer(request), 100) : answer(request)));
  for (const prefetch of [0, 64]) {
    assert.equal(await run(script.socket, { prefetch, body: 'client.nextId().then((id) => console.log(id))' }), `${script.requests.length === 1 ? FIRST : FIRST + 1n}n\n`);
  }
  assert.equal(await run(script.socket, { body: 'client.ping().then(() => console.log("pong"))' }), 'pong\n');
  assert.equal(await run(script.socket, { body: 'client.nextId().then(() => client.ping()).then(() => console.log("pong"))' }), 'pong\n');
  // A process that only waits for a daemon to come back still waits.
  assert.equal(await run(script.socket + '.none', { body: 'client.ping().catch((error) => console.log(error.code))' }), 'DAEMON_UNAVAILABLE\n');
});

test('what is no signal fails its call and nothing else', async (t) => {
  const script = await Script.start(t, counting());
  for (const prefetch of [0, 8]) {
    const body = `process.on('unhandledRejection', () => console.log('unhandled'));
      client.nextId({ timeout: 50, signal: new AbortController() }).catch((error) => console.log(error.code));`;
    assert.equal(await run(script.socket, { prefetch, body }), 'ERR_INVALID_ARG_TYPE\n');
  }
});

test('a closed client leaves no timer behind', async (t) => {
  const script = await Script.start(t, counting());
  const timers = `const timers = new Set();
    require('node:async_hooks').createHook({ init: (id, type) => type === 'Timeout' && timers.add(id), destroy: (id) => timers.delete(id) }).enable();`;
  for (const prefetch of [0, 8]) {
    const body = `${timers}
      (async () => {
        await client.nextId();
        const under = client.nextId();
        await client.close();
        await Promise.allSettled([under, client.nextId({ timeout: 5000 }), client.ping({ timeout: 4000 })]);
        client.tryNextId();
        await new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
        console.log(timers.size);
      })();`;
    assert.equal(await run(script.socket, { prefetch, body }), '0\n');
  }
});
