// The package as users get it: packed, installed beside the client into an empty folder, and the README's examples run there.
import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { promisify } from 'node:util';
import { Daemon, packageDir, temporary } from './support.mjs';

const placement = path.join(packageDir, 'placement');
const readme = fs.readFileSync(path.join(placement, 'README.md'), 'utf8');
const examples = (language) => [...readme.matchAll(/^```(\w+)\n(.*?)^```/gms)].filter(([, found]) => found === language).map(([, , code]) => code);

test('the tarball', async (t) => {
  const directory = temporary(t);
  const npm = (...args) => execFileSync('npm', args, { cwd: directory, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
  const [core, own] = JSON.parse(npm('pack', '--json', '--ignore-scripts', '--pack-destination', directory, packageDir, placement));
  const names = own.files.map((file) => file.path);
  for (const name of ['LICENSE', 'README.md', 'package.json', 'dist/index.js', 'dist/index.mjs', 'dist/index.d.ts', 'dist/index.d.mts', 'dist/testing.mjs']) assert.ok(names.includes(name), `${name} in ${names}`);
  assert.deepEqual(names.filter((name) => !/^(dist\/.*\.m?js|dist\/.*\.d\.m?ts|LICENSE|README\.md|package\.json)$/.test(name)), []);
  fs.writeFileSync(path.join(directory, 'package.json'), '{"name": "empty", "private": true}');
  npm('install', '--offline', '--no-audit', '--no-fund', `./${core.filename}`, `./${own.filename}`);
  assert.deepEqual(fs.readdirSync(path.join(directory, 'node_modules')).filter((name) => !name.startsWith('.')), ['kazahana', 'kazahana-placement']);

  const daemon = await Daemon.start(t, '--placement-authority', '127.0.0.1:7001');
  const env = { ...process.env, KAZAHANA_SOCKET: daemon.socket };
  const run = async (name, code) => {
    fs.writeFileSync(path.join(directory, name), code);
    return (await promisify(execFile)(process.execPath, [name], { cwd: directory, env })).stdout;
  };
  const [[example], [typed]] = ['js', 'ts'].map(examples);
  assert.match(await run('example.mjs', example), /^true\nlobby \d+n\n0\n$/);
  for (const extension of ['mts', 'cts']) fs.writeFileSync(path.join(directory, `typed.${extension}`), typed);
  const modules = path.join(packageDir, 'node_modules');
  execFileSync(process.execPath, [path.join(modules, 'typescript/bin/tsc'), '--outDir', 'out', '--strict', '--target', 'es2022', '--lib', 'es2022,esnext.disposable', '--module', 'nodenext', '--typeRoots', path.join(modules, '@types'), '--types', 'node', 'typed.mts', 'typed.cts'], { cwd: directory });
  assert.equal(await run('same.mjs', `
    import { createRequire } from 'node:module';
    import { Placement } from 'kazahana-placement';
    import { FakePlacement } from 'kazahana-placement/testing';
    const require = createRequire(import.meta.url);
    console.log(Placement === require('kazahana-placement').Placement, FakePlacement === require('kazahana-placement/testing').FakePlacement);`), 'true true\n');
});
