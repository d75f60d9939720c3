// Asks for IDs until the file argv[2] exists; prints a dot for every 100, then the number and the longest pause in ms.
import { existsSync } from 'node:fs';
import { Client } from './dist/index.mjs';

let count = 0;
let last = 0n;
let longest = 0;
const client = new Client({ timeout: 60_000 });
while (!existsSync(process.argv[2])) {
  const began = performance.now();
  const value = await client.nextId();
  longest = Math.max(longest, performance.now() - began);
  if (value <= last) throw new Error(`${value} after ${last}`);
  last = value;
  count++;
  if (count % 100 === 0) process.stdout.write('.');
}
client.close();
console.log(count, Math.round(longest));
