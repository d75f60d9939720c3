import assert from 'node:assert/strict';
import test from 'node:test';
import { ProtocolError } from '../dist/errors.js';
import { response } from '../dist/pinned.js';
import { Decoder, encodeCall, MAX_DEPTH, MAX_MESSAGE, MSGID_AT } from '../dist/wire.js';
import { encode, Heard, random, testdata } from './support.mjs';

/** The values of some bytes, which come in chunks of a size. */
function decodeAll(bytes, size = bytes.length) {
  const values = [];
  const decoder = new Decoder();
  // The socket uses its buffer again: nothing may refer to it.
  const chunk = Buffer.alloc(size);
  for (let at = 0; at < bytes.length; at += size) decoder.feed(chunk.subarray(0, bytes.copy(chunk, 0, at, at + size)), (value) => values.push(value));
  chunk.fill(0xc1);
  return values;
}
const decode = (bytes) => decodeAll(Buffer.from(bytes))[0];
const hex = (text) => Buffer.from(text.replaceAll(' ', ''), 'hex');

function anyValue(pick, depth = 0) {
  switch (pick(depth < 4 ? 8 : 6)) {
    case 0: return null;
    case 1: return pick(2) === 1;
    case 2: return pick(150) - 32;
    case 3: return pick(2) ? pick(2 ** 32) : -33n - (BigInt(pick(2 ** 32)) << BigInt(pick(31)));
    case 4: return (BigInt(pick(2 ** 32)) << 31n) | (1n << 62n);
    case 5: return 'kä花'.repeat(pick(40)) + 'x'.repeat(pick(3) * 20_000 * (depth === 1 ? 1 : 0));
    case 6: return Array.from({ length: pick(20) }, () => anyValue(pick, depth + 1));
    default: return Object.fromEntries(Array.from({ length: pick(20) }, (_, i) => [`key${i}`, anyValue(pick, depth + 1)]));
  }
}

test('every form of a value is read', () => {
  for (const [bytes, want] of [
    ['c0', null], ['c2', false], ['c3', true], ['00', 0], ['7f', 127], ['ff', -1], ['e0', -32],
    ['cc ff', 255], ['cd ffff', 65535], ['ce ffffffff', 4294967295], ['cf 001fffffffffffff', 2n ** 53n - 1n],
    ['cf 0020000000000000', 2n ** 53n], ['cf 0020000000000001', 2n ** 53n + 1n], ['cf ffffffffffffffff', 2n ** 64n - 1n], ['cf 0000000000000007', 7n],
    ['d0 80', -128], ['d1 8000', -32768], ['d2 80000000', -2147483648], ['d3 ffe0000000000001', 1n - 2n ** 53n],
    ['d3 ffdfffffffffffff', -(2n ** 53n) - 1n], ['d3 8000000000000000', -(2n ** 63n)], ['d3 0000000000000005', 5n],
    ['ca 3fc00000', 1.5], ['cb 3ff8000000000000', 1.5], ['a3 6b c3a4', 'kä'], ['d9 01 78', 'x'], ['da 0001 78', 'x'], ['db 00000001 78', 'x'],
    ['92 01 c0', [1, null]], ['dc 0001 01', [1]], ['dd 00000001 01', [1]],
    ['94 cf 4000000000000001 cf 0000000000000002 c0 cf 4000000000000003', [2n ** 62n + 1n, 2n, null, 2n ** 62n + 3n]],
    ['92 93 cf 4000000000000001 cf 4000000000000002 cf 4000000000000003 82 a1 61 cf 4000000000000004 a1 62 cf 4000000000000005',
      [[2n ** 62n + 1n, 2n ** 62n + 2n, 2n ** 62n + 3n], { a: 2n ** 62n + 4n, b: 2n ** 62n + 5n }]],
    ['81 a1 61 01', { a: 1 }], ['de 0001 a1 61 01', { a: 1 }],
    ['df 00000001 a1 61 02', { a: 2 }], ['c4 02 0102', Uint8Array.of(1, 2)], ['c5 0001 01', Uint8Array.of(1)], ['c6 00000001 01', Uint8Array.of(1)],
  ]) {
    const whole = hex(bytes);
    for (let size = 1; size <= whole.length; size++) {
      assert.deepStrictEqual(decodeAll(Buffer.concat([whole, whole]), size), [want, want], `${bytes}, ${size} at a time`);
      assert.deepStrictEqual(decodeAll(whole.subarray(0, -1), size), [], `${bytes}, without the last byte`);
    }
  }
  // Extensions, which no daemon sends.
  for (const bytes of ['d4 05 01', 'd7 ff 0102030405060708', 'c7 02 05 0102', 'c9 00000000 05']) assert.throws(() => decode(hex(bytes)), ProtocolError, bytes);
});

