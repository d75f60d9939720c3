// Placement against a scripted daemon. What the real one does with it is in placed.test.mjs.
import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import os from 'node:os';
import path from 'node:path';
import test from 'node:test';
import * as kazahana from '../../dist/index.js';
import * as placement from '../dist/index.js';
import { MAX_BEHIND } from '../dist/events.js';
import { Script, stopClock, temporary, testdata, until, place } from './support.mjs';

const { Client } = kazahana;
const nothing = () => undefined;

/** A promise, and how to end it. */
function gate() {
  let open;
  const opened = new Promise((resolve) => (open = resolve));
  return { opened, open };
}

/** A daemon that takes executors, and whatever `change` does not answer. */
async function placementDaemon(t, change = () => false) {
  const daemon = await Script.start(t, (request) => {
    const { method, params, reply } = request;
    if (change(request)) return;
    if (method === 'Placement.Register') reply({ authority: 'a:1', ttl_ms: 10_000, kinds: params[0] });
    else if (method === 'Placement.Unregister') reply({ passivated: 0 });
    else if (method === 'Placement.Check') reply({ valid_ms: 3000 });
    else if (method === 'Placement.Watch') reply({ authority: 'a:1', state: 'member' });
    else reply('pong');
  });
  const client = new Client({ socket: daemon.socket, timeout: 5000 });
  t.after(() => client.close());
  return { daemon, client };
}

/** An executor, what it was told, and how to ask it as the daemon does. */
async function executing(t, callbacks = {}, change = undefined) {
  const { daemon, client } = await placementDaemon(t, change);
  const told = [];
  const telling = (name, callback = nothing) => (activation) => {
    told.push([name, activation]);
    return callback(activation);
  };
  const executor = await place(client).register({
    kinds: ['room', 'desk'],
    activate: telling('activate', callbacks.activate),
    passivate: telling('passivate', callbacks.passivate),
    ended: telling('ended', callbacks.ended),
  });
  t.after(() => {
    daemon.stop();
    return executor.close();
  });
  let last = 100;
  const registered = () => daemon.requests.filter(({ method }) => method === 'Placement.Register');
  const ask = async (method, identity, token, snapshot = null) => {
    const id = ++last;
    const { socket, send } = registered().at(-1);
    send(0, id, method, [{ kind: 'room', identity, version: token, token, ...(method === 'Activate' && { snapshot }) }]);
    const answer = () => daemon.answers.find((one) => one.id === id && one.socket === socket);
    await until(`${method} is answered`, () => answer() || socket.destroyed);
    return answer() && { error: answer().error, result: answer().result };
  };
  return { daemon, client, executor, told, ask, registered, names: () => told.map(([name, { identity }]) => `${name} ${identity}`) };
}

test('an executor has a connection of its own, on which the daemon asks', async (t) => {
  const { daemon, client, executor, told, ask, registered } = await executing(t, { activate: () => 'me', passivate: () => Buffer.from('left') });
  await client.ping();
  const [{ socket, params }] = registered();
  assert.deepEqual(params, [['room', 'desk']]);
  assert.notEqual(socket, daemon.requests.at(-1).socket);
  assert.deepEqual(await ask('Activate', '42', 2n ** 60n, Buffer.from('before')), { error: null, result: { pid: 'me' } });
  const [[, activation]] = told;
  const { kind, identity, version, token, snapshot } = activation;
  assert.deepEqual([kind, identity, version, token, Buffer.from(snapshot).toString()], ['room', '42', 2n ** 60n, 2n ** 60n, 'before']);
  assert.deepEqual([executor.kinds, executor.activations], [['room', 'desk'], [activation]]);
  assert.deepEqual(await ask('Passivate', '42', 2n ** 60n), { error: null, result: { snapshot: Uint8Array.from(Buffer.from('left')) } });
  assert.deepEqual(executor.activations, []);
  await Promise.all([executor.close(), executor[Symbol.asyncDispose]()]);
  assert.equal(daemon.requests.filter(({ method }) => method === 'Placement.Unregister').length, 1);
  await until('its connection closes', () => socket.destroyed);
  assert.deepEqual(told.map(([name]) => name), ['activate', 'passivate']);
  await client.ping();
});

