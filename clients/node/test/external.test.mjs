import assert from 'node:assert/strict';
import test from 'node:test';
import { ExternalCodec, InvalidExternalIdError } from '../dist/index.js';
import { testdata } from './support.mjs';

const golden = testdata('external_ids.json');

function agrees(codec, vectors) {
  assert.ok(vectors.length > 10);
  for (const { id, external } of vectors) {
    assert.equal(codec.encode(BigInt(id)), external);
    assert.equal(codec.decode(external), BigInt(id));
  }
}

test('the golden vectors without a secret', () => agrees(ExternalCodec.plain(), golden.plain));

for (const { name, secret, service, vectors } of golden.keyed) {
  test(`the golden vectors with a secret: ${name}`, () => {
    agrees(new ExternalCodec(secret, service), vectors);
    agrees(new ExternalCodec(new TextEncoder().encode(secret), service), vectors);
  });
}

test('what encode cannot have made is rejected', () => {
  for (const { external, why, secret } of golden.rejected) {
    const codec = secret === undefined ? ExternalCodec.plain() : new ExternalCodec(secret);
    assert.throws(() => codec.decode(external), InvalidExternalIdError, why);
  }
  assert.throws(() => ExternalCodec.plain().decode(undefined), InvalidExternalIdError);
});

test('only IDs are encoded, and only a secret makes a codec with one', () => {
  for (const id of [-1n, 2n ** 63n, 5, '5', undefined]) assert.throws(() => ExternalCodec.plain().encode(id), { code: 'INVALID_PARAMS' });
  for (const secret of ['', new Uint8Array()]) assert.throws(() => new ExternalCodec(secret), { code: 'INVALID_PARAMS' });
  assert.throws(() => new ExternalCodec());
});
