// Locks against a scripted daemon. What the real one does with them is in daemon.test.mjs.
import assert from 'node:assert/strict';
import os from 'node:os';
import { performance } from 'node:perf_hooks';
import test from 'node:test';
import * as kazahana from '../dist/index.js';
import system from '../dist/system.js';
import { delay, Script, stopClock, until } from './support.mjs';

const { Client } = kazahana;

/** A daemon with one lock: `lock` is what it knows, and the test may change it. */
async function lockDaemon(t, change = () => false) {
  const lock = { tenant_id: 'default', lock_key: 'k', lease_id: 'lease-1', owner_id: 'anonymous/0', fencing_token: 2n ** 60n, state: 'ACTIVE', acquired_at: '', expires_at: '', expires_in_ms: 30_000 };
  const daemon = await Script.start(t, (request) => {
    const { method, params, reply } = request;
    if (change(request)) return;
    if (method === 'Lock.Renew') lock.expires_in_ms = params[1].ttl_ms;
    if (method === 'Lock.Release') lock.state = 'RELEASED';
    reply(method === 'Ping' ? 'pong' : lock);
  });
  const client = new Client({ socket: daemon.socket, timeout: 5000 });
  t.after(() => client.close());
  return { daemon, client, lock };
}

const lossOf = (lock) => new Promise((resolve) => lock.lost.addEventListener('abort', () => resolve(lock.lost.reason)));