test('without a word from the callbacks the pid is the process ID, and there is no snapshot', async (t) => {
  const { told, ask } = await executing(t);
  assert.deepEqual(await ask('Activate', 'a', 2 ** 40), { error: null, result: { pid: String(process.pid) } });
  const [[, { snapshot, token }]] = told;
  assert.deepEqual([snapshot, token], [undefined, 2n ** 40n]);
  assert.deepEqual(await ask('Passivate', 'a', 2 ** 40), { error: null, result: { snapshot: null } });
});

test('the requests of a key are handled in their order, those of different keys at the same time', async (t) => {
  const [slow, slower] = [gate(), gate()];
  const { ask, names, daemon } = await executing(t, {
    activate: ({ identity }) => (identity === 'slow' ? slow.opened : undefined),
    passivate: () => slower.opened,
  });
  // Of the answers as they come, not as they are noticed here; asked for are 101, 102 and so on.
  const answered = () => daemon.answers.map(({ id }) => id);
  const asked = [ask('Activate', 'slow', 1), ask('Passivate', 'slow', 1)];
  await ask('Activate', 'fast', 3);
  assert.deepEqual([answered(), names()], [[103], ['activate slow', 'activate fast']]);
  slow.open();
  await until('the second begins', () => names().includes('passivate slow'));
  asked.push(ask('Activate', 'slow', 2));
  await ask('Activate', 'other', 3);
  assert.deepEqual([answered(), names().slice(2)], [[103, 101, 105], ['passivate slow', 'activate other']]);
  slower.open();
  await Promise.all(asked);
  assert.deepEqual(answered(), [103, 101, 105, 102, 104]);
  assert.deepEqual(names().slice(4), ['activate slow']);
});

test('what the executor does not know it passivates without a word', async (t) => {
  const { executor, ask, names } = await executing(t);
  await ask('Activate', 'a', 5);
  for (const [identity, token] of [['b', 5], ['a', 4], ['a', 6]]) assert.deepEqual(await ask('Passivate', identity, token), { error: null, result: { snapshot: null } });
  assert.deepEqual([names(), executor.activations.length], [['activate a'], 1]);
});

test('what callbacks throw is answered, and the executor lives on', async (t) => {
  const warnings = [];
  t.mock.method(process, 'emitWarning', (text) => warnings.push(text));
  let wrong = 'nothing';
  const results = { long: 'x'.repeat(257), number: 5, large: Buffer.alloc(65_537), text: 'text' };
  const fail = (what) => {
    if (wrong === what) throw new Error(`${what} failed`);
  };
  const { executor, ask, names } = await executing(t, {
    activate: async () => fail('activate') ?? results[wrong],
    passivate: () => fail('passivate') ?? results[wrong],
    ended: async () => fail('ended'),
  });
  const activate = (what, token) => {
    wrong = what;
    return ask('Activate', 'a', token);
  };
  assert.deepEqual(await activate('activate', 1), { error: [0, 'activate failed'], result: null });
  for (const what of ['long', 'number']) assert.deepEqual(await activate(what, 2), { error: [0, 'activate gave no string of up to 256 bytes'], result: null });
  // Only what has begun is ended.
  assert.deepEqual(names(), ['activate a', 'activate a', 'ended a', 'activate a', 'ended a']);
  assert.deepEqual(executor.activations, []);
  for (const [token, what, error] of [[3, 'passivate', /^passivate failed$/], [4, 'large', /up to 65536 bytes/], [5, 'text', /no Uint8Array/]]) {
    assert.equal((await activate('nothing', token)).error, null);
    const [activation] = executor.activations;
    wrong = what;
    assert.match((await ask('Passivate', 'a', token)).error[1], error);
    assert.deepEqual(executor.activations, []);
    await assert.rejects(activation.check(), placement.ActivationEndedError);
  }
  assert.equal(warnings.length, 3);
  assert.match(warnings[0], /^passivate of room\/a failed: Error: passivate failed/);
  // One that the daemon has given up is ended before the next.
  await activate('nothing', 6);
  const before = names().length;
  assert.equal((await activate('ended', 7)).error, null);
  assert.deepEqual([names().slice(before), warnings.length], [['ended a', 'activate a'], 4]);
});

