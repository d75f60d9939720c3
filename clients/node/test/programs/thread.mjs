import { parentPort, workerData } from 'node:worker_threads';
import { Client } from '../../dist/index.mjs';

const client = new Client({ socket: workerData.socket, prefetch: 64 });
const ids = [];
while (ids.length < workerData.count) ids.push(client.tryNextId() ?? (await client.nextId()));
parentPort.postMessage(ids);
