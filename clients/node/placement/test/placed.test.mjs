// Placement by real daemons.
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { describe, test } from 'node:test';
import { Worker } from 'node:worker_threads';
import * as kazahana from '../../dist/index.js';
import * as placement from '../dist/index.js';
import { Daemon, delay, leaseServer, until, place } from './support.mjs';

const { Client } = kazahana;
const script = (name) => fileURLToPath(new URL(`./programs/${name}`, import.meta.url));

/** A daemon that others join through the store, if one is named. */
async function start(t, authority = '127.0.0.1:7001', ...flags) {
  const daemon = await Daemon.start(t, '--placement-authority', authority, '--topology-interval', '100ms', ...flags);
  const client = new Client({ socket: daemon.socket });
  t.after(() => client.close());
  const { features } = await client.status();
  assert.ok(features.includes('placement'), features);
  await until('it is a member', async () => (await place(client).snapshot({ limit: 0 })).state === 'member');
  return { daemon, client, authority };
}

/** An executor for rooms, and what it was told. */
async function rooms(t, client, callbacks = {}) {
  const told = [];
  const telling = (name, result) => (activation) => {
    told.push(`${name} ${activation.identity}`);
    return callbacks[name] ? callbacks[name](activation) : result;
  };
  const executor = await place(client).register({ kinds: ['room'], activate: telling('activate', 'me'), passivate: telling('passivate'), ended: telling('ended') });
  t.after(() => executor.close());
  return { executor, told };
}

let marks = 0;

/**
 * Waits until the daemon has seen what it has announced so far. Else who registers again for
 * a kind that was withdrawn could meet what was seen before that.
 */
async function upToDate(client) {
  const mark = `mark ${++marks}`;
  const executor = await place(client).register({ kinds: [mark], activate: () => 'me', passivate: () => {} });
  await place(client).resolve(mark, '1');
  await executor.close();
}

/** A program that has registered. */
async function program(t, name, socket) {
  const child = fork(script(name), [socket]);
  t.after(() => child.kill('SIGKILL'));
  const exited = new Promise((resolve) => child.on('exit', resolve));
  await new Promise((resolve, reject) => {
    child.on('message', resolve);
    child.on('exit', (code) => reject(new Error(`${name} exited with ${code}`)));
  });
  return { child, exited };
}

const names = (from, to) => Array.from({ length: to - from }, (_, i) => String(from + i));

