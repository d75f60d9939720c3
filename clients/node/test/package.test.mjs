// The package as users get it: packed, installed into an empty folder, and the README's examples run there.
import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { promisify } from 'node:util';
import { Daemon, packageDir, temporary } from './support.mjs';

const run = promisify(execFile);
// The examples run with the oldest Node that the package is for, where its binary is at hand (scripts/test runtimes).
const node = process.env.RUNTIMES ? path.join(process.env.RUNTIMES, 'node') : process.execPath;
const readme = fs.readFileSync(path.join(packageDir, 'README.md'), 'utf8');
const examples = (language) => [...readme.matchAll(/^```(\w+)\n(.*?)^```/gms)].filter(([, found]) => found === language).map(([, , code]) => code);

/** Compiles programs in a folder, by name, to out. */
function compile(programs, directory) {
  for (const [name, code] of Object.entries(programs)) fs.writeFileSync(path.join(directory, name), code);
  const tsc = path.join(packageDir, 'node_modules/typescript/bin/tsc');
  const types = path.join(packageDir, 'node_modules/@types');
  execFileSync(process.execPath, [tsc, '--outDir', 'out', '--strict', '--target', 'es2022', '--lib', 'es2022,esnext.disposable', '--module', 'nodenext', '--typeRoots', types, '--types', 'node', '--allowJs', ...Object.keys(programs)], { cwd: directory });
}

test('the sources are checked against the oldest Node that the package is for', () => {
  const { engines, devDependencies } = JSON.parse(fs.readFileSync(path.join(packageDir, 'package.json'), 'utf8'));
  const oldest = /^>=(\d+)$/.exec(engines.node)[1];
  assert.match(devDependencies['@types/node'], new RegExp(`^\\^${oldest}\\.`));
});

const placementReadme = fs.readFileSync(path.join(packageDir, 'placement/README.md'), 'utf8');