test('a lock has a connection of its own, and gives it back', async (t) => {
  const { daemon, client } = await lockDaemon(t);
  await client.ping();
  const lock = await client.lock('k', { ttl: 9000 });
  assert.deepEqual([lock.key, lock.token, lock.leaseId, lock.ownerId, lock.lost.aborted], ['k', 2n ** 60n, 'lease-1', 'anonymous/0', false]);
  const [, acquire, watch] = daemon.requests;
  assert.equal(acquire.method, 'Lock.Acquire');
  const { request_id, ...options } = acquire.params[1];
  assert.deepEqual([acquire.params[0], options], ['k', { ttl_ms: 9000, wait_ms: 0, hold: 'connection' }]);
  assert.match(request_id, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  assert.deepEqual([watch.method, watch.params], ['Lock.Watch', ['k', { lease_id: 'lease-1' }]]);
  assert.notEqual(acquire.socket, daemon.requests[0].socket);
  await Promise.all([lock.release(), lock.release()]);
  const released = daemon.requests.filter(({ method }) => method === 'Lock.Release');
  assert.deepEqual([released.length, released[0].params[1].lease_id, released[0].socket], [1, 'lease-1', acquire.socket]);
  await until('its connection closes', () => acquire.socket.destroyed);
  assert.equal(lock.lost.aborted, false);
  await client.ping();
});

test('await using releases', async (t) => {
  const { daemon, client, lock: known } = await lockDaemon(t);
  const lock = await client.lock('k');
  await lock[Symbol.asyncDispose]();
  assert.equal(known.state, 'RELEASED');
  assert.equal(daemon.requests.at(-1).method, 'Lock.Release');
});

test('a held lock is LockHeldError, and its connection is closed', async (t) => {
  const { daemon, client } = await lockDaemon(t, ({ fail }) => fail('LOCK_HELD: "k" is held retry_after_ms=1200 owner=anonymous/7') || true);
  await assert.rejects(client.lock('k'), (error) => error instanceof kazahana.LockHeldError && error.retryAfterMs === 1200 && error.owner === 'anonymous/7');
  await until('the connection closes', () => daemon.connections.every((socket) => socket.destroyed));
});

test('waiting comes on top of the timeout', async (t) => {
  let asked;
  const { client } = await lockDaemon(t, (request) => {
    if (request.method !== 'Lock.Acquire') return false;
    asked ??= request.params[1].wait_ms;
    setTimeout(request.reply, 150, { lease_id: 'lease-1', owner_id: 'o', fencing_token: 7, state: 'ACTIVE', expires_in_ms: 30_000 });
    return true;
  });
  const lock = await client.lock('k', { wait: 60_000, timeout: 100 }).catch((error) => error);
  assert.equal(lock.token, 7n);
  assert.ok(asked > 50_000 && asked <= 60_000, asked);
  await lock.release();
});

test('a signal or the deadline ends the wait and closes the connection, so that nothing stays held', async (t) => {
  const { daemon, client } = await lockDaemon(t, ({ method }) => method === 'Lock.Acquire');
  const reason = new Error('enough');
  const controller = new AbortController();
  setTimeout(() => controller.abort(reason), 20);
  await assert.rejects(client.lock('k', { wait: 60_000, signal: controller.signal }), reason);
  await assert.rejects(client.lock('k', { timeout: 30 }), { code: 'TIMEOUT' });
  await until('the connections close', () => daemon.connections.every((socket) => socket.destroyed));
});

/** A daemon that does not answer the first acquire, or what follows it, and the call whose caller gives up then. */
async function givingUp(t, silent, options) {
  let isSilent = true;
  const { daemon, client } = await lockDaemon(t, ({ method }) => {
    if (!isSilent || method !== silent) return false;
    isSilent = false;
    controller.abort(reason);
    return true;
  });
  const reason = new Error('enough');
  const controller = new AbortController();
  await assert.rejects(client.lock('k', { ttl: 9000, wait: 60_000, hold: 'none', signal: controller.signal, ...options }), reason);
  return { daemon, client };
}

for (const silent of ['Lock.Acquire', 'Lock.Get']) {
  test(`hold: none: what may have been granted to a caller who gave up at ${silent} is given back`, async (t) => {
    const { daemon, client } = await givingUp(t, silent);
    await client.close(); // which does not end that
    const asked = (method) => daemon.requests.filter((request) => request.method === method);
    await until('it is released', () => asked('Lock.Release').length === 1);
    const [first, again] = asked('Lock.Acquire');
    assert.ok(first.params[1].wait_ms > 0);
    assert.deepEqual(again.params, ['k', { ...first.params[1], wait_ms: 0 }]);
    assert.notEqual(again.socket, first.socket);
    assert.equal(asked('Lock.Release')[0].params[1].lease_id, 'lease-1');
    await until('the connections close', () => daemon.connections.every((socket) => socket.destroyed));
  });
}

test('hold: none: who gave up and was granted nothing asks once', async (t) => {
  const advance = stopClock(t);
  let asked = 0;
  const { daemon, client } = await lockDaemon(t, ({ fail }) => {
    if (++asked === 1) advance(30);
    else fail('LOCK_HELD: "k" is held');
    return true;
  });
  await assert.rejects(client.lock('k', { timeout: 30, hold: 'none' }), { code: 'TIMEOUT' });
  await until('it asks whether something was granted, and ends', () => asked === 2 && daemon.connections.every((socket) => socket.destroyed));
  await assert.rejects(client.lock('k', { hold: 'none' }), kazahana.LockHeldError); // and then there is no doubt
  await until('its connection closes', () => daemon.connections.every((socket) => socket.destroyed));
  assert.equal(asked, 3);
});

test('an acquire that the connection broke under is repeated as the same request', async (t) => {
  const seen = [];
  const { client } = await lockDaemon(t, ({ method, params, socket, fail }) => {
    if (method !== 'Lock.Acquire') return false;
    seen.push(params[1].request_id);
    if (seen.length === 1) socket.destroy();
    if (seen.length === 2) fail('REQUEST_ID_REUSED: that lease was released');
    return seen.length <= 2;
  });
  const lock = await client.lock('k');
  assert.equal(seen.length, 3);
  assert.equal(seen[0], seen[1]);
  assert.notEqual(seen[2], seen[1]);
  await lock.release();
});

test('the daemon says that the lock is lost', async (t) => {
  const { daemon, client } = await lockDaemon(t);
  const lock = await client.lock('k');
  const { send } = daemon.requests.at(-1);
  send(2, 'Lock.Lost', [{ lease_id: 'another', reason: 'expired' }]);
  send(2, 'Something.New', []);
  await delay(20);
  assert.equal(lock.lost.aborted, false);
  send(2, 'Lock.Lost', [{ lease_id: 'lease-1', reason: 'taken_over' }]);
  const reason = await lossOf(lock);
  assert.ok(reason instanceof kazahana.LockLostError);
  assert.match(reason.message, /"k" is lost: .*taken_over/);
  await lock.release();
  assert.notEqual(daemon.requests.at(-1).method, 'Lock.Release');
});

test('a connection that breaks loses the lock, and is not made again', async (t) => {
  const { daemon, client } = await lockDaemon(t);
  const lock = await client.lock('k');
  daemon.connections.at(-1).destroy();
  const reason = await lossOf(lock);
  assert.deepEqual([reason.code, reason.cause.code], ['LOCK_LOST', 'DAEMON_UNAVAILABLE']);
  await assert.rejects(lock.renew(), kazahana.LockLostError);
  await lock.release();
  assert.equal(daemon.connections.length, 1);
});

for (const [how, answer, why] of [
  ['expired', { state: 'EXPIRED', expires_in_ms: 0 }, /it is EXPIRED/],
  ['another\'s', { lease_id: 'lease-2' }, /somebody else holds it/],
]) {
  test(`a lock that is found to be ${how} is lost`, async (t) => {
    const { client, lock: known } = await lockDaemon(t);
    const lock = await client.lock('k', { ttl: 60 });
    Object.assign(known, answer);
    assert.match((await lossOf(lock)).message, why);
  });
}

test('a daemon that hangs loses the lock before its time is up', async (t) => {
  const { client, lock: known } = await lockDaemon(t, ({ method }) => method === 'Lock.Get');
  known.expires_in_ms = 300;
  const begin = performance.now();
  const lock = await client.lock('k', { ttl: 300 });
  const reason = await lossOf(lock);
  assert.equal(reason.cause.code, 'TIMEOUT');
  assert.ok(performance.now() - begin >= 250);
});

test('a process that could not run for longer than the ttl asks before it gives the lock up', async (t) => {
  const advance = stopClock(t);
  const { client, daemon, lock: known } = await lockDaemon(t, ({ method, reply }) => method === 'Lock.Get' && setTimeout(() => reply(known), 50));
  known.expires_in_ms = 900;
  const lock = await client.lock('k', { ttl: 900 });
  const asked = () => daemon.requests.filter(({ method }) => method === 'Lock.Get').length;
  advance(1000);
  const before = asked();
  await until('it asks', () => asked() > before + 1);
  assert.equal(lock.lost.aborted, false);
  await lock.release();
});

const skip = process.version.startsWith('v18.') && 'the mocked timers of Node 18 have no unref';

test('hold: none needs its own connection only to be acquired, ends with its time, and is renewed by the caller', { skip }, async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  t.mock.method(system, 'setTimer', setTimeout);
  t.mock.method(system, 'clearTimer', clearTimeout);
  t.mock.method(os, 'uptime', () => 1000);
  const steady = stopClock(t);
  const advance = (ms) => {
    steady(ms);
    t.mock.timers.tick(ms);
  };
  const { client, daemon, lock: known } = await lockDaemon(t);
  await client.ping();
  known.expires_in_ms = 9000;
  const lock = await client.lock('k', { ttl: 9000, hold: 'none' });
  const [ping, acquire, get] = daemon.requests;
  assert.deepEqual([acquire.method, get.method, get.socket === ping.socket], ['Lock.Acquire', 'Lock.Get', true]);
  assert.ok(!('hold' in acquire.params[1]));
  await lock.renew(100_000);
  assert.equal(daemon.requests.at(-1).params[1].ttl_ms, 100_000);
  advance(9100);
  assert.equal(lock.lost.aborted, false);
  await lock.renew(5000);
  const loss = lossOf(lock);
  advance(4999);
  assert.equal(lock.lost.aborted, false);
  advance(1);
  assert.match((await loss).message, /its time ran out/);
  await assert.rejects(lock.renew(), kazahana.LockLostError);
  assert.equal(daemon.connections.length, 2);
  await client.ping();
});