test('what is encoded is decoded to the same', () => {
  for (let seed = 1; seed <= 300; seed++) {
    const value = anyValue(random(seed));
    assert.deepStrictEqual(decode(encode(value)), value, `seed ${seed}`);
  }
  for (const size of [0, 1, 255, 256, 65_535, 65_536]) {
    const bytes = Uint8Array.from({ length: size }, (_, i) => i);
    assert.deepStrictEqual(decode(encode({ bytes, buffer: Buffer.from(bytes) })), { bytes, buffer: bytes });
  }
  assert.deepStrictEqual(decode(encode({ a: undefined, b: 1 })), { b: 1 });
  assert.throws(() => encode(2n ** 64n), { code: 'INVALID_PARAMS' });
  assert.throws(() => encode(-(2n ** 63n) - 1n), { code: 'INVALID_PARAMS' });
  assert.throws(() => encode(() => 1), { code: 'INVALID_PARAMS' });
});

test('a key of __proto__ is a member like any other', () => {
  const value = decode(hex('82 a9 5f5f70726f746f5f5f 81 a1 78 01 a1 61 02'));
  assert.deepEqual(Object.keys(value), ['__proto__', 'a']);
  assert.equal(value.x, undefined);
  assert.equal(Object.getPrototypeOf(value), Object.prototype);
});

test('answers are found however the bytes are cut', () => {
  for (let seed = 1; seed <= 60; seed++) {
    const pick = random(seed);
    const calls = Array.from({ length: 12 }, (_, i) => i);
    const channel = new Heard(...calls);
    const order = calls.map((call) => ({ id: call + 1, call, result: anyValue(pick, 1) })).sort(() => pick(3) - 1);
    const bytes = Buffer.concat(order.map(({ id, result }) => encode([1, id, null, result])));
    for (let at = 0; at < bytes.length; ) {
      const size = 1 + pick(pick(4) === 0 ? 70_000 : 12);
      // The socket uses its buffer again: nothing may refer to it.
      const chunk = Buffer.from(bytes.subarray(at, at + size));
      channel.feed(chunk);
      chunk.fill(0xc1);
      at += size;
    }
    assert.deepStrictEqual(channel.events, order.map(({ call, result }) => ['answered', call, undefined, result]), `seed ${seed}`);
    assert.equal(channel.waiters.size, 0);
  }
});

test('a large answer that comes byte by byte is looked at a few times', () => {
  for (const value of [Array.from({ length: 20_000 }, (_, i) => 2n ** 60n + BigInt(i)), 'x'.repeat(100_000)]) {
    const channel = new Heard('call');
    let looks = 0;
    const { value: read } = channel.decoder;
    channel.decoder.value = function (depth) {
      looks++;
      return read.call(this, depth);
    };
    const bytes = encode([1, 1, null, value]);
    for (const byte of bytes) channel.feed(Buffer.of(byte));
    assert.deepStrictEqual(channel.events, [['answered', 'call', undefined, value]]);
    assert.ok(looks <= 100 * (typeof value === 'string' ? 1 : value.length), `${looks} looks`);
  }
});

test('what is no MessagePack-RPC ends the connection', () => {
  for (const [what, bytes] of Object.entries({
    'a byte without meaning': 'c1',
    'HTTP': Buffer.from('HTTP/1.1 400 Bad Request').toString('hex'),
    'a map': '80',
    'too short an array': '92 01 01',
    'an unknown type': '93 05 01 c0',
    'a msgid that is text': '94 01 a1 78 c0 c0',
    'a request without params': '93 00 01 a1 78',
    'an array of four billion': 'dd ffffffff',
    'a map of two billion': 'df 7fffffff',
    'a string of four billion bytes': 'db ffffffff',
    'one byte too many': 'c6 ' + (MAX_MESSAGE - 4).toString(16).padStart(8, '0'),
  })) {
    assert.throws(() => new Heard().feed(hex(bytes)), ProtocolError, what);
  }
  for (const nest of ['91', '81 a1 61']) {
    decode(hex(nest.repeat(MAX_DEPTH) + 'c0'));
    assert.throws(() => decode(hex(nest.repeat(MAX_DEPTH + 1) + 'c0')), /nest deeper than 32/);
  }
});

test('messages that nobody waits for are ignored', () => {
  const channel = new Heard('first', 'second');
  channel.waiters.delete(1);
  for (const message of [[1, 1, null, 1], [1, 99, null, 1], [1, 2, null, 2], [1, 2, null, 3]]) channel.feed(encode(message));
  assert.deepStrictEqual(channel.events, [['answered', 'second', undefined, 2]]);
});

