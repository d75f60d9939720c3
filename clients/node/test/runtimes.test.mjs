// Other runtimes: their binaries come from the registry (scripts/test runtimes), and RUNTIMES names the folder.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import path from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { Daemon } from './support.mjs';

const program = fileURLToPath(new URL('./programs/runtime.mjs', import.meta.url));
const { RUNTIMES } = process.env;
const run = async (t, command, ...args) => {
  const daemon = await Daemon.start(t);
  const { stdout } = await promisify(execFile)(command, [...args, program, daemon.socket], { timeout: 120_000, env: { ...process.env, NO_COLOR: '1' } });
  assert.equal(stdout, 'ok 71036\n');
};

test('this Node', (t) => run(t, process.execPath));
for (const [name, ...args] of [['node'], ['bun'], ['deno', 'run', '--allow-read', '--allow-write', '--allow-env', '--allow-sys', '--allow-net']]) {
  test(name, { skip: !RUNTIMES && 'scripts/test runtimes has the binary' }, (t) => run(t, path.join(RUNTIMES, name), ...args));
}
