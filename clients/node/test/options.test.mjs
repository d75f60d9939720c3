// Calls that are tried once, and requests that cannot be sent.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Client, DaemonUnavailableError, InvalidParamsError, ShuttingDownError } from '../dist/index.js';
import { Script } from './support.mjs';

test('with singleAttempt a call that meets no daemon fails at once, after one more connection', async (t) => {
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
  assert.equal(daemon.requests.filter(({ method }) => method === 'NextID').length, 3);
  const ahead = new Client({ socket: daemon.socket, singleAttempt: true, prefetch: 8, timeout: 60_000 });
  t.after(() => ahead.close());
  const waiting = await Promise.allSettled(Array.from({ length: 5 }, () => ahead.nextId()));
  assert.deepEqual(waiting.map(({ reason }) => reason?.constructor), Array(5).fill(DaemonUnavailableError)); // all who wait get the error
  assert.equal(daemon.requests.filter(({ method }) => method === 'NextIDs').length, 2);
});

test('with singleAttempt a connection that was lost meanwhile costs no call', async (t) => {
  const daemon = await Script.start(t, ({ reply, socket, method }) => (method === 'NextID' && daemon.connections.length === 1 ? socket.destroy() : reply(method === 'NextID' ? 5 : 'pong')));
  const client = new Client({ socket: daemon.socket, singleAttempt: true });
  t.after(() => client.close());
  await client.ping();
  assert.equal(await client.nextId(), 5n);
  assert.equal(daemon.connections.length, 2);
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