test('a request that no executor knows is an error, and one to whom has not registered is ignored', async (t) => {
  const { daemon, client, registered } = await executing(t);
  registered()[0].send(0, 1, 'Dance', []);
  registered()[0].send(0, 2, 'Activate', []);
  await until('both are answered', () => daemon.answers.length === 2);
  assert.deepEqual(daemon.answers.map(({ id, error }) => [id, error[1]]).sort(), [[1, 'an executor has no method Dance'], [2, 'the daemon answered with undefined where a map is due']]);
  await client.ping();
  daemon.requests.at(-1).send(0, 1, 'Activate', [{ kind: 'room', identity: 'a', version: 1, token: 1, snapshot: null }]);
  await client.ping();
  assert.equal(daemon.answers.length, 2);
});

test('a lost connection ends what is active, and the executor registers again', async (t) => {
  const [starting, stopping] = [gate(), gate()];
  let turns = 0;
  const warnings = [];
  t.mock.method(process, 'emitWarning', (text) => warnings.push(text));
  const { daemon, executor, told, ask, names, registered } = await executing(
    t,
    { activate: ({ identity }) => (identity === 'starting' ? starting.opened : undefined), ended: ({ identity }) => (identity === 'a' ? stopping.opened : undefined) },
    ({ method, fail }) => method === 'Placement.Register' && (turns += 1) > 1 && turns < 4 && (fail('PLACEMENT_NOT_READY: not yet state=not_ready') || true),
  );
  await ask('Activate', 'a', 1);
  await ask('Activate', 'b', 2);
  const unanswered = Promise.all([ask('Activate', 'starting', 3), ask('Activate', 'starting', 4)]);
  await until('it starts', () => names().includes('activate starting'));
  await ask('Passivate', 'nobody', 1); // so the second has come as well
  const [[, a]] = told;
  await a.check();
  registered()[0].socket.destroy();
  assert.deepEqual(await unanswered, [undefined, undefined]);
  await until('they are ended', () => names().length === 5);
  assert.deepEqual(names().slice(3), ['ended a', 'ended b']);
  assert.deepEqual(executor.activations, []);
  await assert.rejects(a.check(), { code: 'ACTIVATION_ENDED', message: 'the activation of room/a has ended' });
  await until('it registers again', () => registered().length === 4);
  assert.ok(daemon.connections.slice(0, -1).every((socket) => socket.destroyed));
  assert.deepEqual(warnings, ['the executor for room, desk cannot register again yet: PlacementNotReadyError: not yet state=not_ready']);
  // The next activation waits until the one before has stopped.
  const again = ask('Activate', 'a', 4);
  await ask('Activate', 'c', 5);
  assert.deepEqual(names().slice(5), ['activate c']);
  stopping.open();
  assert.equal((await again).error, null);
  // What had begun to start is ended when it has started.
  starting.open();
  await until('it is ended', () => names().includes('ended starting'));
  await ask('Activate', 'starting', 6);
  assert.deepEqual(names().slice(6), ['activate a', 'ended starting', 'activate starting']);
  assert.deepEqual(executor.activations.map(({ identity }) => identity).sort(), ['a', 'c', 'starting']);
});

test('a connection that is lost during a passivation ends nothing twice', async (t) => {
  const passivating = gate();
  const { told, ask, names, registered } = await executing(t, { passivate: () => passivating.opened });
  await ask('Activate', 'a', 1);
  const [[, a]] = told;
  const unanswered = ask('Passivate', 'a', 1);
  await until('it begins', () => names().length === 2);
  await a.check(); // the last writes may need it
  registered()[0].socket.destroy();
  await unanswered;
  passivating.open();
  await until('it registers again', () => registered().length === 2);
  await ask('Activate', 'a', 2);
  assert.deepEqual(names(), ['activate a', 'passivate a', 'activate a']);
});

