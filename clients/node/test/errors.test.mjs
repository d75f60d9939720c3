import assert from 'node:assert/strict';
import test from 'node:test';
import * as kazahana from '../dist/index.js';
import { errorOf } from '../dist/errortext.js';

const errorFromText = (text) => errorOf([0, text]);

test('the text of an error becomes a typed error', () => {
  const backward = errorFromText('CLOCK_BACKWARD: the clock is behind the last ID backward_ms=7000 limit_ms=5000');
  assert.ok(backward instanceof kazahana.ClockBackwardError && backward instanceof kazahana.KazahanaError && backward instanceof Error);
  assert.deepEqual([backward.name, backward.code, backward.backwardMs, backward.limitMs], ['ClockBackwardError', 'CLOCK_BACKWARD', 7000, 5000]);
  assert.match(String(backward), /^ClockBackwardError: the clock is behind the last ID/);

  const lease = errorFromText('LEASE_ACQUISITION: no valid lease cause="redis: \\"down\\"\\tat 10:00"');
  assert.ok(lease instanceof kazahana.LeaseAcquisitionError);
  assert.equal(lease.cause, 'redis: "down"\tat 10:00');

  const timeout = errorFromText('TIMEOUT: no ID in time waited_ms=100 cause=clock');
  assert.deepEqual([timeout.constructor, timeout.waitedMs, timeout.cause], [kazahana.RequestTimeoutError, 100, 'clock']);
  const held = errorFromText('LOCK_HELD: it is held retry_after_ms=1200 owner=anonymous/1001');
  assert.deepEqual([held.constructor, held.retryAfterMs, held.owner], [kazahana.LockHeldError, 1200, 'anonymous/1001']);
  assert.equal(errorFromText('LOCK_FENCED: later until_ms=1795209600000').untilMs, 1795209600000);
});

test('an unknown code and a foreign text are still errors', () => {
  const unknown = errorFromText('BRAND_NEW: something why=because');
  assert.deepEqual([unknown.constructor, unknown.code, unknown.details], [kazahana.KazahanaError, 'BRAND_NEW', { why: 'because' }]);
  const foreign = errorFromText('it broke: badly');
  assert.deepEqual([foreign.constructor, foreign.code, foreign.message, foreign.cause], [kazahana.ProtocolError, 'PROTOCOL_ERROR', 'it broke: badly', undefined]);
});

test('details are the longest tail of the text that reads as such', () => {
  for (const [text, want] of [
    ['C: x=1 and then y=2 z=3', { y: '2', z: '3' }],
    ['C: a= b=1', { b: '1' }],
    ['C: B=1', {}],
    ['C: a="" b="two words"', { a: '', b: 'two words' }],
    ['C: a="\\u82b1\\x41\\U0001f386\\\\"', { a: '花A🎆\\' }],
    ['C: a="never ends b=1', { b: '1' }],
    ['C: twice=1 twice=2', { twice: '1' }],
    ['C:', {}],
    ['', {}],
  ]) {
    assert.deepEqual({ ...errorFromText(text).details }, want, text);
  }
});

test('a text that no daemon sends is a message without details', () => {
  for (const text of ['a="'.repeat(1_000_000), 'a=1 '.repeat(1_000_000), 'a="' + 'x'.repeat(4_000_000)]) {
    const error = errorFromText(`C: ${text}`);
    assert.deepEqual([error.code, error.details], ['C', {}]);
  }
});

test('every class has a name and a code of its own', () => {
  const classes = Object.entries(kazahana).filter(([name]) => name.endsWith('Error'));
  assert.ok(classes.length > 20);
  const codes = new Set();
  for (const [name, type] of classes) {
    const error = new type('x', { cause: 'y' });
    assert.ok(error instanceof kazahana.KazahanaError);
    assert.deepEqual([error.name, error.cause], [name, 'y']);
    codes.add(error.code);
  }
  assert.equal(codes.size, classes.length);
});
