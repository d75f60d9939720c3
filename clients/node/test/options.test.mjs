// Options that do not exist, and calls that are tried once.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Client, DaemonUnavailableError, InvalidParamsError, ShuttingDownError } from '../dist/index.js';
import { FakeClient } from '../dist/testing.js';
import { place, Script } from './support.mjs';

test('an option that does not exist is refused, with the nearest name', async () => {
  assert.throws(() => new Client({ maxage: 5 }), (error) => error instanceof InvalidParamsError && /no option "maxage": did you mean maxAge\? There are socket, /.test(error.message));
  const client = new Client({ socket: '/nonexistent/k.sock' });
  const wrong = {
    servce: [(options) => client.nextId(options), (options) => client.nextIds(3, options), (options) => client.inspect(1n, options), (options) => client.bounds(1, 2, options)],
    timeOut: [(options) => client.ping(options), (options) => client.uuid(7, options), (options) => client.nextSequence('key', options), (options) => client.lock('key', options)],
    latst: [(options) => client.toInternal('x', options)],
    wat: [(options) => place(client).resolve('room', 'a', options)],
    kind: [(options) => place(client).register({ kinds: ['room'], activate() {}, passivate() {}, ...options })],
  };
  const right = { servce: 'service', timeOut: 'timeout', latst: 'latest', wat: 'wait', kind: 'kinds' };
  for (const [name, calls] of Object.entries(wrong)) {
    for (const call of calls) await assert.rejects(call({ [name]: 1 }), (error) => error instanceof InvalidParamsError && error.message.includes(`did you mean ${right[name]}?`), name);
  }
  const ahead = new Client({ socket: '/nonexistent/k.sock', prefetch: 4 });
  await assert.rejects(ahead.nextId({ formt: 'string' }), /did you mean format\?/);
});

test('the fakes refuse the options that the clients refuse', async () => {
  const fake = new FakeClient();
  assert.throws(() => new FakeClient({ secrets: 'x' }), /did you mean secret\?/);
  await assert.rejects(fake.nextId({ formt: 'string' }), /did you mean format\?/);
  await assert.rejects(fake.lock('key', { til: 5 }), /did you mean ttl\?/);
  await assert.rejects(place(fake).resolve('room', 'a', { wat: 1 }), /did you mean wait\?/);
  await assert.rejects(place(fake).register({ kind: ['room'] }), /did you mean kinds\?/);
  await assert.rejects(place(fake).register({ kinds: ['room'] }), /activate must be a function/);
  assert.throws(() => place(fake).events({ event: [] }), /did you mean events\?/);
  const executor = await place(fake).register({ kinds: ['room'], activate() {}, passivate() {} });
  await place(fake).resolve('room', 'a');
  await assert.rejects(executor.activations[0].check({ timeOut: 5 }), /did you mean timeout\?/);
  await executor.close();
});

test('with singleAttempt a call that meets no daemon fails at once', async (t) => {
  const daemon = await Script.start(t, ({ reply, fail, socket, params, method }) => {
    if (method === 'Ping') return reply('pong');
    if (params[0]?.service === 'stopping') return fail('SHUTTING_DOWN: the daemon is stopping');
    return socket.destroy();
  });
  const client = new Client({ socket: daemon.socket, singleAttempt: true, timeout: 60_000 });
  t.after(() => client.close());
  await client.ping();
  await assert.rejects(client.nextId(), DaemonUnavailableError);
  await client.ping(); // a new call makes a new connection
  await assert.rejects(client.nextId({ service: 'stopping' }), ShuttingDownError);
  assert.equal(daemon.requests.filter(({ method }) => method === 'NextID').length, 2);
  const ahead = new Client({ socket: daemon.socket, singleAttempt: true, prefetch: 8, timeout: 60_000 });
  t.after(() => ahead.close());
  const waiting = await Promise.allSettled(Array.from({ length: 5 }, () => ahead.nextId()));
  assert.deepEqual(waiting.map(({ reason }) => reason?.constructor), Array(5).fill(DaemonUnavailableError)); // all who wait get the error
  assert.equal(daemon.requests.filter(({ method }) => method === 'NextIDs').length, 1);
});

test('a request that cannot be encoded, or is too large, fails alone', async (t) => {
  const daemon = await Script.start(t, ({ reply }) => reply('pong'));
  const client = new Client({ socket: daemon.socket });
  t.after(() => client.close());
  const wrong = [client.inspect(1n << 64n), client.nextSequence(Symbol('key')), client.toInternal('x'.repeat(256 << 10))];
  const right = client.ping();
  for (const { reason } of await Promise.allSettled(wrong)) assert.ok(reason instanceof InvalidParamsError, String(reason));
  await right;
  assert.equal(daemon.requests.length, 1);
});