test('an activation whose turn comes too late is not begun', async (t) => {
  const advance = stopClock(t);
  const first = gate();
  const { ask, names } = await executing(t, { activate: () => first.opened });
  const asked = [ask('Activate', 'a', 1), ask('Passivate', 'a', 1), ask('Activate', 'a', 2)];
  await until('the first begins', () => names().length === 1);
  await ask('Passivate', 'b', 1); // so all of the above have come
  advance(5000);
  first.open();
  const [one, two, three] = await Promise.all(asked);
  assert.deepEqual([one.error, two.error, three.error], [null, null, [0, 'its turn came too late']]);
  assert.deepEqual(names(), ['activate a', 'passivate a']);
});

test('close takes no longer than the timeout, and ends what was not passivated', async (t) => {
  const { client, daemon } = await placementDaemon(t, ({ method }) => method === 'Placement.Unregister');
  const ended = [];
  const executor = await place(client).register({ kinds: ['room'], activate: nothing, passivate: nothing, ended: ({ identity }) => ended.push(identity), timeout: 100 });
  daemon.requests[0].send(0, 1, 'Activate', [{ kind: 'room', identity: 'a', version: 1, token: 1, snapshot: null }]);
  await until('it is active', () => executor.activations.length === 1);
  await executor.close();
  await until('it is ended', () => ended.length === 1);
  await until('its connection closes', () => daemon.connections.every((socket) => socket.destroyed));
});

test('close while there is no daemon', async (t) => {
  const { executor, daemon, ask, names } = await executing(t);
  await ask('Activate', 'a', 1);
  daemon.stop();
  await until('it is ended', () => names().length === 2);
  await executor.close();
  assert.equal(daemon.connections.length, 1);
});

test('register tells why it cannot', async (t) => {
  const options = { kinds: ['room'], activate: nothing, passivate: nothing };
  const nowhere = new Client({ socket: path.join(temporary(t), 'none.sock') });
  await assert.rejects(place(nowhere).register(options), kazahana.DaemonUnavailableError);
  let refusal = 'PLACEMENT_NOT_READY: placement is off state=off';
  const { client, daemon } = await placementDaemon(t, ({ fail }) => refusal && (fail(refusal) || true));
  await assert.rejects(place(client).register(options), (error) => error instanceof placement.PlacementNotReadyError && error.state === 'off');
  refusal = 'INVALID_PARAMS: a kind of 0 bytes';
  await assert.rejects(place(client).register(options), kazahana.InvalidParamsError);
  await assert.rejects(place(client).register({ kinds: ['room'], activate: nothing }), /passivate must be a function/);
  await assert.rejects(place(client).register({ ...options, kinds: 'room' }), /kinds must be an array/);
  const reason = new Error('enough');
  await assert.rejects(place(client).register({ ...options, signal: AbortSignal.abort(reason) }), reason);
  await until('the connections close', () => daemon.connections.every((socket) => socket.destroyed));
});

test('a daemon that is being restarted while it is asked costs no registration', async (t) => {
  let asked = 0;
  const { client } = await placementDaemon(t, ({ method, fail, socket }) => {
    if (method !== 'Placement.Register' || ++asked > 2) return false;
    if (asked === 1) socket.destroy();
    else fail('SHUTTING_DOWN: stopping');
    return true;
  });
  const executor = await place(client).register({ kinds: ['room'], activate: nothing, passivate: nothing });
  assert.equal(asked, 3);
  await executor.close();
});

test('a daemon that is being started is waited for', async (t) => {
  const start = async () => {
    const file = path.join(temporary(t), 's.sock');
    const client = new Client({ socket: file });
    const events = place(client).events();
    setTimeout(() => Script.start(t, ({ reply }) => reply({}), file), 50);
    const [executor] = await Promise.all([place(client).register({ kinds: ['room'], activate: nothing, passivate: nothing }), events.ready]);
    await events.return();
    await executor.close();
  };
  // A client waits for a second, in which a busy machine may not start it.
  for (let attempt = 1; ; attempt++) {
    try {
      return await start();
    } catch (error) {
      if (attempt === 20 || !(error instanceof kazahana.DaemonUnavailableError)) throw error;
    }
  }
});

