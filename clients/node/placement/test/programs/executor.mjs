// An executor in a worker thread, or in a process of its own. Nothing else keeps that alive.
import { threadId, parentPort, workerData } from 'node:worker_threads';
import { Client } from '../../../dist/index.mjs';
import { Placement } from '../../dist/index.mjs';

const client = new Client({ socket: workerData?.socket ?? process.argv[2] });
const executor = await new Placement(client).register({ kinds: ['room'], activate: () => `${process.pid}/${threadId}`, passivate: () => undefined });
await client.close();
if (parentPort) {
  parentPort.once('message', () => executor.close());
  parentPort.unref();
  parentPort.postMessage('registered');
} else {
  process.once('message', () => process.disconnect());
  process.on('disconnect', () => executor.close());
  process.channel.unref();
  process.send('registered');
}
