import assert from 'node:assert/strict';
import test from 'node:test';
import { ClockBackwardError, Client, LockHeldError } from '../dist/index.js';
import { FakeClient } from '../dist/testing.js';
import { Daemon } from './support.mjs';

test('the same answers in every run', async () => {
  const run = async () => {
    const fake = new FakeClient();
    return [await fake.nextId(), await fake.nextIds(300), fake.tryNextId(), await fake.nextId({ format: 'external' }), await fake.uuid(), await fake.nextSequences('s', 2), (await fake.lock('k')).token];
  };
  const first = await run();
  assert.deepEqual(first, await run());
  assert.equal(first[0], (86_400_000n << 22n) | 256n);
});

test('IDs ascend and are explained', async () => {
  const fake = new FakeClient({ start: Date.UTC(2026, 5, 1) });
  const ids = await fake.nextIds(1000);
  for (let i = 1; i < ids.length; i++) assert.ok(ids[i] > ids[i - 1]);
  const found = await fake.inspect(ids[256]);
  assert.deepEqual([found.time, found.machineId, found.sequence, found.kind], ['2026-06-01T00:00:00.001Z', 1, 0, 'regular']);
  assert.equal(await fake.toInternal(await fake.toExternal(ids[5])), ids[5]);
  const [smallest, largest] = await fake.bounds(found.timestampMs, found.timestampMs + 1);
  assert.ok(smallest <= ids[256] && ids[511] <= largest && ids[512] > largest);
  assert.equal(await new FakeClient({ fallback: true }).isFallback(await new FakeClient({ fallback: true }).nextId()), true);
});

test('it fails when it is told to, and tells what it was asked', async () => {
  const fake = new FakeClient();
  fake.fail(new ClockBackwardError('behind', { details: { backward_ms: '7000', limit_ms: '5000' } }), 2);
  await assert.rejects(fake.nextId(), { code: 'CLOCK_BACKWARD', backwardMs: 7000 });
  assert.throws(() => fake.tryNextId(), ClockBackwardError);
  await fake.ping();
  await assert.rejects(fake.nextIds(0), { code: 'INVALID_PARAMS' });
  await assert.rejects(fake.nextId({ signal: AbortSignal.abort(new Error('enough')) }), /enough/);
  await fake.close();
  await assert.rejects(fake.nextId(), { code: 'CLIENT_CLOSED' });
  assert.deepEqual(fake.calls, ['NextID', 'NextID', 'Ping', 'NextIDs', 'NextID', 'NextID']);
});

test('locks exclude each other and can be lost', async () => {
  const fake = new FakeClient();
  const lock = await fake.lock('k');
  await assert.rejects(fake.lock('k'), LockHeldError);
  fake.loseLock('k');
  assert.equal(lock.lost.reason.code, 'LOCK_LOST');
  const next = await fake.lock('k');
  await lock.release();
  await assert.rejects(fake.lock('k'), LockHeldError);
  await next[Symbol.asyncDispose]();
  assert.deepEqual((await fake.lock('k')).token, 3n);
});

test('its answers have the shape of a real daemon\'s', async (t) => {
  const daemon = await Daemon.start(t);
  const [real, fake] = [new Client({ socket: daemon.socket }), new FakeClient()];
  t.after(() => real.close());
  const id = await real.nextId();
  const { machineId, sequence, ...rest } = await fake.inspect(id);
  assert.deepEqual({ ...rest, machineId, sequence }, await real.inspect(id));
  assert.deepEqual(await fake.bounds(rest.timestampMs, rest.timestampMs + 5), await real.bounds(rest.timestampMs, rest.timestampMs + 5));
  const members = (object) => Object.getOwnPropertyNames(Object.getPrototypeOf(Object.getPrototypeOf(object)));
  assert.deepEqual(members(fake), members(real));
  const [a, b] = [await fake.status(), await real.status()];
  for (const key of Object.keys(a)) assert.equal(typeof a[key], typeof b[key], key);
});
