// Tests of users replace the clock and the timers. No wait of a client may depend on those: it would never end.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import test from 'node:test';
import { Daemon, packageDir, temporary } from './support.mjs';

const faked = path.join(packageDir, 'test/programs/faked.cjs');
const dist = path.join(packageDir, 'dist/index.js');

/** A folder in a project with the tools, and what its programs need to know. */
async function project(t) {
  const directory = temporary(t);
  fs.symlinkSync(path.join(packageDir, 'node_modules'), path.join(directory, 'node_modules'));
  const daemon = await Daemon.start(t, '--store', `sqlite:${directory}/store.db`);
  const silent = net.createServer().listen(path.join(directory, 's.sock'));
  t.after(() => silent.close());
  const sockets = JSON.stringify({ silent: path.join(directory, 's.sock'), away: path.join(directory, 'none'), there: daemon.socket });
  const run = (files, ...command) => {
    for (const [name, text] of Object.entries(files)) fs.writeFileSync(path.join(directory, name), text);
    return execFileSync(process.execPath, command, { cwd: directory, stdio: 'pipe', timeout: 120_000, encoding: 'utf8' });
  };
  return { run, sockets };
}

const check = (sockets) => `assert.deepEqual(await faked(kazahana, ${sockets}), faked.expected);`;

for (const [name, before, after] of [
  ['Sinon, before the import', 'sinon.useFakeTimers();', ''],
  ['Sinon, after the import', '', 'sinon.useFakeTimers();'],
  ['node:test, after the import', '', 'mock.timers.enable();'],
]) {
  test(name, async (t) => {
    const { run, sockets } = await project(t);
    const program = `
      const assert = require('node:assert/strict');
      const { mock } = require('node:test');
      const sinon = require('sinon');
      const faked = require(${JSON.stringify(faked)});
      setInterval(() => {}, 1000); // a wait for a lock's loss keeps no process alive
      ${before}
      const kazahana = require(${JSON.stringify(dist)});
      ${after}
      (async () => {
        ${check(sockets)}
        require('node:fs').writeSync(1, 'all came');
        process.exit();
      })();`;
    assert.equal(run({ 'program.cjs': program }, 'program.cjs'), 'all came');
  });
}

for (const [name, fakeTimers, begin] of [
  ['Jest, in the test', {}, 'jest.useFakeTimers();'],
  ['Jest, globally', { enableGlobally: true }, ''],
]) {
  test(name, async (t) => {
    const { run, sockets } = await project(t);
    const program = `
      const assert = require('node:assert/strict');
      const faked = require(${JSON.stringify(faked)});
      const kazahana = require(${JSON.stringify(dist)});
      test('it', async () => {
        ${begin}
        ${check(sockets)}
      }, 300_000);`;
    const config = JSON.stringify({ testEnvironment: 'node', transform: {}, cache: false, watchman: false, haste: { enableSymlinks: false }, fakeTimers });
    run({ 'program.test.js': program, 'jest.config.json': config }, 'node_modules/jest/bin/jest.js', '--runInBand', '--forceExit');
  });
}