describe('placement', { concurrency: true, timeout: 600_000 }, () => {
  test('what nobody has activated is activated once, and snapshots are handed on', async (t) => {
    const { client, authority } = await start(t);
    const passivate = ({ version }) => (version === 3n ? undefined : Buffer.from(`left by ${version}`));
    const first = await rooms(t, client, { passivate });
    const found = await Promise.all(names(0, 50).map(() => place(client).resolve('room', 'a')));
    const { token, observedMs } = found[0];
    assert.ok(Math.abs(observedMs - Date.now()) < 60_000);
    assert.deepEqual({ ...found[0] }, { kind: 'room', identity: 'a', authority, locality: 'local', isLocal: true, pid: 'me', version: 1n, token, observedMs });
    assert.ok(found.every((one) => one.token === token && one.version === 1n));
    assert.equal((await place(client).resolve('room', 'a', { pid: true })).pid, found[0].pid);
    await first.executor.close();
    assert.deepEqual(first.told, ['activate a', 'passivate a']);
    // A snapshot stays until there is another.
    let before = token;
    for (const [version, left] of [[2n, 'left by 1'], [3n, 'left by 2'], [4n, 'left by 2']]) {
      await upToDate(client);
      const { executor } = await rooms(t, client, { passivate });
      const next = await place(client).resolve('room', 'a');
      assert.ok(next.version === version && next.token > before);
      before = next.token;
      const [activation] = executor.activations;
      assert.deepEqual([activation.token, activation.version, Buffer.from(activation.snapshot).toString()], [next.token, version, left]);
      await executor.close();
    }
  });

  test('check, before and after the end', async (t) => {
    const { client } = await start(t);
    const checked = [];
    const check = (when) => (activation) => activation.check().then(() => void checked.push(when), ({ code }) => void checked.push(`${when}: ${code}`));
    const { executor } = await rooms(t, client, { activate: check('activate'), ended: check('ended') });
    await place(client).resolve('room', 'a');
    const [activation] = executor.activations;
    await activation.check({ timeout: 1000 });
    await assert.rejects(Object.assign(Object.create(activation), { token: activation.token + 1n, until: -Infinity }).check(), { code: 'ACTIVATION_ENDED' });
    await executor.close();
    await assert.rejects(activation.check(), placement.ActivationEndedError);
    assert.deepEqual(checked, ['activate']);
  });

  test('events of a life, and a snapshot of it', async (t) => {
    const { client, authority } = await start(t);
    const events = place(client).events({ events: ['resolved', 'activated', 'activation_failed', 'passivated'] });
    await events.ready;
    await assert.rejects(place(client).resolve('room', 'a', { wait: 0 }), placement.PlacementUnservedError); // nobody has registered
    let broken = true;
    const activate = () => {
      if (broken) throw new Error('no room left');
      return 'me';
    };
    const { executor } = await rooms(t, client, { activate });
    await assert.rejects(place(client).resolve('room', 'a'), placement.ActivationFailedError);
    broken = false;
    const { version, token } = await place(client).resolve('room', 'a');
    await place(client).resolve('room', 'b');
    await until('they rest', async () => (await place(client).snapshot()).activations.every(({ doing }) => doing === 'resting'));
    const snapshot = await place(client).snapshot();
    assert.deepEqual([snapshot.state, snapshot.authority, snapshot.kinds, snapshot.activationsTotal, snapshot.key], ['member', authority, ['room'], 2, null]);
    assert.deepEqual(snapshot.members.map((member) => [member.authority, typeof member.token]), [[authority, 'bigint']]);
    const [{ idleMs, ...activation }] = snapshot.activations;
    assert.deepEqual(activation, { kind: 'room', identity: 'a', doing: 'resting', active: true, pid: 'me', version, token });
    assert.ok(idleMs >= 0);
    assert.deepEqual((await place(client).snapshot({ after: 'room/a', limit: 1 })).activations.map(({ identity }) => identity), ['b']);
    const { key, activations } = await place(client).snapshot({ kind: 'room', identity: 'b' });
    assert.deepEqual([key.authority, key.locality, key.record.owner, key.record.pid, activations.length], [authority, 'local', authority, 'me', 1]);
    assert.equal((await place(client).snapshot({ kind: 'room', identity: 'c' })).key.record, null);
    await executor.close();
    const seen = [];
    for await (const event of events) {
      if (event.identity === 'a' && seen.push(event) && event.event === 'passivated') break;
    }
    assert.ok(seen.some(({ event }) => event === 'resolved'));
    const [failed, activated, ...others] = seen.filter(({ event }) => event !== 'resolved');
    assert.deepEqual([failed.event, activated.event, others.map(({ event }) => event)], ['activation_failed', 'activated', ['passivated']]);
    assert.match(failed.reason, /no room left/);
    const { observedMs, reason, ...rest } = activated;
    assert.deepEqual(rest, { event: 'activated', kind: 'room', identity: 'a', authority, pid: 'me', version, token });
    assert.ok(typeof observedMs === 'number' && reason === '');
  });

  test('two daemons that share a store agree, and an identity moves with its snapshot', async (t) => {
    const store = ['--store', await leaseServer(t)];
    const [a, b] = [await start(t, 'a:1', ...store), await start(t, 'b:1', ...store)];
    for (const { client } of [a, b]) await until('it sees both', async () => (await place(client).snapshot({ limit: 0 })).members.length === 2);
    const passivate = ({ identity }) => Buffer.from(`left by ${identity}`);
    const executors = [await rooms(t, a.client, { passivate }), await rooms(t, b.client, { passivate })];
    for (const { client } of [a, b]) {
      await until('both serve rooms', async () => (await place(client).snapshot({ limit: 0 })).members.every(({ kinds }) => kinds.includes('room')));
    }
    const homes = new Map();
    for (const name of names(0, 40)) {
      const [one, other] = await Promise.all([place(a.client).resolve('room', name), place(b.client).resolve('room', name)]);
      assert.deepEqual([one.authority, one.isLocal, !one.isLocal], [other.authority, one.authority === 'a:1', other.isLocal]);
      const remote = one.isLocal ? other : one;
      assert.deepEqual([remote.locality, remote.pid, remote.version, remote.token], ['remote', '', 0n, 0n]);
      homes.set(name, one);
    }
    const [onA, onB] = executors.map(({ executor }) => executor.activations.map(({ identity }) => identity));
    assert.ok(onA.length > 5 && onB.length > 5 && onA.length + onB.length === 40, `${onA.length} and ${onB.length}`);
    const tokens = new Map(executors[1].executor.activations.map(({ identity, token }) => [identity, token]));
    // b stops politely: what it had is passivated, and goes to a.
    await b.daemon.end('SIGTERM');
    await until('a is alone', async () => (await place(a.client).snapshot({ limit: 0 })).members.length === 1);
    for (const name of onB) {
      const { isLocal, token } = await place(a.client).resolve('room', name, { wait: 30_000 });
      assert.ok(isLocal && token > tokens.get(name));
    }
    const moved = executors[0].executor.activations.filter(({ identity }) => onB.includes(identity));
    assert.deepEqual(moved.map(({ snapshot }) => Buffer.from(snapshot).toString()), onB.map((name) => `left by ${name}`));
    assert.deepEqual(executors[1].told.filter((what) => what.startsWith('ended')), []);
  });

  test('a daemon that is killed ends what it had, and gets its executors back', async (t) => {
    const { client, daemon } = await start(t, 'a:1', '--placement-ttl', '6s'); // so long the dead one is a member
    const { executor, told } = await rooms(t, client);
    const before = await place(client).resolve('room', 'a');
    const [activation] = executor.activations;
    await activation.check();
    const events = place(client).events();
    await events.ready;
    const gap = assert.rejects(events.next(), placement.WatchEndedError);
    await daemon.end('SIGKILL');
    await gap;
    await until('it is ended', () => told.includes('ended a'));
    await assert.rejects(activation.check(), placement.ActivationEndedError);
    assert.deepEqual(executor.activations, []);
    await daemon.up();
    await until('it is registered again', async () => (await place(client).snapshot().catch(() => ({ kinds: [] }))).kinds.length > 0);
    await until('it is a member again', async () => (await place(client).snapshot()).state === 'member');
    const after = await place(client).resolve('room', 'a', { wait: 30_000 });
    assert.ok(after.version > before.version && after.token > before.token);
    assert.deepEqual(told, ['activate a', 'ended a', 'activate a']);
    await executor.activations[0].check();
  });

  test('a daemon that stops has everything passivated, and says that the events end', async (t) => {
    const { client, daemon } = await start(t);
    const { told } = await rooms(t, client);
    await place(client).resolve('room', 'a');
    const events = place(client).events();
    await events.ready;
    await daemon.end('SIGTERM');
    await until('it is told', () => told.length > 1);
    assert.deepEqual(told, ['activate a', 'passivate a']);
    const seen = [];
    await assert.rejects(async () => {
      for await (const { event } of events) seen.push(event);
    }, placement.WatchEndedError);
    assert.deepEqual(seen, ['passivated']);
  });

  test('a process that is killed leaves its activations to the others', async (t) => {
    const { client, daemon } = await start(t);
    const { child, exited } = await program(t, 'executor.mjs', daemon.socket);
    const before = await place(client).resolve('room', 'a');
    assert.equal(before.pid, `${child.pid}/0`);
    const { executor } = await rooms(t, client);
    child.kill('SIGKILL');
    await exited;
    await until('it is activated anew', async () => (await place(client).resolve('room', 'a', { wait: 30_000 })).pid === 'me');
    assert.ok(executor.activations[0].token > before.token);
  });

  test('an executor keeps its process alive until it is closed', async (t) => {
    const { client, daemon } = await start(t);
    const { child, exited } = await program(t, 'executor.mjs', daemon.socket);
    await delay(200);
    const { pid } = await place(client).resolve('room', 'a');
    assert.equal(pid, `${child.pid}/0`);
    child.send('close');
    assert.equal(await exited, 0);
    const { activationsTotal, kinds } = await place(client).snapshot();
    assert.deepEqual([activationsTotal, kinds], [0, []]);
  });

  test('the workers of a cluster share what is activated', async (t) => {
    const { client, daemon } = await start(t);
    const { child, exited } = await program(t, 'executors.cjs', daemon.socket);
    const count = new Map();
    for (const name of names(0, 12)) {
      const { pid } = await place(client).resolve('room', name);
      count.set(pid, (count.get(pid) ?? 0) + 1);
    }
    assert.deepEqual([...count].sort(), [['worker 1', 4], ['worker 2', 4], ['worker 3', 4]]);
    child.send('close');
    assert.equal(await exited, 0);
    await until('nothing is left', async () => (await place(client).snapshot()).activationsTotal === 0);
  });

  test('worker threads, each with a client of its own', async (t) => {
    const { client, daemon } = await start(t);
    const workers = await Promise.all(
      names(0, 2).map(() => new Promise((resolve, reject) => {
        const worker = new Worker(script('executor.mjs'), { workerData: { socket: daemon.socket } });
        worker.once('message', () => resolve(worker));
        worker.on('error', reject);
      })),
    );
    const pids = new Set();
    for (const name of names(0, 4)) pids.add((await place(client).resolve('room', name)).pid);
    assert.deepEqual([...pids].sort(), workers.map(({ threadId }) => `${process.pid}/${threadId}`).sort());
    const exits = workers.map((worker) => new Promise((resolve) => worker.on('exit', resolve)));
    for (const worker of workers) worker.postMessage('close');
    assert.deepEqual(await Promise.all(exits), [0, 0]);
  });

  test('callbacks that throw, and that are slow', async (t) => {
    t.mock.method(process, 'emitWarning', () => undefined);
    const { client } = await start(t);
    let broken = true;
    const { executor, told } = await rooms(t, client, {
      activate: async ({ identity }) => {
        if (identity === 'slow') await delay(500);
        if (identity === 'bad' && broken) throw new Error('no room left');
        return identity;
      },
      passivate: ({ identity }) => {
        if (identity === 'bad') throw new Error('no words left');
        return Buffer.from('left');
      },
    });
    await assert.rejects(place(client).resolve('room', 'bad'), (error) => error instanceof placement.ActivationFailedError && /no room left/.test(error.cause));
    assert.equal((await place(client).resolve('room', 'slow')).pid, 'slow');
    await assert.rejects(place(client).resolve('room', 'bad', { wait: 0 }), (error) => error instanceof placement.PlacementPendingError || error instanceof placement.ActivationFailedError);
    broken = false;
    await until('it recovers', () => place(client).resolve('room', 'bad').then(() => true, () => false));
    await executor.close();
    assert.ok(told.includes('passivate bad') && told.includes('passivate slow'));
    const next = await rooms(t, client);
    await place(client).resolve('room', 'bad');
    await place(client).resolve('room', 'slow');
    assert.deepEqual(next.executor.activations.map(({ snapshot }) => snapshot && Buffer.from(snapshot).toString()), [undefined, 'left']);
  });

  test('a callback that hangs fails the activation, and is cleaned up after', async (t) => {
    const { client } = await start(t);
    let finish;
    let hangs = true;
    const hanging = new Promise((resolve) => (finish = resolve));
    const { executor, told } = await rooms(t, client, { activate: ({ identity }) => (identity === 'a' && hangs ? hanging : 'me') });
    const failed = assert.rejects(place(client).resolve('room', 'a', { wait: 20_000 }), placement.ActivationFailedError);
    await place(client).resolve('room', 'b'); // meanwhile others live
    await until('the daemon gives up', async () => (await place(client).snapshot({ kind: 'room', identity: 'a' })).activations[0]?.doing === 'passivating');
    assert.ok(!told.includes('passivate a')); // in its turn
    hangs = false;
    finish('late');
    await failed;
    assert.ok(told.includes('passivate a'));
    const { pid } = await place(client).resolve('room', 'a', { wait: 30_000 });
    assert.equal(pid, 'me');
    assert.deepEqual(told.filter((what) => what.endsWith(' a')), ['activate a', 'passivate a', 'activate a']);
    assert.equal(executor.activations.length, 2);
  });

  test('a daemon without placement, and one that only resolves', async (t) => {
    const options = { kinds: ['room'], activate: () => 'me', passivate: () => undefined };
    const off = await Daemon.start(t);
    const client = new Client({ socket: off.socket });
    t.after(() => client.close());
    assert.ok(!(await client.status()).features.includes('placement'));
    for (const call of [() => place(client).resolve('room', 'a'), () => place(client).register(options), () => place(client).snapshot(), () => place(client).events().next()]) {
      await assert.rejects(call(), (error) => error instanceof placement.PlacementNotReadyError && error.state === 'off');
    }
    const store = ['--store', await leaseServer(t)];
    const member = await start(t, 'a:1', ...store);
    await rooms(t, member.client);
    const resolver = await Daemon.start(t, '--placement-authority', 'client', '--topology-interval', '100ms', ...store);
    const asking = new Client({ socket: resolver.socket });
    t.after(() => asking.close());
    await assert.rejects(place(asking).register(options), { code: 'PLACEMENT_NOT_READY', state: 'client' });
    await until('it sees the member', async () => (await place(asking).snapshot({ limit: 0 })).members.length === 1);
    const { authority, isLocal } = await place(asking).resolve('room', 'a');
    assert.deepEqual([authority, isLocal], ['a:1', false]);
  });

  test('what is no kind, identity or option', async (t) => {
    const { client } = await start(t);
    const options = { activate: () => 'me', passivate: () => undefined };
    for (const [kind, identity] of [['a/b', 'x'], ['', 'x'], ['room', ''], ['room', 'x'.repeat(257)]]) await assert.rejects(place(client).resolve(kind, identity), kazahana.InvalidParamsError);
    for (const kinds of [[], ['a/b'], names(0, 65)]) await assert.rejects(place(client).register({ ...options, kinds }), kazahana.InvalidParamsError);
    await assert.rejects(place(client).events({ events: ['danced'] }).next(), kazahana.InvalidParamsError);
    await assert.rejects(place(client).snapshot({ limit: 1001 }), kazahana.InvalidParamsError);
  });
});
