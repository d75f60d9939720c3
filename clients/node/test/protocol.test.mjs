import assert from 'node:assert/strict';
import test from 'node:test';
import { ProtocolError } from '../dist/errors.js';
import { Decoder, encode, MAX_DEPTH } from '../dist/msgpack.js';
import { respond } from '../dist/pinned.js';
import { encodeCall, MAX_RESPONSE, Protocol } from '../dist/protocol.js';
import { random, testdata } from './support.mjs';

/** The values of some bytes, which come in chunks of a size. */
function decodeAll(bytes, size = bytes.length) {
  const values = [];
  const decoder = new Decoder(1 << 23, (value) => values.push(value));
  // The socket uses its buffer again: nothing may refer to it.
  const chunk = Buffer.alloc(size);
  for (let at = 0; at < bytes.length; at += size) decoder.feed(chunk.subarray(0, bytes.copy(chunk, 0, at, at + size)));
  chunk.fill(0xc1);
  return values;
}
const decode = (bytes) => decodeAll(Buffer.from(bytes))[0];
const hex = (text) => Buffer.from(text.replaceAll(' ', ''), 'hex');

function anyValue(pick, depth = 0) {
  switch (pick(depth < 4 ? 9 : 6)) {
    case 0: return null;
    case 1: return pick(2) === 1;
    case 2: return pick(200) - 100;
    case 3: return pick(2 ** 32) * (pick(2) ? 1 : -1) * 2 ** pick(21);
    case 4: return (BigInt(pick(2 ** 32)) << 31n) | (1n << 62n);
    case 5: return 'kä花'.repeat(pick(40)) + 'x'.repeat(pick(3) * 20_000 * (depth === 1 ? 1 : 0));
    case 6: return pick(1000) / 3;
    case 7: return Array.from({ length: pick(20) }, () => anyValue(pick, depth + 1));
    default: return Object.fromEntries(Array.from({ length: pick(20) }, (_, i) => [`key${i}`, anyValue(pick, depth + 1)]));
  }
}

class Heard extends Protocol {
  events = [];
  answered(call, error, result) {
    this.events.push(['answered', call, error, result]);
  }
  told(...what) {
    this.events.push(['told', ...what]);
  }
}

function asking(...calls) {
  const protocol = new Heard();
  return { protocol, ids: calls.map((call) => protocol.ask(encodeCall('Ping', []), call)) };
}

test('every form of a value is read', () => {
  for (const [bytes, want] of [
    ['c0', null], ['c2', false], ['c3', true], ['00', 0], ['7f', 127], ['ff', -1], ['e0', -32],
    ['cc ff', 255], ['cd ffff', 65535], ['ce ffffffff', 4294967295], ['cf 001fffffffffffff', Number.MAX_SAFE_INTEGER],
    ['cf 0020000000000000', 2n ** 53n], ['cf 0020000000000001', 2n ** 53n + 1n], ['cf ffffffffffffffff', 2n ** 64n - 1n], ['cf 0000000000000007', 7],
    ['d0 80', -128], ['d1 8000', -32768], ['d2 80000000', -2147483648], ['d3 ffe0000000000001', -Number.MAX_SAFE_INTEGER],
    ['d3 ffdfffffffffffff', -(2n ** 53n) - 1n], ['d3 8000000000000000', -(2n ** 63n)], ['d3 0000000000000005', 5],
    ['ca 3fc00000', 1.5], ['cb 3ff8000000000000', 1.5], ['a3 6b c3a4', 'kä'], ['d9 01 78', 'x'], ['da 0001 78', 'x'], ['db 00000001 78', 'x'],
    ['92 01 c0', [1, null]], ['dc 0001 01', [1]], ['dd 00000001 01', [1]],
    ['94 cf 4000000000000001 cf 0000000000000002 c0 cf 4000000000000003', [2n ** 62n + 1n, 2, null, 2n ** 62n + 3n]],
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
    const { protocol, ids } = asking(...Array.from({ length: 12 }, (_, i) => i));
    const order = ids.map((id, call) => ({ id, call, result: anyValue(pick, 1) })).sort(() => pick(3) - 1);
    const bytes = Buffer.concat(order.map(({ id, result }) => encode([1, id, null, result])));
    for (let at = 0; at < bytes.length; ) {
      const size = 1 + pick(pick(4) === 0 ? 70_000 : 12);
      // The socket uses its buffer again: nothing may refer to it.
      const chunk = Buffer.from(bytes.subarray(at, at + size));
      protocol.decoder.feed(chunk);
      chunk.fill(0xc1);
      at += size;
    }
    assert.deepStrictEqual(protocol.events, order.map(({ call, result }) => ['answered', call, undefined, result]), `seed ${seed}`);
    assert.equal(protocol.waiting.size, 0);
  }
});

test('a large answer that comes byte by byte is looked at once', () => {
  for (const value of [Array.from({ length: 20_000 }, (_, i) => 2n ** 60n + BigInt(i)), 'x'.repeat(100_000)]) {
    const { protocol, ids } = asking('call');
    let looks = 0;
    const { value: read } = protocol.decoder;
    protocol.decoder.value = function (at) {
      looks++;
      return read.call(this, at);
    };
    const bytes = encode([1, ids[0], null, value]);
    for (const byte of bytes) protocol.decoder.feed(Buffer.of(byte));
    assert.deepStrictEqual(protocol.events, [['answered', 'call', undefined, value]]);
    assert.ok(looks <= 3 * (typeof value === 'string' ? 10 : value.length + 10), `${looks} looks`);
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
    'one byte too many': 'c6 ' + (MAX_RESPONSE - 4).toString(16).padStart(8, '0'),
  })) {
    assert.throws(() => asking().protocol.decoder.feed(hex(bytes)), ProtocolError, what);
  }
  for (const nest of ['91', '81 a1 61']) {
    decode(hex(nest.repeat(MAX_DEPTH) + 'c0'));
    assert.throws(() => decode(hex(nest.repeat(MAX_DEPTH + 1) + 'c0')), /nest deeper than 32/);
  }
});

