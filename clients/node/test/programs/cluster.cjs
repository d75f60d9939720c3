// A primary with four workers; all of them get IDs, prefetched and not, and the primary sends them to its parent.
const cluster = require('node:cluster');
const { Client } = require('../../dist/index.js');

const [, , socket, count] = process.argv;

async function collect() {
  const clients = [new Client({ socket, prefetch: 64 }), new Client({ socket })];
  const ids = [];
  while (ids.length < Number(count)) for (const client of clients) ids.push(await client.nextId());
  return ids.slice(0, Number(count));
}

async function main() {
  const ids = await collect();
  if (cluster.isWorker) return process.send(ids, () => process.disconnect());
  cluster.setupPrimary({ serialization: 'advanced' });
  cluster.on('message', (_, some) => process.send(some));
  for (let i = 0; i < 4; i++) cluster.fork();
  process.send(ids);
  cluster.on('exit', (worker, code) => {
    if (code !== 0) process.exitCode = 1;
    if (Object.keys(cluster.workers).length === 0) process.disconnect();
  });
}

void main();
