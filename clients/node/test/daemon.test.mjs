// The client against the real daemon.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import * as kazahana from '../dist/index.js';
import { Daemon, delay, temporary, testdata, until } from './support.mjs';

const { Client, ExternalCodec } = kazahana;

async function start(t, options = {}, ...flags) {
  const daemon = await Daemon.start(t, ...flags);
  const client = new Client({ socket: daemon.socket, ...options });
  t.after(() => client.close());
  return { daemon, client };
}

test('IDs in every format', async (t) => {
  const { client } = await start(t);
  const ids = [await client.nextId(), ...(await client.nextIds(1000)), BigInt(await client.nextId({ format: 'string' }))];
  ids.push(ExternalCodec.plain().decode(await client.nextId({ format: 'external' })), await client.nextId({ regularOnly: true, service: 'default', timeout: 1000 }));
  for (let i = 1; i < ids.length; i++) assert.ok(ids[i] > ids[i - 1], `${ids[i]} after ${ids[i - 1]}`);
  assert.ok((await client.nextIds(2, { format: 'string' })).every((id) => /^\d+$/.test(id)));
  assert.ok((await client.nextIds(2, { format: 'external' })).every((id) => /^[\w-]{11}$/.test(id)));
  const large = await client.nextIds(65_536, { timeout: 60_000 });
  assert.equal(new Set(large).size, 65_536);
  assert.ok(large.every((id) => typeof id === 'bigint'));
});

test('IDs below 2^53 are exact as numbers', async (t) => {
  const { client } = await start(t, {}, '--layout', 'js');
  const ids = [await client.nextId(), ...(await client.nextIds(100))].map(Number);
  for (let i = 0; i < ids.length; i++) assert.ok(Number.isSafeInteger(ids[i]) && !(ids[i] <= ids[i - 1]), `${ids[i]} after ${ids[i - 1]}`);
  const found = await client.inspect(ids[0]);
  assert.deepEqual([found.id, found.bitId, found.bitSeq, found.kind], [BigInt(ids[0]), 7, 4, 'regular']);
  assert.equal(await client.toExternal(ids[0]), found.external);
});

test('a number that may be rounded is refused', async (t) => {
  const { client } = await start(t);
  await assert.rejects(client.inspect(2 ** 53), /may be rounded/);
  await assert.rejects(client.toExternal(0.5), /may be rounded/);
});

test('the golden inspections', async (t) => {
  const { client } = await start(t);
  const { inspected } = testdata('external_ids.json');
  assert.ok(inspected.length > 20);
  for (const want of inspected) {
    assert.deepEqual(await client.inspect(BigInt(want.id)), {
      id: BigInt(want.id), external: want.external, timestampMs: want.timestamp_ms, time: want.time, machineId: want.machine_id,
      sequence: want.sequence, kind: want.kind, bitId: want.bit_id, bitSeq: want.bit_seq, epochMs: want.epoch_ms,
    });
  }
});

test('an ID is explained', async (t) => {
  const { client } = await start(t);
  const before = Date.now();
  const id = await client.nextId();
  const found = await client.inspect(id);
  assert.deepEqual(Object.keys(found).sort(), ['bitId', 'bitSeq', 'epochMs', 'external', 'id', 'kind', 'machineId', 'sequence', 'time', 'timestampMs']);
  assert.equal(found.id, id);
  assert.equal(found.kind, 'regular');
  assert.ok(found.timestampMs >= before - 1000 && found.timestampMs <= Date.now() + 1000);
  assert.equal(new Date(found.time).getTime(), found.timestampMs);
  for (const spelling of [String(id), `0x${id.toString(16)}`, found.external]) assert.deepEqual(await client.inspect(spelling), found);
  assert.equal(await client.isFallback(id), false);
  assert.equal(await client.isFallback(id | (1n << 21n)), true);
  const [smallest, largest] = await client.bounds(found.timestampMs, new Date(found.timestampMs + 1));
  assert.ok(smallest <= id && id <= largest && largest - smallest === 2n ** 22n - 1n);
});

test('external IDs with the daemon\'s secret, which only it and the codec know', async (t) => {
  const secret = 'correct horse battery staple';
  const file = path.join(temporary(t), 'secret');
  fs.writeFileSync(file, secret + '\n', { mode: 0o600 });
  const { client } = await start(t, {}, '--external-secret-file', file);
  const codec = new ExternalCodec(secret);
  const id = await client.nextId();
  const external = await client.toExternal(id);
  assert.equal(external, codec.encode(id));
  assert.equal(await client.toInternal(external), id);
  assert.equal(await client.toInternal(external, { latest: Date.now() + 60_000 }), id);
  await assert.rejects(client.toInternal(external, { latest: 0 }), kazahana.InvalidExternalIdError);
  await assert.rejects(client.toInternal('short'), kazahana.InvalidExternalIdError);
});