test('the links of the READMEs work on the package index', () => {
  const links = [...(readme + placementReadme).matchAll(/\]\(([^)]*)\)/g)].map(([, link]) => link);
  assert.deepEqual(links.filter((link) => !/^(https:\/\/|#)/.test(link)), []);
  const here = 'https://github.com/kazahana/kazahana/blob/main/';
  for (const link of links) if (link.startsWith(here)) assert.ok(fs.existsSync(path.join(packageDir, '../..', link.slice(here.length).split('#')[0])), link);
});

test('what is said of speed names the daemon\'s cap', () => {
  assert.match(readme, /The daemon\s+gives\s+at\s+most\s+`max_throughput_per_ms` \(256\) IDs a millisecond/);
  const bench = fs.readFileSync(path.join(packageDir, 'bench.mjs'), 'utf8');
  assert.match(bench, /'--max-throughput-per-ms', String\(CAP\)/);
  assert.match(bench, /console\.log\(.*a daemon with a cap of \$\{CAP\} IDs a millisecond/);
});

// What is beside the core: locks, sequences and the other calls, external IDs, clocks, the connections of locks and placement and what else kazahana-placement
// uses, and the fake client. Every other file of src is core.
const BESIDE = ['system.ts', 'lock.ts', 'lockerrors.ts', 'moment.ts', 'other.ts', 'pinned.ts', 'external.ts', 'internal.ts', 'testing.ts', 'testing.mts', 'internal.mts'];
const LOCKS = ['lock.ts', 'lockerrors.ts', 'moment.ts', 'pinned.ts'];

test('the core can be read in half an hour', () => {
  const src = path.join(packageDir, 'src');
  const statements = (name) => fs.readFileSync(path.join(src, name), 'utf8').replace(/\/\*.*?\*\//gs, '').split('\n').filter((line) => line.trim() && !line.trim().startsWith('//')).length;
  const sum = (wanted) => fs.readdirSync(src).filter(wanted).reduce((all, name) => all + statements(name), 0);
  const found = { core: sum((name) => !BESIDE.includes(name)), locks: sum((name) => LOCKS.includes(name)), beside: sum((name) => BESIDE.includes(name)) };
  assert.ok(found.core <= 600 && found.locks <= 242 && found.beside <= 581, JSON.stringify(found));
});

test('kazahana-placement is for the same version', () => {
  const [core, placement] = ['', 'placement/'].map((name) => JSON.parse(fs.readFileSync(path.join(packageDir, `${name}package.json`), 'utf8')));
  assert.deepEqual([placement.version, placement.peerDependencies], [core.version, { kazahana: core.version }]);
});

test('the README is 1,000 words at most, and begins with what the first day needs', () => {
  assert.ok(readme.trim().split(/\s+/).length <= 1000);
  const places = ['npm install', 'client.nextId()', 'express()', 'Nest', 'FakeClient', 'fake timers', '## Errors', '## Prefetch'].map((one) => readme.indexOf(one));
  assert.ok(!places.includes(-1));
  assert.deepEqual(places, [...places].sort((a, b) => a - b));
});

test('the tarball', async (t) => {
  const directory = temporary(t);
  const npm = (...args) => execFileSync('npm', args, { cwd: directory, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
  const [{ filename, files }] = JSON.parse(npm('pack', '--json', '--ignore-scripts', '--pack-destination', directory, packageDir));
  const names = files.map((file) => file.path);
  for (const name of ['LICENSE', 'README.md', 'package.json', 'dist/index.js', 'dist/index.mjs', 'dist/index.d.ts', 'dist/index.d.mts', 'dist/testing.mjs', 'dist/internal.mjs']) {
    assert.ok(names.includes(name), `${name} in ${names}`);
  }
  assert.deepEqual(names.filter((name) => name.includes('placement')), []);
  assert.deepEqual(names.filter((name) => !/^(dist\/.*\.m?js|dist\/.*\.d\.m?ts|LICENSE|README\.md|package\.json)$/.test(name)), []);
  fs.writeFileSync(path.join(directory, 'package.json'), '{"name": "empty", "private": true}');
  npm('install', '--offline', '--no-audit', '--no-fund', `./${filename}`);
  assert.deepEqual(fs.readdirSync(path.join(directory, 'node_modules')).filter((name) => !name.startsWith('.')), ['kazahana']);

  const daemon = await Daemon.start(t);
  const env = { ...process.env, KAZAHANA_SOCKET: daemon.socket };
  const [esm, cjs, ts] = ['js', 'cjs', 'ts'].map(examples);
  assert.deepEqual([esm.length, cjs.length, ts.length], [4, 1, 1]);
  assert.ok(!esm.concat(cjs).join().includes('await using')); // which the oldest Node that this is for does not know
  await t.test('README, TypeScript examples, in both module systems', () => {
    const programs = ts.flatMap((code, i) => [[`typed${i}.mts`, code], [`typed${i}.cts`, code]]);
    compile(Object.fromEntries(programs), directory);
  });
  for (const [i, code] of esm.entries()) {
    await t.test(`README, ESM example ${i + 1}`, async () => {
      const name = `example${i}.mjs`;
      fs.writeFileSync(path.join(directory, name), code);
      const { stdout } = await run(node, [name], { cwd: directory, env });
      assert.notEqual(stdout, '');
      // What a comment promises is what is printed, where it does not depend on the time.
      for (const [, promised] of code.matchAll(/\/\/ (\S+)(?: in every run)?$/gm)) if (!promised.startsWith('117360159400092')) assert.ok(stdout.split('\n').includes(promised), `${promised} in ${stdout}`);
    });
  }
  await t.test('README, CommonJS example', async () => {
    fs.writeFileSync(path.join(directory, 'example.cjs'), cjs[0]);
    const { stdout } = await run(node, ['example.cjs'], { cwd: directory, env });
    assert.match(stdout, /^\d+n\n$/);
  });
  await t.test('README, example of a server', async () => {
    const [code] = examples('javascript');
    const before = "import { Client } from 'kazahana';\nlet handle;\nconst app = { post: (_, handler) => (handle = handler) };\n";
    fs.writeFileSync(path.join(directory, 'server.mjs'), `${before}${code}await handle({}, { json: (body) => console.log(JSON.stringify(body)) });\n`);
    assert.match((await run(node, ['server.mjs'], { cwd: directory, env })).stdout, /^{"id":"\d+"}\n$/);
  });
  await t.test('both module systems get the same classes', async () => {
    fs.writeFileSync(path.join(directory, 'same.mjs'), `
      import { createRequire } from 'node:module';
      import * as esm from 'kazahana';
      import { FakeClient } from 'kazahana/testing';
      const require = createRequire(import.meta.url);
      const cjs = require('kazahana');
      console.log(esm.Client === cjs.Client, FakeClient === require('kazahana/testing').FakeClient, Object.keys(cjs).sort().join() === Object.keys(esm).filter((name) => name !== 'default' && name !== 'module.exports' && name !== '__esModule').sort().join());`);
    assert.equal((await run(process.execPath, ['same.mjs'], { cwd: directory })).stdout, 'true true true\n');
  });
});