test('notifications and the last word are told', () => {
  const channel = new Heard();
  channel.feed(encode([2, 'Lock.Lost', [{ lease_id: 'x' }]]));
  channel.feed(encode([1, 0, [1, 'PARSE_ERROR: bytes that are no message'], null]));
  assert.deepStrictEqual(channel.events, [['told', 'Lock.Lost', [{ lease_id: 'x' }]]]);
  assert.equal(channel.refusal.code, 'PARSE_ERROR');
});

// Recorded between an executor of this package and a daemon.
test('the daemon asks by msgids of its own, and is answered', () => {
  const channel = new Heard('register');
  assert.equal(encodeCall('Placement.Register', [['room']]).subarray(-26).toString('hex'), 'b2506c6163656d656e742e52656769737465729191a4726f6f6d');
  const activate = '940001a841637469766174659185a46b696e64a4726f6f6da86964656e74697479a23433a776657273696f6ed30000000000000002a5746f6b656ed30000000000000002a8736e617073686f74c404736e6170';
  const passivate = '940002a95061737369766174659184a46b696e64a4726f6f6da86964656e74697479a23433a776657273696f6ed30000000000000001a5746f6b656ed30000000000000001';
  // The first has the msgid of a request that waits, which is none of its business.
  channel.feed(hex(activate + passivate + '940101c083a9617574686f72697479a3613a31a674746c5f6d73d30000000000002710a56b696e647391a4726f6f6d'));
  assert.deepStrictEqual(channel.events, [
    ['told', 'Activate', [{ kind: 'room', identity: '43', version: 2n, token: 2n, snapshot: Uint8Array.from(Buffer.from('snap')) }], 1],
    ['told', 'Passivate', [{ kind: 'room', identity: '43', version: 1n, token: 1n }], 2],
    ['answered', 'register', undefined, { authority: 'a:1', ttl_ms: 10_000n, kinds: ['room'] }],
  ]);
  assert.equal(response(1, null, { pid: 'me' }).toString('hex'), '940101c081a3706964a26d65');
  assert.equal(response(2, null, { snapshot: Buffer.from('snap') }).toString('hex'), '940102c081a8736e617073686f74c600000004736e6170');
  assert.equal(response(1, 'no', null).toString('hex'), '9401019200a26e6fc0');
});

test('a msgid is never 0 and never one that waits', async () => {
  const channel = new Heard('first');
  channel.lastMsgid = 2 ** 32 - 2;
  const calls = [1, 2, 3].map(() => channel.call(encodeCall('Ping', []), 60_000));
  const waiters = [...channel.waiters.values()].slice(1);
  assert.deepEqual(waiters.map(({ msgid }) => msgid), [2 ** 32 - 1, 2, 3]);
  assert.deepEqual(waiters.map(({ request }) => request.readUInt32BE(MSGID_AT)), [2 ** 32 - 1, 2, 3]);
  channel.close();
  for (const call of calls) await assert.rejects(call, { code: 'CLIENT_CLOSED' });
});

test('recorded exchanges', async (t) => {
  const revive = (value) => {
    if (Array.isArray(value)) return value.map(revive);
    if (value === null || typeof value !== 'object') return value;
    if ('$int' in value) return BigInt(value.$int);
    return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, revive(member)]));
  };
  // A number where that is exact, as in the vectors.
  const exact = (value) => {
    if (typeof value === 'bigint' && Number.isSafeInteger(Number(value))) return Number(value);
    if (Array.isArray(value)) return value.map(exact);
    if (value === null || typeof value !== 'object' || value instanceof Uint8Array) return value;
    return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, exact(member)]));
  };
  const exchanges = testdata('wire_exchanges.json');
  assert.ok(exchanges.length >= 20);
  for (const { name, method, params, request_hex, response_hex, result, error } of exchanges) {
    await t.test(name, () => {
      const request = exact(decode(hex(request_hex)));
      const [, msgid] = request;
      if (msgid > 0) {
        const bytes = encodeCall(method, revive(params));
        bytes.writeUInt32BE(msgid, MSGID_AT);
        assert.deepStrictEqual(exact(decode(bytes)), request);
      }
      const channel = new Heard();
      channel.isSingle = true; // or it would ask another daemon where this one shuts down
      if (msgid > 0) channel.begin(msgid, 'call');
      channel.feed(hex(response_hex));
      if (msgid === 0) return assert.deepEqual(channel.events, []);
      const [[event, call, failure, answer]] = channel.events;
      assert.deepEqual([event, call], ['answered', 'call']);
      if (!error) return assert.deepStrictEqual([failure, exact(answer)], [undefined, exact(revive(result))]);
      assert.equal(failure.code, error.code);
      assert.ok(failure.message.startsWith(error.message), failure.message);
      assert.deepEqual(failure.details, error.details);
    });
  }
});
