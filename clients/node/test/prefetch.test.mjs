import assert from 'node:assert/strict';
import fs from 'node:fs';
import test from 'node:test';
import { Client } from '../dist/index.js';
import { Script, stopClock, until } from './support.mjs';

const FIRST = 117360159400092001n;
const LONG = 3_600_000; // ms: for tests that are not about age

/** Answers like a daemon that counts up, and notes the size of each batch. */
async function counting(t, options) {
  let next = FIRST;
  const batches = [];
  const script = await Script.start(t, ({ method, params, reply }) => {
    if (method === 'NextIDs') batches.push(params[0]);
    reply(method === 'NextID' ? (params[0].format === 'string' ? String(next++) : next++) : Array.from({ length: params[0] }, () => next++));
  });
  const client = new Client({ socket: script.socket, ...options });
  t.after(() => client.close());
  return { client, script, batches };
}

test('IDs are handed out from batches, ascending, none twice', async (t) => {
  const { client, script } = await counting(t, { prefetch: 64, maxAge: LONG });
  let last = 0n;
  for (let i = 0; i < 5000; i++) {
    const id = client.tryNextId() ?? (await client.nextId());
    assert.ok(id > last);
    last = id;
  }
  assert.ok(script.requests.length <= 5000 / 64 + 2, `${script.requests.length} requests`);
});

test('callers at the same time share a batch that is large enough', async (t) => {
  const { client, batches } = await counting(t, { prefetch: 10, maxAge: LONG });
  const ids = await Promise.all(Array.from({ length: 500 }, () => client.nextId()));
  assert.deepEqual(ids, Array.from({ length: 500 }, (_, i) => FIRST + BigInt(i)));
  assert.ok(batches.length <= 4, String(batches));
});

for (const [name, clock, other] of [['the steady clock', 'steadyNow', 'wallNow'], ['the wall clock, which counts a suspend', 'wallNow', 'steadyNow']]) {
  test(`an ID is never older than maxAge, by ${name}`, async (t) => {
    stopClock(t, other);
    const advance = stopClock(t, clock);
    const { client, script } = await counting(t, { prefetch: 100, maxAge: 20 });
    assert.equal(await client.nextId(), FIRST);
    advance(20);
    assert.equal(await client.nextId(), FIRST + 1n);
    assert.equal(script.requests.length, 1);
    advance(1);
    assert.equal(client.tryNextId(), undefined);
    assert.equal(await client.nextId(), FIRST + 100n);
  });
}

test('age counts from the request: IDs that were long on their way serve only those who wait', async (t) => {
  const advance = stopClock(t);
  let next = FIRST;
  const script = await Script.start(t, ({ params, reply }) => {
    advance(21);
    reply(Array.from({ length: params[0] }, () => next++));
  });
  const client = new Client({ socket: script.socket, prefetch: 10, maxAge: 20 });
  t.after(() => client.close());
  assert.deepEqual(await Promise.all([client.nextId(), client.nextId()]), [FIRST, FIRST + 1n]);
  assert.equal(await client.nextId(), FIRST + 10n);
});

/** Answers a request for a batch with IDs that count up from the first. */
const give = ({ params, reply }, first) => reply(Array.from({ length: params[0] }, (_, i) => first + BigInt(i)));

/** A client of a daemon that keeps the first requests, and answers only those that come after. */
async function holding(t, first, options) {
  const held = [];
  const script = await Script.start(t, (request) => held.push(request) > first && give(request, 901n));
  const client = new Client({ socket: script.socket, ...options });
  t.after(() => client.close());
  const asked = (count) => until(`${count} requests`, () => held.length === count);
  return { client, held, asked };
}

for (const [name, steady, wall] of [['the steady clock', 21, 0], ['the wall clock, which counts a suspend', 1, 21]]) {
  test(`an answer slower than maxAge serves only those who waited when it was asked for, by ${name}`, async (t) => {
    const advance = stopClock(t);
    const advanceWall = stopClock(t, 'wallNow');
    const { client, held, asked } = await holding(t, 1, { prefetch: 4, maxAge: 20 });
    const early = [client.nextId()];
    advance(1);
    early.push(client.nextId()); // in the tick that sends the request
    await asked(1);
    advance(steady);
    advanceWall(wall);
    const late = client.nextId();
    give(held[0], 101n);
    assert.deepEqual(await Promise.all(early), [101n, 102n]);
    assert.equal(await late, 901n); // 103 is too old
    assert.equal(await client.nextId(), 902n);
  });
}

test('who waited in vain gets the next ID that is here, so that IDs ascend', async (t) => {
  const advance = stopClock(t);
  stopClock(t, 'wallNow');
  const { client, held, asked } = await holding(t, 3, { prefetch: 4, maxAge: 20 });
  const early = client.nextId();
  await asked(1);
  advance(21);
  const late = client.nextId();
  const many = client.nextIds(1);
  await asked(2);
  give(held[1], 101n);
  assert.deepEqual(await many, [101n]);
  const after = client.nextId(); // from a new batch: the one under way was asked for before 101
  await asked(3);
  give(held[2], 201n);
  assert.equal(await after, 201n);
  give(held[0], 1n);
  assert.equal(await early, 1n);
  assert.equal(await late, 202n);
  assert.equal(client.tryNextId(), 203n);
});

test('nothing is fetched while nobody asks', async (t) => {
  const { client, script } = await counting(t, { prefetch: 10, maxAge: LONG });
  await client.nextId();
  await client.nextId();
  await new Promise((resolve) => setTimeout(resolve, 150));
  assert.equal(script.requests.length, 1);
});

