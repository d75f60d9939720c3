import assert from 'node:assert/strict';
import test from 'node:test';
import * as kazahana from '../../dist/index.js';
import { FakeClient } from '../../dist/testing.js';
import * as placement from '../dist/index.js';
import { Daemon, until, place } from './support.mjs';

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
  const [real, fake] = [new kazahana.Client({ socket: daemon.socket }), new FakeClient()];
  t.after(() => real.close());
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

test('a registration needs its callbacks and kinds', async () => {
  const fake = new FakeClient();
  await assert.rejects(place(fake).register({ kinds: ['room'] }), /activate must be a function/);
  await assert.rejects(place(fake).register({ kinds: 'room', activate() {}, passivate() {} }), /kinds must be an array/);
});