/** An activation that is active, the checks that the daemon was asked for, and both clocks, which stand. */
async function checking(t, change) {
  let uptime = 1000;
  t.mock.method(os, 'uptime', () => uptime);
  const advance = stopClock(t);
  const { ask, told, daemon, registered } = await executing(t, {}, change && ((request) => request.method === 'Placement.Check' && change(request)));
  await ask('Activate', 'a', 7);
  const [[, activation]] = told;
  const asked = () => daemon.requests.filter(({ method }) => method === 'Placement.Check');
  return { activation, asked, advance, suspend: (ms) => (uptime += ms / 1000), registered };
}

test('check asks the daemon once for as long as the answer is good', async (t) => {
  const { activation, asked, advance, suspend } = await checking(t);
  await activation.check();
  assert.deepEqual(asked().map(({ params }) => params), [['room', 'a', 7]]);
  advance(2999);
  suspend(2900);
  await activation.check();
  assert.equal(asked().length, 1);
  advance(1);
  await activation.check();
  assert.equal(asked().length, 2);
  // Only the uptime counts while the machine sleeps.
  suspend(3000);
  await activation.check();
  assert.equal(asked().length, 3);
});

test('an answer counts from before the question', async (t) => {
  let late = 3000;
  const { activation, asked, advance } = await checking(t, ({ reply }) => {
    advance(late);
    late = 0;
    reply({ valid_ms: 3000 });
    return true;
  });
  await activation.check();
  assert.equal(asked().length, 2);
});

test('check rejects when the daemon says no, nothing, or is gone', async (t) => {
  let answer = ({ fail }) => fail('ACTIVATION_ENDED: the activation of token 7 has ended');
  const { activation, advance, registered } = await checking(t, (request) => answer(request) || true);
  await assert.rejects(activation.check(), { name: 'ActivationEndedError', message: 'the activation of token 7 has ended' });
  answer = () => advance(1000);
  await assert.rejects(activation.check({ timeout: 500 }), (error) => error instanceof placement.ActivationEndedError && error.cause.code === 'TIMEOUT');
  const controller = new AbortController();
  const reason = new Error('enough');
  answer = () => controller.abort(reason);
  await assert.rejects(activation.check({ signal: controller.signal }), reason);
  answer = ({ reply }) => reply({ valid_ms: 3000 });
  await activation.check();
  answer = () => registered()[0].socket.destroy();
  advance(3000);
  await assert.rejects(activation.check(), placement.ActivationEndedError);
  answer = ({ reply }) => reply({ valid_ms: 3000 });
  await assert.rejects(activation.check(), placement.ActivationEndedError);
});

test('a daemon whose answers are never good is asked until the timeout', async (t) => {
  const { activation, asked, advance } = await checking(t, ({ reply }) => reply({ valid_ms: 0 }) || true);
  const checked = assert.rejects(activation.check({ timeout: 1000 }), /does not tell whether room\/a is still active/);
  await until('it asks again', () => asked().length > 3);
  advance(1000);
  await checked;
});

test('resolve', async (t) => {
  const advance = stopClock(t);
  const seen = [];
  const answer = { kind: 'room', identity: 'a', authority: 'b:2', locality: 'remote', pid: '', version: 0, token: 0, observed_ms: 5 };
  const { client } = await placementDaemon(t, ({ method, params, reply, socket }) => {
    if (method !== 'Placement.Resolve') return false;
    seen.push(params);
    if (seen.length === 1) {
      advance(3000);
      socket.destroy();
    } else reply(seen.length === 2 ? answer : { ...answer, authority: 'a:1', locality: 'local', pid: 'me', version: 3, token: 2n ** 63n - 1n });
    return true;
  });
  const want = { kind: 'room', identity: 'a', authority: 'b:2', locality: 'remote', isLocal: false, pid: '', version: 0n, token: 0n, observedMs: 5 };
  assert.deepEqual(await place(client).resolve('room', 'a'), want);
  assert.deepEqual(await place(client).resolve('room', 'a', { wait: 600_000 }), { ...want, authority: 'a:1', locality: 'local', isLocal: true, pid: 'me', version: 3n, token: 2n ** 63n - 1n });
  await place(client).resolve('room', 'a', { wait: 0 });
  assert.deepEqual(seen.map(([kind, identity]) => [kind, identity]), Array(4).fill(['room', 'a']));
  const waits = seen.map(([, , { wait_ms }]) => wait_ms);
  assert.deepEqual(waits, [10_000, 10_000, 600_000, 0]); // the second repeats the first
  for (const wait of [-1, 600_001, NaN]) await assert.rejects(place(client).resolve('room', 'a', { wait }), /0 to 600000 milliseconds/);
});