test('messages that nobody waits for are ignored', () => {
  const { protocol, ids } = asking('first', 'second');
  protocol.waiting.delete(ids[0]);
  for (const message of [[1, ids[0], null, 1], [1, 99, null, 1], [1, ids[1], null, 2], [1, ids[1], null, 3]]) protocol.decoder.feed(encode(message));
  assert.deepStrictEqual(protocol.events, [['answered', 'second', undefined, 2]]);
});

test('notifications and the last word are told', () => {
  const { protocol } = asking();
  protocol.decoder.feed(encode([2, 'Lock.Lost', [{ lease_id: 'x' }]]));
  protocol.decoder.feed(encode([1, 0, [1, 'PARSE_ERROR: bytes that are no message'], null]));
  assert.deepStrictEqual(protocol.events[0], ['told', 'Lock.Lost', [{ lease_id: 'x' }]]);
  assert.equal(protocol.events[1][2].code, 'PARSE_ERROR');
});

// Recorded between an executor of this package and a daemon.
test('the daemon asks by msgids of its own, and is answered', () => {
  const { protocol } = asking();
  protocol.ask(encodeCall('Placement.Register', [['room']]), 'register');
  assert.equal(protocol.take().subarray(-27).toString('hex'), '01b2506c6163656d656e742e52656769737465729191a4726f6f6d');
  const activate = '940001a841637469766174659185a46b696e64a4726f6f6da86964656e74697479a23433a776657273696f6ed30000000000000002a5746f6b656ed30000000000000002a8736e617073686f74c404736e6170';
  const passivate = '940002a95061737369766174659184a46b696e64a4726f6f6da86964656e74697479a23433a776657273696f6ed30000000000000001a5746f6b656ed30000000000000001';
  // The first has the msgid of a request that waits, which is none of its business.
  protocol.decoder.feed(hex(activate + passivate + '940101c083a9617574686f72697479a3613a31a674746c5f6d73d30000000000002710a56b696e647391a4726f6f6d'));
  assert.deepStrictEqual(protocol.events, [
    ['told', 'Activate', [{ kind: 'room', identity: '43', version: 2, token: 2, snapshot: Uint8Array.from(Buffer.from('snap')) }], 1],
    ['told', 'Passivate', [{ kind: 'room', identity: '43', version: 1, token: 1 }], 2],
    ['answered', 'register', undefined, { authority: 'a:1', ttl_ms: 10_000, kinds: ['room'] }],
  ]);
  respond(protocol, 1, null, { pid: 'me' });
  respond(protocol, 2, null, { snapshot: Buffer.from('snap') });
  respond(protocol, 1, 'no', null);
  assert.equal(protocol.take().toString('hex'), '940101c081a3706964a26d65' + '940102c081a8736e617073686f74c50004736e6170' + '9401019200a26e6fc0');
});

test('requests are one run of bytes, and bytes that were taken never change', () => {
  const { protocol } = asking();
  const taken = [];
  let sent = 0;
  for (const pick = random(7); sent < 5000; ) {
    for (let n = 1 + pick(60); n > 0; n--) protocol.ask(encodeCall('Ping', ['x'.repeat(pick(pick(50) === 0 ? 40_000 : 300))]), sent++);
    const bytes = protocol.take();
    taken.push([bytes, Buffer.from(bytes)]);
  }
  assert.equal(protocol.take().length, 0);
  let id = 0;
  for (const [bytes, copy] of taken) {
    assert.deepEqual(bytes, copy);
    for (const [type, msgid, method] of decodeAll(bytes)) assert.deepEqual([type, msgid, method], [0, ++id, 'Ping']);
  }
  assert.equal(id, sent);
});

test('a msgid is never 0 and never one that waits', () => {
  const { protocol } = asking('first');
  protocol.lastId = 2 ** 32 - 2;
  assert.deepEqual([1, 2, 3].map((call) => protocol.ask(encodeCall('Ping', []), call)), [2 ** 32 - 1, 2, 3]);
});

test('recorded exchanges', async (t) => {
  const revive = (value) => {
    if (Array.isArray(value)) return value.map(revive);
    if (value === null || typeof value !== 'object') return value;
    if ('$int' in value) return BigInt(value.$int);
    return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, revive(member)]));
  };
  const exchanges = testdata('wire_exchanges.json');
  assert.ok(exchanges.length >= 20);
  for (const { name, method, params, request_hex, response_hex, result, error } of exchanges) {
    await t.test(name, () => {
      const request = decode(hex(request_hex));
      const { protocol } = asking();
      protocol.lastId = request[1] - 1;
      if (request[1] > 0) {
        protocol.ask(encodeCall(method, revive(params)), 'call');
        assert.deepStrictEqual(decode(protocol.take()), request);
        protocol.decoder.feed(hex(response_hex));
      } else protocol.decoder.feed(Buffer.concat([hex(response_hex), encode([2, 'end', []])]));
      const [[event, call, failure, answer]] = protocol.events;
      if (request[1] === 0) return assert.equal(event, 'told');
      assert.deepEqual([event, call], ['answered', 'call']);
      if (!error) return assert.deepStrictEqual([failure, answer], [undefined, revive(result)]);
      assert.equal(failure.code, error.code);
      assert.ok(failure.message.startsWith(error.message), failure.message);
      assert.deepEqual(failure.details, error.details);
    });
  }
});
