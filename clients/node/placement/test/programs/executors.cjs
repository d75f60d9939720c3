// A primary with three workers, of which each is an executor. They live until the primary is told to close.
const cluster = require('node:cluster');
const { Client } = require('../../../dist/index.js');
const { Placement } = require('../../dist/index.js');

async function work() {
  const client = new Client({ socket: process.argv[2] });
  const executor = await new Placement(client).register({ kinds: ['room'], activate: () => `worker ${cluster.worker.id}`, passivate: () => undefined });
  process.on('disconnect', () => executor.close());
  process.send('registered');
}

function lead() {
  let registered = 0;
  cluster.on('message', () => ++registered === 3 && process.send('registered'));
  for (let i = 0; i < 3; i++) cluster.fork();
  process.once('message', () => {
    cluster.disconnect();
    process.disconnect();
  });
}

if (cluster.isWorker) void work();
else lead();
