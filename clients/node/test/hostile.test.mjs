// What a hostile daemon can send: every client survives it, and says ProtocolError.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Client } from '../dist/client.js';
import { KazahanaError, ProtocolError } from '../dist/errors.js';
import { KazahanaClient } from '../dist/other.js';
import { delay, Heard, random, Script, testdata } from './support.mjs';

const hostile = testdata('hostile_answers.json').filter(({ method }) => !method.startsWith('Placement.')); // which have a package of their own
const calls = {
  NextID: (client) => client.nextId(),
  NextIDs: (client) => client.nextIds(2),
  Inspect: (client) => client.inspect(1n),
  ToInternal: (client) => client.toInternal('x'),
  UUID: (client) => client.uuid(),
  Status: (client) => client.status(),
  'Lock.Acquire': (client) => client.lock('k'),
};

function connect(t, server) {
  const client = new Client({ socket: server.socket, timeout: 60_000 });
  t.after(() => client.close());
  return client;
}

test('a hostile answer is an error of the call, and of nothing else', async (t) => {
  for (const { name, method, message_hex, any_error } of hostile) {
    await t.test(name, async (t) => {
      const bytes = Buffer.from(message_hex, 'hex');
      const server = await Script.start(t, ({ socket }) => socket.write(bytes));
      const client = connect(t, server);
      await assert.rejects(calls[method](client), any_error ? KazahanaError : ProtocolError);
    });
  }
});

test('mutated messages are answers or errors of the protocol', () => {
  const corpus = [...hostile.map((one) => one.message_hex), ...testdata('wire_exchanges.json').map((one) => one.response_hex)].map((text) => Buffer.from(text, 'hex'));
  for (let seed = 1; seed <= 20_000; seed++) {
    const pick = random(seed);
    const bytes = Buffer.concat([corpus[pick(corpus.length)], corpus[pick(corpus.length)]]);
    for (let n = pick(6); n > 0; n--) bytes[pick(bytes.length)] = pick(256);
    const channel = new Heard(1, 2, 3);
    const cut = pick(bytes.length);
    try {
      channel.feed(bytes.subarray(0, cut));
      channel.feed(bytes.subarray(cut, bytes.length - pick(3)));
    } catch (error) {
      assert.ok(error instanceof ProtocolError, `seed ${seed}: ${error.stack}`);
    }
  }
});

test('who waits for a prefetched ID has asked nothing, so no answer is theirs', async (t) => {
  const server = await Script.start(t, ({ id, params, send, reply }) => {
    for (let other = 0; other < id; other++) send(1, other, null, 'no ID');
    reply(Array.from({ length: params[0] }, (_, i) => i + 1));
  });
  const client = new Client({ socket: server.socket, prefetch: 2, timeout: 60_000 });
  t.after(() => client.close());
  assert.equal(await client.nextId(), 1n);
});

test('a deadline holds against a daemon that sends a byte at a time', async (t) => {
  for (const begun of ['940101c0c6000fffff', '9302c6000fffff']) {
    const server = await Script.start(t, async ({ socket }) => {
      for (socket.write(Buffer.from(begun, 'hex')); !socket.destroyed; await delay(10)) socket.write('x');
    });
    const client = new Client({ socket: server.socket, timeout: 200 });
    t.after(() => client.close());
    await assert.rejects(client.nextId(), { code: 'TIMEOUT' });
  }
});

/** Reads one result as a call does. */
class Answered extends KazahanaClient {
  constructor(result) {
    super({});
    this.result = result;
  }

  async request() {
    return this.result;
  }
}

test('mutated results are read, or errors of the protocol', async () => {
  const corpus = [
    ...hostile.map(({ message_hex, method }) => [method, Buffer.from(message_hex, 'hex')]),
    ...testdata('wire_exchanges.json').map(({ response_hex, method }) => [method, Buffer.from(response_hex, 'hex')]),
  ].filter(([method]) => calls[method] && method !== 'Lock.Acquire'); // a lock has a connection of its own
  for (let seed = 1; seed <= 20_000; seed++) {
    const pick = random(seed);
    const [method, message] = corpus[pick(corpus.length)];
    const bytes = Buffer.from(message);
    for (let n = pick(4); n > 0; n--) bytes[pick(bytes.length)] = pick(256);
    const channel = new Heard(method);
    try {
      channel.feed(bytes);
      for (const [event, , error, result] of channel.events) if (event === 'answered' && !error) await calls[method](new Answered(result));
    } catch (error) {
      assert.ok(error instanceof ProtocolError, `seed ${seed}, ${method}: ${error.stack}`);
    }
  }
});