test('waiting for an activation comes on top of the timeout', async (t) => {
  const { client } = await placementDaemon(t, ({ method, fail }) => method === 'Placement.Resolve' && setTimeout(fail, 150, 'PLACEMENT_PENDING: it is under way cause="a b"'));
  await assert.rejects(place(client).resolve('room', 'a', { wait: 60_000, timeout: 100 }), (error) => error instanceof placement.PlacementPendingError && error.cause === 'a b');
  await assert.rejects(place(client).resolve('room', 'a', { wait: 0, timeout: 50 }), { code: 'TIMEOUT' });
});

const event = (n) => ({ event: 'activated', kind: 'room', identity: String(n), authority: 'a:1', pid: 'me', version: 1, token: 2n ** 60n, reason: '', observed_ms: 5 });

/** Events, and the notifications of the daemon that tells them. */
async function watching(t, options, change) {
  const { client, daemon } = await placementDaemon(t, change);
  const events = place(client).events(options);
  t.after(() => events.return());
  await events.ready;
  const { send, socket, params } = daemon.requests.at(-1);
  return { client, daemon, events, socket, params, tell: (n) => send(2, 'Placement.Event', [event(n)]), end: (reason) => send(2, 'Placement.WatchEnded', [{ reason }]) };
}

async function all(events, seen = []) {
  for await (const { identity } of events) seen.push(identity);
  return seen;
}

test('events come in order, on a connection of their own', async (t) => {
  const { client, daemon, events, socket, params, tell } = await watching(t, { events: ['activated', 'resolved'] });
  assert.deepEqual(params, [{ events: ['activated', 'resolved'] }]);
  const first = events.next();
  for (let n = 1; n <= 3; n++) tell(n);
  assert.deepEqual((await first).value, { event: 'activated', kind: 'room', identity: '1', authority: 'a:1', pid: 'me', version: 1n, token: 2n ** 60n, reason: '', observedMs: 5 });
  const seen = [];
  for await (const { identity } of events) {
    seen.push(identity);
    if (identity === '3') break;
  }
  assert.deepEqual(seen, ['2', '3']);
  assert.deepEqual(await events.next(), { done: true, value: undefined });
  await until('its connection closes', () => socket.destroyed);
  await client.ping();
  assert.equal(daemon.connections.length, 2);
});

for (const [how, act, reason] of [
  ['the daemon has too much to tell', ({ end }) => end('too_slow'), 'too_slow'],
  ['the daemon stops', ({ end }) => end('stopping'), 'stopping'],
  ['the connection breaks', ({ socket }) => socket.end(), 'disconnected'],
]) {
  test(`events end with an error, behind the last, when ${how}`, async (t) => {
    const watched = await watching(t);
    assert.deepEqual(watched.params, [{}]);
    watched.tell(1);
    watched.tell(2);
    act(watched);
    const seen = [];
    await assert.rejects(all(watched.events, seen), (error) => error.code === 'WATCH_ENDED' && error.reason === reason);
    assert.deepEqual(seen, ['1', '2']);
    assert.deepEqual(await watched.events.next(), { done: true, value: undefined });
    await until('its connection closes', () => watched.socket.destroyed);
    assert.equal(watched.daemon.connections.length, 1);
  });
}