test('batches grow only while they are used up fast, and to 16 times at most', async (t) => {
  const advance = stopClock(t);
  const { client, batches } = await counting(t, { prefetch: 4, maxAge: LONG });
  for (let i = 0; i < 400; i++) await client.nextId();
  assert.equal(Math.max(...batches), 64);
  advance(5);
  for (let i = 0; i < 400; i++) {
    advance(1);
    await client.nextId();
  }
  assert.equal(batches.at(-1), 4);
});

test('the IDs of one client ascend, whichever way it asks', async (t) => {
  const { client } = await counting(t, { prefetch: 10 });
  let last = 0n;
  const ascends = (id) => {
    assert.ok(BigInt(id) > last, `${id} after ${last}`);
    last = BigInt(id);
  };
  for (let i = 0; i < 100; i++) {
    ascends(await client.nextId());
    if (i % 3 === 0) for (const id of await client.nextIds(3)) ascends(id);
    if (i % 4 === 0) ascends(await client.nextId({ regularOnly: true }));
    if (i % 5 === 0) ascends(await client.nextId({ timeout: 1000 }));
    if (i % 7 === 0) ascends(await client.nextId({ format: 'string' }));
  }
});

test('a closed client hands out nothing more', async (t) => {
  const { client } = await counting(t, { prefetch: 10 });
  await client.nextId();
  await client.close();
  assert.equal(client.tryNextId(), undefined);
  await assert.rejects(client.nextId(), { code: 'CLIENT_CLOSED' });
});

test('a call with other options asks the daemon', async (t) => {
  const { client, script } = await counting(t, { prefetch: 10 });
  for (const options of [{ service: 'other' }, { regularOnly: true }, { format: 'string' }]) {
    await client.nextId(options);
    assert.equal(script.requests.at(-1).method, 'NextID');
  }
});

test('a failed batch fails those who waited for it, and the next call asks again', async (t) => {
  let isBroken = true;
  const script = await Script.start(t, ({ params, reply, fail }) => (isBroken ? fail('NO_PROVIDER: none') : reply(Array.from({ length: params[0] }, (_, i) => i + 1))));
  const client = new Client({ socket: script.socket, prefetch: 10 });
  t.after(() => client.close());
  for (const { reason } of await Promise.allSettled([client.nextId(), client.nextId()])) assert.equal(reason.code, 'NO_PROVIDER');
  isBroken = false;
  assert.equal(await client.nextId(), 1n);
});

test('who waits for a batch that others gave up has its own time', async (t) => {
  const advance = stopClock(t);
  const { client, held, asked } = await holding(t, 1, { prefetch: 4, timeout: 50 });
  const early = client.nextId();
  await asked(1);
  const late = client.nextId({ timeout: LONG });
  const short = client.nextId({ timeout: 40 });
  advance(50);
  for (const call of [early, short]) await assert.rejects(call, { code: 'TIMEOUT' });
  assert.equal(await late, 901n);
  assert.equal(held.length, 2);
});

test('who has more time than the client finds the daemon that comes back', async (t) => {
  const answer = (request) => give(request, 901n);
  const first = await Script.start(t, answer);
  const client = new Client({ socket: first.socket, prefetch: 1, timeout: 50, maxAge: LONG });
  t.after(() => client.close());
  await until('it is served', () => client.nextId().then(() => true, () => false));
  first.stop();
  await until('the socket is gone', () => !fs.existsSync(first.socket));
  client.prefetcher.drop();
  const late = client.nextId({ timeout: LONG });
  await assert.rejects(client.nextId());
  await assert.rejects(client.nextId());
  await Script.start(t, answer, first.socket);
  assert.equal(await late, 901n);
});

test('an error is told to those who waited when the batch was asked for, and who came later asks again', async (t) => {
  stopClock(t);
  const { client, held, asked } = await holding(t, 1, { prefetch: 4 });
  const early = [client.nextId(), client.nextId({ timeout: LONG })];
  await asked(1);
  assert.equal(held[0].params[1].timeout_ms, LONG - 100); // the time of who has most
  const late = client.nextId();
  held[0].fail('TIMEOUT: no millisecond was free cause=sequence');
  for (const call of early) await assert.rejects(call, { code: 'TIMEOUT', cause: 'sequence' });
  assert.equal(await late, 901n);
});

test('tryNextId fetches for the next time, and never without prefetch', async (t) => {
  const { client, script } = await counting(t, { prefetch: 3, maxAge: LONG });
  assert.equal(client.tryNextId(), undefined);
  await until('the batch is here', () => client.tryNextId() !== undefined);
  const without = new Client({ socket: script.socket });
  await without.nextId();
  assert.equal(without.tryNextId(), undefined);
  await without.close();
});

test('no prefetched ID is smaller than one that was handed out meanwhile', async (t) => {
  const { client, held, asked } = await holding(t, 4, { prefetch: 4, maxAge: LONG });
  const many = client.nextIds(3); // which the daemon takes long to make
  const before = client.nextId();
  await asked(2);
  give(held[1], 11n);
  assert.equal(await before, 11n);
  const under = client.tryNextId(); // whose batch begins the next refill
  assert.equal(under, 12n);
  await asked(3);
  give(held[0], 201n);
  assert.deepEqual(await many, [201n, 202n, 203n]);
  assert.equal(client.tryNextId(), undefined);
  const after = client.nextId();
  give(held[2], 101n); // asked for before the daemon answered with 203
  await asked(4);
  give(held[3], 301n);
  assert.equal(await after, 301n);
  assert.equal(client.tryNextId(), 302n);
});

test('a format that does not exist is not served from memory', async (t) => {
  const { client, script } = await counting(t, { prefetch: 4, maxAge: LONG });
  await client.nextId();
  await client.nextId({ format: 'hex' });
  assert.equal(script.requests.at(-1).params[0].format, 'hex'); // the daemon refuses it
});
