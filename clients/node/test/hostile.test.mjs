// What a hostile daemon can send: every client survives it, and says ProtocolError.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Client } from '../dist/client.js';
import { KazahanaError, ProtocolError } from '../dist/errors.js';
import { encodeCall, Protocol } from '../dist/protocol.js';
import { random, Script, testdata } from './support.mjs';

const hostile = testdata('hostile_answers.json');
const calls = {
  NextID: (client) => client.nextId(),
  NextIDs: (client) => client.nextIds(2),
  Inspect: (client) => client.inspect(1n),
  ToInternal: (client) => client.toInternal('x'),
  UUID: (client) => client.uuid(),
  Status: (client) => client.status(),
  'Lock.Acquire': (client) => client.lock('k'),
  'Placement.Resolve': (client) => client.resolve('k', 'i'),
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

test('a hostile notification ends the watch, not the process', async (t) => {
  for (const params of [7, [], [{ reason: { toString: 1 } }], [{ version: 'x' }]]) {
    for (const method of ['Placement.Event', 'Placement.WatchEnded']) {
      const server = await Script.start(t, ({ reply, send }) => (reply(null), send(2, method, params)));
      const client = connect(t, server);
      await assert.rejects(client.placementEvents().next(), KazahanaError, `${method} ${JSON.stringify(params)}`);
    }
  }
});

test('mutated messages are answers or errors of the protocol', () => {
  const corpus = [...hostile.map((one) => one.message_hex), ...testdata('wire_exchanges.json').map((one) => one.response_hex)].map((text) => Buffer.from(text, 'hex'));
  const receiver = { answered: () => {}, refused: () => {}, notified: () => {}, requested: () => {} };
  for (let seed = 1; seed <= 20_000; seed++) {
    const pick = random(seed);
    const bytes = Buffer.concat([corpus[pick(corpus.length)], corpus[pick(corpus.length)]]);
    for (let n = pick(6); n > 0; n--) bytes[pick(bytes.length)] = pick(256);
    const protocol = new Protocol(receiver);
    for (let call = 0; call < 3; call++) protocol.request(encodeCall('Ping', []), call);
    const cut = pick(bytes.length);
    try {
      protocol.feed(bytes.subarray(0, cut));
      protocol.feed(bytes.subarray(cut, bytes.length - pick(3)));
    } catch (error) {
      assert.ok(error instanceof ProtocolError, `seed ${seed}: ${error.stack}`);
    }
  }
});
