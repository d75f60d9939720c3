import assert from 'node:assert/strict';
import test from 'node:test';
import * as kazahana from '../dist/index.js';
import * as placement from '../dist/placement/index.js';
import { ClockBackwardError, Client, LockHeldError } from '../dist/index.js';
import { FakeClient } from '../dist/testing.js';
import { Daemon, until, place } from './support.mjs';

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

/** An executor of a fake, and what it was told. */
async function rooms(fake, callbacks = {}) {
  const told = [];
  const executor = await place(fake).register({
    kinds: ['room'],
    activate: ({ identity, version, token, snapshot }) => {
      told.push(`activate ${identity} ${version} ${token} ${snapshot ? Buffer.from(snapshot) : ''}`);
      return callbacks.activate?.(identity);
    },
    passivate: ({ identity }) => {
      told.push(`passivate ${identity}`);
      return Buffer.from(`left by ${identity}`);
    },
    ended: ({ identity }) => told.push(`ended ${identity}`),
  });
  return { executor, told };
}

test('resolve activates by the callbacks of register', async () => {
  const fake = new FakeClient();
  await assert.rejects(place(fake).resolve('room', 'a'), (error) => error instanceof placement.PlacementUnservedError && /registered for this kind: "room"/.test(error.message));
  const { executor, told } = await rooms(fake, { activate: (identity) => (identity === 'a' ? undefined : `me of ${identity}`) });
  const [one, two] = await Promise.all([place(fake).resolve('room', 'a'), place(fake).resolve('room', 'a')]);
  assert.deepEqual(one, two);
  assert.deepEqual(one, { kind: 'room', identity: 'a', authority: 'localhost:1', locality: 'local', isLocal: true, pid: String(process.pid), version: 1n, token: 1n, observedMs: Date.UTC(2026, 0, 2) });
  assert.equal((await place(fake).resolve('room', 'b')).pid, 'me of b');
  const [activation] = executor.activations;
  await activation.check();
  await place(fake).passivate('room', 'a');
  await place(fake).passivate('room', 'nobody');
  await assert.rejects(activation.check(), placement.ActivationEndedError);
  await place(fake).resolve('room', 'a');
  place(fake).restart();
  assert.deepEqual(executor.activations, []);
  await place(fake).resolve('room', 'b');
  await executor.activations[0].check();
  await executor.close();
  assert.deepEqual(told, [
    'activate a 1 1 ', 'activate b 1 2 ', 'passivate a', 'activate a 2 3 left by a', 'ended b', 'ended a', 'activate b 2 4 ', 'passivate b',
  ]);
  await assert.rejects(place(fake).resolve('room', 'b'), placement.PlacementUnservedError);
  assert.deepEqual(fake.calls, ['Placement.Resolve', 'Placement.Register', ...Array(5).fill('Placement.Resolve'), 'Placement.Resolve']);
});

test('executors share what is activated, and can fail', async () => {
  const fake = new FakeClient();
  const first = await rooms(fake, { activate: () => 'first' });
  const second = await rooms(fake, { activate: () => 'second' });
  const pids = [];
  for (const name of ['a', 'b', 'c', 'd']) pids.push((await place(fake).resolve('room', name)).pid);
  assert.deepEqual(pids, ['first', 'second', 'first', 'second']);
  await first.executor.close();
  assert.equal((await place(fake).resolve('room', 'a')).pid, 'second');
  await second.executor[Symbol.asyncDispose]();
  await rooms(fake, { activate: () => { throw new Error('no room left'); } });
  await assert.rejects(place(fake).resolve('room', 'a'), (error) => error.code === 'ACTIVATION_FAILED' && error.cause === 'no room left');
  fake.fail(new placement.PlacementNotReadyError('as the test wants it', { details: { state: 'off' } }));
  await assert.rejects(rooms(fake), { code: 'PLACEMENT_NOT_READY', state: 'off' });
});

test('events of a fake', async () => {
  const fake = new FakeClient();
  const events = place(fake).events();
  const all = place(fake).events({ events: ['resolved'] });
  await events.ready;
  const { executor } = await rooms(fake, { activate: (identity) => { if (identity === 'bad') throw new Error('no room left'); } });
  await place(fake).resolve('room', 'a');
  await place(fake).resolve('room', 'bad').catch(() => undefined);
  await executor.close();
  place(fake).restart();
  const seen = [];
  await assert.rejects(async () => {
    for await (const { event, identity, token, reason } of events) seen.push([event, identity, token, reason]);
  }, kazahana.DaemonUnavailableError);
  assert.deepEqual(seen, [['activated', 'a', 1n, ''], ['activation_failed', 'bad', 0n, 'no room left'], ['passivated', 'a', 1n, '']]);
  assert.equal((await all.next()).value.identity, 'a');
});

test('its answers have the shape of a real daemon\'s', async (t) => {
  const daemon = await Daemon.start(t, '--placement-authority', 'localhost:1');
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
  await until('it is a member', async () => (await place(real).snapshot()).state === 'member');
  const placed = [];
  for (const client of [fake, real]) {
    const events = place(client).events();
    await events.ready;
    const { executor } = await rooms(client);
    const { observedMs: resolved, ...resolution } = await place(client).resolve('room', 'a');
    const { observedMs: happened, ...event } = (await events.next()).value;
    assert.deepEqual([typeof resolved, typeof happened], ['number', 'number']);
    await until('it rests', async () => (await place(client).snapshot()).activations[0].doing === 'resting');
    const snapshots = [await place(client).snapshot(), await place(client).snapshot({ kind: 'room', identity: 'a' })];
    for (const { activations } of snapshots) activations[0].idleMs = typeof activations[0].idleMs;
    snapshots[1].key.record.observedMs = typeof snapshots[1].key.record.observedMs;
    await Promise.all([events.return(), executor.close()]);
    placed.push([resolution, event, snapshots]);
  }
  assert.deepEqual(placed[0], placed[1]);
});

test('the fake makes IDs below 2^53', async () => {
  const fake = new FakeClient({ layout: 'js', fallback: true });
  const ids = await fake.nextIds(40, { format: 'number' });
  for (let i = 1; i < ids.length; i++) assert.ok(Number.isSafeInteger(ids[i]) && ids[i] > ids[i - 1]);
  const { id, machineId, sequence, bitId, bitSeq, kind, timestampMs } = await fake.inspect(ids[17]);
  assert.deepEqual([id, machineId, sequence, bitId, bitSeq, kind], [BigInt(ids[17]), 1, 1, 7, 4, 'fallback']);
  const [smallest, largest] = await fake.bounds(timestampMs, timestampMs + 1);
  assert.ok(smallest <= id && id <= largest && largest - smallest === 2n ** 11n - 1n);
  await assert.rejects(new FakeClient({ start: Date.UTC(2026, 10, 20) }).nextId({ format: 'number' }), /layout is js/);
});