test('UUIDs, ping and status', async (t) => {
  const { client, daemon } = await start(t);
  assert.match(await client.uuid(), /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  assert.match(await client.uuid(4), /^.{14}4/);
  assert.equal(await client.ping(), undefined);
  await client.nextId(); // which waits for the first lease
  const status = await client.status();
  assert.deepEqual([status.socket, status.mode, status.scope], [daemon.socket, 'regular', 'host']);
  assert.ok(status.features.includes('ids'));
  assert.equal(status.services[0].leases[0].usable, true);
  assert.equal(typeof status.services[0].maxThroughputPerMs, 'number');
});

test('what the daemon refuses is a typed error, and costs nothing else', async (t) => {
  const { client } = await start(t);
  await assert.rejects(client.nextIds(0), (error) => error instanceof kazahana.InvalidParamsError && /1 to 65536/.test(error.message));
  await assert.rejects(client.nextIds(1.5), kazahana.InvalidParamsError);
  await assert.rejects(client.nextId({ service: 'nobody' }), kazahana.UnknownServiceError);
  await assert.rejects(client.nextId({ format: 'roman' }), /there is no format "roman"/);
  await assert.rejects(client.inspect(1n << 63n), kazahana.InvalidParamsError);
  await assert.rejects(client.uuid(5), kazahana.InvalidParamsError);
  await assert.rejects(client.bounds(5, 5), kazahana.InvalidParamsError);
  await client.nextId();
});

test('without a lease there are fallback IDs, or an error for those who want regular ones', async (t) => {
  const { client } = await start(t, {}, '--provider', 'none:');
  assert.equal(await client.isFallback(await client.nextId()), true);
  await assert.rejects(client.nextId({ regularOnly: true }), kazahana.NoProviderError);
});

test('prefetched IDs ascend among everything else that a client gets', async (t) => {
  const { client } = await start(t, { prefetch: 64 });
  const ids = [];
  for (let i = 0; i < 20_000; i++) {
    ids.push(client.tryNextId() ?? (await client.nextId()));
    if (i % 100 === 0) ids.push(...(await client.nextIds(3)));
  }
  for (let i = 1; i < ids.length; i++) assert.ok(ids[i] > ids[i - 1]);
});

test('a daemon that is killed and restarted under load costs no call and repeats no ID', async (t) => {
  const daemon = await Daemon.start(t);
  const clients = [0, 0, 64].map((prefetch) => new Client({ socket: daemon.socket, prefetch, timeout: 120_000 }));
  const ids = [];
  let goesOn = true;
  const callers = clients.flatMap((client) =>
    Array.from({ length: 20 }, async (_, n) => {
      while (goesOn) {
        if (n === 0) ids.push(...(await client.nextIds(20)));
        else ids.push(await client.nextId());
      }
    }),
  );
  const served = (more) => {
    const enough = ids.length + more;
    return until('IDs go on', () => ids.length >= enough);
  };
  for (const signal of ['SIGKILL', 'SIGTERM', 'SIGKILL']) {
    await served(5000);
    await daemon.end(signal);
    await daemon.up();
  }
  await served(5000);
  goesOn = false;
  await Promise.all(callers);
  for (const client of clients) await client.close();
  assert.equal(new Set(ids).size, ids.length);
});

test('200 callers at once, some of whom give up', async (t) => {
  const { client } = await start(t);
  const results = await Promise.allSettled(
    Array.from({ length: 200 }, async (_, i) => {
      const controller = new AbortController();
      const id = client.nextId({ signal: controller.signal });
      if (i % 3 === 0) controller.abort();
      return id;
    }),
  );
  const ids = results.filter(({ status }) => status === 'fulfilled').map(({ value }) => value);
  assert.equal(ids.length, 133);
  assert.equal(new Set(ids).size, 133);
  assert.ok(results.filter(({ reason }) => reason).every(({ reason }) => reason.name === 'AbortError'));
});

/** Starts a daemon, which has the feature. */
async function withFeature(t, feature) {
  const { client, daemon } = await start(t);
  assert.ok((await client.status()).features.includes(feature));
  return { client, daemon };
}

test('locks of the real daemon', async (t) => {
  const { client, daemon } = await withFeature(t, 'locks');
  const key = `node/${randomUUID()}`;
  const lock = await client.lock(key, { ttl: 60_000 });
  const other = new Client({ socket: daemon.socket });
  t.after(() => other.close());
  await assert.rejects(other.lock(key), kazahana.LockHeldError);
  const waiting = other.lock(key, { wait: 120_000 });
  await lock.release();
  const next = await waiting;
  assert.ok(next.token > lock.token);
  assert.equal(next.lost.aborted, false);
  // Longer than the ttl: the daemon renews it.
  const short = await client.lock(`${key}/short`, { ttl: 15_000 });
  await delay(15_500);
  assert.equal(short.lost.aborted, false);
  await short.release();
  await next.release();
  await (await client.lock(key)).release();
});

test('a real daemon keeps no lock for who gave up', async (t) => {
  const { client } = await withFeature(t, 'locks');
  const lock = await client.lock('k', { ttl: 3_600_000 });
  const reason = new Error('enough');
  const controller = new AbortController();
  const waiting = client.lock('k', { ttl: 3_600_000, wait: 600_000, timeout: 60_000, signal: controller.signal });
  await delay(20); // which is more interesting if it is long enough
  controller.abort(reason);
  await assert.rejects(waiting, reason);
  await lock.release();
  await (await client.lock('k', { wait: 600_000 })).release();
});

test('a real daemon that dies takes its locks with it', async (t) => {
  const { client, daemon } = await withFeature(t, 'locks');
  const lock = await client.lock('k', { ttl: 2000 });
  await daemon.end('SIGKILL');
  await until('the loss is told', () => lock.lost.aborted);
  assert.equal(lock.lost.reason.code, 'LOCK_LOST');
});

test('sequences of the real daemon', async (t) => {
  const { client } = await withFeature(t, 'sequences');
  const first = await client.nextSequence('invoices', { requestId: 'r1' });
  assert.equal(typeof first, 'bigint');
  assert.equal(await client.nextSequence('invoices', { requestId: 'r1' }), first);
  assert.deepEqual(await client.nextSequences('invoices', 3), [first + 1n, first + 2n, first + 3n]);
});
