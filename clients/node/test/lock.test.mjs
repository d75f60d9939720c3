// Locks against a scripted daemon. What the real one does with them is in daemon.test.mjs.
import assert from 'node:assert/strict';
import os from 'node:os';
import { performance } from 'node:perf_hooks';
import test from 'node:test';
import * as kazahana from '../dist/index.js';
import { delay, Script, stopClock, until } from './support.mjs';

const { Client } = kazahana;

/** A daemon with one lock: `lock` is what it knows, and the test may change it. */
async function lockDaemon(t, change = () => false) {
  const lock = { tenant_id: 'default', lock_key: 'k', lease_id: 'lease-1', owner_id: 'anonymous/0', fencing_token: 2n ** 60n, state: 'ACTIVE', acquired_at: '', expires_at: '', expires_in_ms: 30_000 };
  const daemon = await Script.start(t, (request) => {
    const { method, reply } = request;
    if (change(request)) return;
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

/** Stops both clocks, and returns what suspends the machine: only the uptime goes on. */
function suspending(t) {
  stopClock(t);
  let uptime = 1000;
  t.mock.method(os, 'uptime', () => uptime);
  return (seconds) => (uptime += seconds);
}

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
