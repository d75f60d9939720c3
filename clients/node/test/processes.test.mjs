// Cluster and worker threads: each has a connection of its own, and no ID is seen twice.
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import test from 'node:test';
import { Worker } from 'node:worker_threads';
import { Client } from '../dist/index.js';
import { Daemon } from './support.mjs';

const script = (name) => fileURLToPath(new URL(`./programs/${name}`, import.meta.url));
const COUNT = 5000;

test('a cluster of 4 workers, whose primary has prefetched too', { timeout: 600_000 }, async (t) => {
  const daemon = await Daemon.start(t);
  const primary = fork(script('cluster.cjs'), [daemon.socket, String(COUNT)], { serialization: 'advanced' });
  const ids = await new Promise((resolve, reject) => {
    let all = [];
    primary.on('message', (some) => (all = all.concat(some)));
    primary.on('exit', (code) => (code === 0 ? resolve(all) : reject(new Error(`the primary exited with ${code}`))));
  });
  assert.equal(ids.length, 5 * COUNT);
  assert.equal(new Set(ids).size, ids.length);
});

test('4 worker threads beside the main thread', { timeout: 600_000 }, async (t) => {
  const daemon = await Daemon.start(t);
  const client = new Client({ socket: daemon.socket, prefetch: 64 });
  const own = [];
  for (let i = 0; i < COUNT; i++) own.push(await client.nextId());
  const others = await Promise.all(
    Array.from({ length: 4 }, () => new Promise((resolve, reject) => {
      const worker = new Worker(script('thread.mjs'), { workerData: { socket: daemon.socket, count: COUNT } });
      worker.on('message', resolve);
      worker.on('error', reject);
    })),
  );
  await client.close();
  const ids = [own, ...others].flat();
  assert.equal(ids.length, 5 * COUNT);
  assert.equal(new Set(ids).size, ids.length);
});
