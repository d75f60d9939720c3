// What every runtime must be able to do: IDs in each way, a lock, an error, and an end without help.
import { Client, DaemonUnavailableError } from '../../dist/index.mjs';

const socket = globalThis.process.argv[2];
const [plain, ahead] = [new Client({ socket }), new Client({ socket, prefetch: 64 })];
const ids = await Promise.all(Array.from({ length: 500 }, () => plain.nextId()));
for (let i = 0; i < 5000; i++) ids.push(ahead.tryNextId() ?? (await ahead.nextId()));
ids.push(...(await plain.nextIds(65_536)));
if (new Set(ids).size !== ids.length) throw new Error('an ID was given twice');
const lock = await plain.lock(`runtime ${process.pid}`, { ttl: 5000 });
if (lock.lost.aborted || lock.token <= 0n) throw new Error('the lock is not held');
await lock.release();
const away = new Client({ socket: '/nonexistent/k.sock', singleAttempt: true });
const error = await away.nextId().catch((e) => e);
if (!(error instanceof DaemonUnavailableError)) throw error;
console.log(`ok ${ids.length}`);
// Nothing is closed: idle clients keep no process alive.