test('events that nobody takes end, and do not fill the memory', async (t) => {
  const { events, tell, socket } = await watching(t);
  for (let n = 0; n <= MAX_BEHIND; n++) tell(n);
  await until('it gives up', () => socket.destroyed);
  const seen = [];
  await assert.rejects(all(events, seen), placement.WatchEndedError);
  assert.equal(seen.length, MAX_BEHIND);
});

test('a signal ends events, and those who wait for one', async (t) => {
  const controller = new AbortController();
  const { events, socket } = await watching(t, { signal: controller.signal });
  const reason = new Error('enough');
  const waiting = [events.next(), events.next()];
  controller.abort(reason);
  await assert.rejects(waiting[0], reason);
  assert.deepEqual(await waiting[1], { done: true, value: undefined });
  await until('its connection closes', () => socket.destroyed);
  const { signal } = new AbortController();
  const others = await watching(t, { signal });
  await others.events.return();
  assert.deepEqual(getEventListeners(signal, 'abort'), []);
});

test('events that cannot begin say so to whoever waits', async (t) => {
  const { client } = await placementDaemon(t, ({ fail }) => fail('PLACEMENT_NOT_READY: placement is off state=off') || true);
  const events = place(client).events();
  await assert.rejects(events.next(), placement.PlacementNotReadyError);
  await assert.rejects(events.ready, placement.PlacementNotReadyError);
  const aborted = place(client).events({ signal: AbortSignal.abort(new Error('enough')) });
  await assert.rejects(aborted.next(), /enough/);
});

test('a snapshot', async (t) => {
  const answer = {
    state: 'member', authority: 'a:1', members: [{ authority: 'a:1', token: 5 }], kinds: ['room'], activations_total: 1, ignored_results: 0,
    activations: [{ kind: 'room', identity: 'a', doing: 'resting', active: true, pid: 'me', version: 1, token: 2n ** 60n, idle_ms: 3 }],
    key: { authority: 'a:1', locality: 'local', record: { owner: 'a:1', pid: 'me', version: 1, token: 2n ** 60n } },
  };
  const { client, daemon } = await placementDaemon(t, ({ reply }) => reply(answer) || true);
  assert.deepEqual(await place(client).snapshot({ kind: 'room', identity: 'a', limit: 0 }), {
    state: 'member', authority: 'a:1', members: [{ authority: 'a:1', token: 5n }], kinds: ['room'], activationsTotal: 1, ignoredResults: 0,
    activations: [{ kind: 'room', identity: 'a', doing: 'resting', active: true, pid: 'me', version: 1n, token: 2n ** 60n, idleMs: 3 }],
    key: { authority: 'a:1', locality: 'local', record: { owner: 'a:1', pid: 'me', version: 1n, token: 2n ** 60n } },
  });
  await place(client).snapshot({ after: 'room/a' });
  assert.deepEqual(daemon.requests.map(({ params }) => params), [[{ kind: 'room', identity: 'a', limit: 0 }], [{ after: 'room/a' }]]);
});

test('a hostile answer is an error of the call', async (t) => {
  const hostile = testdata('hostile_answers.json').filter(({ method }) => method === 'Placement.Resolve');
  assert.ok(hostile.length > 1);
  for (const { name, message_hex } of hostile) {
    const server = await Script.start(t, ({ socket }) => socket.write(Buffer.from(message_hex, 'hex')));
    const client = new Client({ socket: server.socket, timeout: 60_000 });
    t.after(() => client.close());
    await assert.rejects(place(client).resolve('k', 'i'), kazahana.ProtocolError, name);
  }
});

test('a hostile notification ends the watch, not the process', async (t) => {
  for (const params of [7, [], [{ reason: { toString: 1 } }], [{ version: 'x' }]]) {
    for (const method of ['Placement.Event', 'Placement.WatchEnded']) {
      const server = await Script.start(t, ({ reply, send }) => (reply(null), send(2, method, params)));
      const client = new Client({ socket: server.socket, timeout: 60_000 });
      t.after(() => client.close());
      await assert.rejects(place(client).events().next(), kazahana.KazahanaError, `${method} ${JSON.stringify(params)}`);
    }
  }
});