/** Stops both clocks, and returns what suspends the machine: only the uptime goes on. */
function suspending(t) {
  stopClock(t);
  let uptime = 1000;
  t.mock.method(os, 'uptime', () => uptime);
  return (seconds) => (uptime += seconds);
}

test('hold: none: the time while the machine is suspended counts', async (t) => {
  const suspend = suspending(t);
  const { client } = await lockDaemon(t);
  const lock = await client.lock('k', { ttl: 30_000, hold: 'none' });
  suspend(28);
  assert.equal(lock.lost.aborted, false);
  suspend(2);
  assert.equal(lock.lost.aborted, true); // in the tick that asks
  assert.match(lock.lost.reason.message, /its time ran out/);
  await assert.rejects(lock.renew(), kazahana.LockLostError);
});

test('hold: none: the end while the machine was suspended is told', async (t) => {
  const suspend = suspending(t);
  const { client, lock: known } = await lockDaemon(t);
  known.expires_in_ms = 3_600_000;
  const lock = await client.lock('k', { ttl: 3_600_000, hold: 'none' });
  const loss = lossOf(lock);
  suspend(3600);
  assert.match((await loss).message, /its time ran out/);
});

test('a held lock whose time ran out while the machine was suspended is asked about soon', async (t) => {
  const suspend = suspending(t);
  const { client, daemon, lock: known } = await lockDaemon(t);
  known.expires_in_ms = 3_600_000;
  const lock = await client.lock('k', { ttl: 3_600_000 });
  suspend(3600);
  assert.equal(lock.lost.aborted, false);
  await until('it asks', () => daemon.requests.some(({ method }) => method === 'Lock.Get'));
  await lock.release();
});

test('a release that finds the lock gone tells it by the signal', async (t) => {
  const { client } = await lockDaemon(t, ({ method, fail }) => method === 'Lock.Release' && (fail('LOCK_EXPIRED: the lease has expired') || true));
  const lock = await client.lock('k');
  await lock.release();
  assert.equal(lock.lost.reason.cause.code, 'LOCK_EXPIRED');
});

test('sequences carry a request ID of their own, or the caller\'s', async (t) => {
  const { client, daemon } = await lockDaemon(t, ({ method, params, reply }) => {
    if (method === 'Sequence.Next') reply(7);
    if (method === 'Sequence.NextBatch') reply(Array.from({ length: params[1] }, (_, i) => 8 + i));
    return method.startsWith('Sequence');
  });
  assert.equal(await client.nextSequence('s'), 7n);
  assert.deepEqual(await client.nextSequences('s', 3, { requestId: 'mine' }), [8n, 9n, 10n]);
  const [one, batch] = daemon.requests;
  assert.match(one.params[1].request_id, /^[0-9a-f-]{36}$/);
  assert.deepEqual(batch.params, ['s', 3, { request_id: 'mine' }]);
});
