// asker.cjs KIND SOCKET FILE: asks for IDs until its standard input ends, and writes what it got.
//
// KIND is calls (several at once), prefetch (of a client that fetches ahead) or cluster (a primary with four workers, which all do calls).
// storm_test.go says what a record of the file looks like.
'use strict';
const cluster = require('node:cluster');
const fs = require('node:fs');
const { Client, KazahanaError } = require('../../../clients/node/dist/index.js');

const [, , kind, socket, file] = process.argv;
const [LANES, LARGEST, AHEAD, WORKERS] = [16, 100, 64, 4];
const TIMEOUT = 60_000;
const CHUNK = 1 << 16;
const FLUSH_NS = 50_000_000n;

let isOver = false;
const now = () => process.hrtime.bigint();

class Record {
  constructor(path, prefetched) {
    this.file = fs.openSync(path, 'w');
    this.flags = prefetched ? 1n << 63n : 0n;
    this.buffer = Buffer.alloc(CHUNK);
    this.end = 0;
    this.flushed = 0n;
  }

  add(caller, sent, ids) {
    const received = now();
    if (this.end + 8 * (3 + ids.length) > CHUNK || received - this.flushed > FLUSH_NS) this.flush(received);
    for (const word of [this.flags | (BigInt(caller) << 32n) | BigInt(ids.length), sent, received, ...ids]) {
      this.end = this.buffer.writeBigUInt64LE(word, this.end);
    }
  }

  flush(at) {
    for (let begin = 0; begin < this.end; ) begin += fs.writeSync(this.file, this.buffer, begin, this.end - begin);
    this.end = 0;
    this.flushed = at;
  }

  close() {
    this.flush(now());
    fs.closeSync(this.file);
  }
}

async function some(client) {
  if (Math.random() < 0.5) return [await client.nextId()];
  return client.nextIds(1 + Math.floor(Math.random() * LARGEST));
}

async function ahead(client) {
  const ids = [];
  for (let i = 0; i < LARGEST; i++) ids.push(client.tryNextId() ?? (await client.nextId()));
  return ids;
}

async function ask(path, prefetched) {
  const client = new Client({ socket, timeout: TIMEOUT, prefetch: prefetched ? AHEAD : 0 });
  const record = new Record(path, prefetched);
  const take = prefetched ? ahead : some;
  const lane = async (_, caller) => {
    while (!isOver) {
      const sent = now();
      try {
        record.add(caller, sent, await take(client));
      } catch (error) {
        if (!(error instanceof KazahanaError)) throw error;
        console.error(`${error.code}: ${error.message}`);
        record.add(caller, sent, []);
      }
      // What is handed out from memory would never let the loop see the end of the input.
      if (prefetched) await new Promise(setImmediate);
    }
  };
  await Promise.all(Array.from({ length: prefetched ? 1 : LANES }, lane));
  record.close();
  await client.close();
}

async function main() {
  if (cluster.isWorker) {
    process.once('message', () => (isOver = true));
    await ask(`${file}-${cluster.worker.id}`, false);
    process.disconnect();
    return;
  }
  process.stdin.resume().on('end', () => {
    isOver = true;
    for (const worker of Object.values(cluster.workers ?? {})) worker.send('end');
  });
  if (kind === 'cluster') {
    for (let i = 0; i < WORKERS; i++) cluster.fork();
    cluster.on('exit', (_, code) => (process.exitCode ||= code));
  }
  await ask(file, kind === 'prefetch');
}

void main();
