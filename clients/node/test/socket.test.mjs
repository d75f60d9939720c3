import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { Client, DaemonUnavailableError, InvalidParamsError } from '../dist/index.js';
import { findSocket, isHopeless, socketPath, unavailable } from '../dist/socket.js';
import { Script, stopClock, temporary, testdata } from './support.mjs';

test('an address is read as in the table of all clients', () => {
  for (const { text, path: want, refused } of testdata('socket_addresses.json')) {
    if (refused === undefined) {
      assert.equal(socketPath(text, 'socket'), want);
    } else {
      assert.throws(() => socketPath(text, 'socket'), (error) => error instanceof InvalidParamsError && error.message.includes(refused) && !error.message.includes('secret'), text);
    }
  }
});

test('the socket is found in the order of the contract', async (t) => {
  const runtime = temporary(t);
  fs.chmodSync(runtime, 0o700);
  assert.equal(findSocket({ KAZAHANA_SOCKET: ' unix:///here/k.sock ', XDG_RUNTIME_DIR: runtime }), '/here/k.sock');
  assert.throws(() => findSocket({ KAZAHANA_SOCKET: 'http://x' }), /KAZAHANA_SOCKET is not a Unix socket/);
  fs.mkdirSync(path.join(runtime, 'kazahana'));
  const inRuntime = path.join(runtime, 'kazahana/kazahanad.sock');
  await Script.start(t, () => {}, inRuntime);
  assert.equal(findSocket({ XDG_RUNTIME_DIR: runtime }), inRuntime);
  // The caller's own unit's directory is not the daemon's.
  const found = (env) => {
    try {
      return findSocket(env, 54321);
    } catch (error) {
      return error.message;
    }
  };
  assert.ok(!found({ RUNTIME_DIRECTORY: path.join(runtime, 'kazahana') }).includes(runtime));
  assert.ok(!found({ XDG_RUNTIME_DIR: 'relative' }).includes('relative'));
  // su and sudo -E keep another user's.
  const foreign = found({ XDG_RUNTIME_DIR: runtime });
  assert.ok(!foreign.startsWith(inRuntime) && (foreign.startsWith('/') || foreign.includes(`ignored: ${runtime} belongs to user ${process.geteuid()} with mode 700, and only user 54321 must`)), foreign);
});

test('an error lists every place that was tried', { skip: fs.existsSync('/run/kazahana/kazahanad.sock') && 'a daemon runs on this machine' }, (t) => {
  const runtime = temporary(t);
  fs.chmodSync(runtime, 0o700);
  assert.throws(() => findSocket({ XDG_RUNTIME_DIR: runtime }, 54321), (error) => {
    assert.ok(error instanceof DaemonUnavailableError);
    for (const place of [`${runtime}/kazahana/kazahanad.sock`, '/run/kazahana/kazahanad.sock', '/tmp/kazahana-54321/kazahanad.sock', 'kazahanad serve', 'KAZAHANA_SOCKET']) {
      assert.ok(error.message.includes(place), `${place} in: ${error.message}`);
    }
    return true;
  });
});

test('a directory below /tmp that is not one\'s own is not trusted', { skip: fs.existsSync('/run/kazahana/kazahanad.sock') && 'a daemon runs on this machine' }, (t) => {
  const uid = 1_000_000 + process.pid;
  const directory = `/tmp/kazahana-${uid}`;
  fs.mkdirSync(directory, { mode: 0o700 });
  t.after(() => fs.rmSync(directory, { recursive: true }));
  fs.writeFileSync(path.join(directory, 'kazahanad.sock'), '');
  assert.throws(() => findSocket({}, uid), /ignored: \/tmp\/kazahana-\d+ belongs to user \d+ with mode 700, and only user \d+ must/);
  if (process.getuid() === 0) {
    fs.chownSync(directory, uid, 0);
    assert.equal(findSocket({}, uid), path.join(directory, 'kazahanad.sock'));
    fs.chmodSync(directory, 0o770);
    assert.throws(() => findSocket({}, uid), /with mode 770/);
  }
});

test('each failure says what to do', (t) => {
  const directory = temporary(t);
  const [missing, file] = [path.join(directory, 'none'), path.join(directory, 'file')];
  fs.writeFileSync(file, '');
  const failure = (code) => Object.assign(new Error(code), { code });
  for (const [place, code, why, found] of [
    [missing, 'ENOENT', /no socket at .*none; start it with: kazahanad serve --socket .*none/],
    [missing, 'ECONNREFUSED', /no daemon listens on .*none; start it with/],
    [file, 'EACCES', /permission denied on .*file: .*--socket-group/],
    [file, 'EMFILE', /cannot reach the daemon at .*file: EMFILE/],
    [file, 'ECONNREFUSED', /cannot reach the daemon at .*file: it is not a socket/, 'ENOTSOCK'],
    [directory, 'ECONNREFUSED', /it is not a socket/, 'ENOTSOCK'],
  ]) {
    const error = unavailable(place, failure(code));
    assert.match(error.message, why);
    assert.equal(error.cause.code, found ?? code);
    assert.equal(isHopeless(error), ['EACCES', 'ENOTSOCK'].includes(found ?? code));
  }
});

test('what a person has to change is not waited for', async (t) => {
  const directory = temporary(t);
  const file = path.join(directory, 'file');
  fs.writeFileSync(file, '');
  stopClock(t); // whoever waits waits for ever
  for (const socket of [file, directory]) {
    const client = new Client({ socket });
    t.after(() => client.close());
    await assert.rejects(client.nextId(), (error) => error instanceof DaemonUnavailableError && /it is not a socket/.test(error.message));
  }
  t.mock.method(fs, 'statSync', () => {
    throw Object.assign(new Error('no'), { code: 'EACCES' });
  });
  assert.throws(() => findSocket({}, 54321), (error) => isHopeless(error) && /permission denied: .*--socket-group/.test(error.message));
});
