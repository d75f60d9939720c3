import * as fs from 'node:fs';
import * as path from 'node:path';
import { DaemonUnavailableError, InvalidParamsError } from './errors.js';

const PATH_LIMIT = process.platform === 'darwin' ? 103 : 107;

/**
 * Reads PATH, unix:PATH or unix:///PATH, as testdata/socket_addresses.json has it. The path is taken as it is, with any percent sign.
 * `source` names where it was written. The errors leave out the text: it may be a URL with a password.
 */
export function socketPath(text: string, source: string): string {
  const trimmed = text.replace(/^[ \t\r\n]+|[ \t\r\n]+$/g, '');
  const uri = /^unix:(\/\/)?(.*)$/is.exec(trimmed);
  const file = uri ? uri[2]! : trimmed;
  const length = Buffer.byteLength(file);
  const why = !uri && /^[a-z][a-z0-9+.-]*:\/\//i.test(file) ? 'is not a Unix socket: write its path, or unix:///PATH'
    : file === '' ? 'is empty: write the path of a Unix socket'
    : uri?.[1] && !file.startsWith('/') ? 'names a host: write unix:///PATH, with three slashes, or just the path'
    : /^[@\0]/.test(file) ? 'is an abstract socket, which every user can open: write a path'
    : file.includes('\0') ? 'holds a zero byte: write the path of a Unix socket'
    : /^~(\/|$)/.test(file) ? 'begins with ~, which only a shell replaces: write the whole path'
    : file.endsWith('/') ? 'is a directory: write the path of a Unix socket'
    : length > PATH_LIMIT ? `is ${length} bytes long, and the system allows a socket's path ${PATH_LIMIT}` : undefined;
  if (why) throw new InvalidParamsError(`${source} ${why}`);
  return file;
}

/**
 * Finds the daemon's socket: KAZAHANA_SOCKET, else the first of the usual places that exists. It does not try to connect: a socket that
 * exists and does not answer is the one to report, and not a reason to ask another daemon.
 */
export function findSocket(env: NodeJS.ProcessEnv = process.env, uid = process.geteuid?.() ?? 0): string {
  const named = env['KAZAHANA_SOCKET'];
  if (named && /[^ \t\r\n]/.test(named)) return socketPath(named, 'KAZAHANA_SOCKET');
  const own = `/tmp/kazahana-${uid}`;
  const runtime = env['XDG_RUNTIME_DIR'];
  // Each with the directory that another user could have made.
  const places: [string, string?][] = [['/run/kazahana/kazahanad.sock'], [`${own}/kazahanad.sock`, own]];
  if (runtime && path.isAbsolute(runtime)) places.unshift([path.join(runtime, 'kazahana/kazahanad.sock'), path.resolve(runtime)]);
  const tried: string[] = [];
  let cause: unknown;
  for (const [place, directory] of places) {
    try {
      const why = directory && distrust(directory, uid);
      if (why) {
        tried.push(`${place} (ignored: ${why})`);
        continue;
      }
      fs.statSync(place);
      return place;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (!cause || code === 'EACCES') cause = error;
      tried.push(`${place} (${code === 'ENOENT' ? 'no such file' : code === 'EACCES' ? `permission denied: ${denialHint(place)}` : code})`);
    }
  }
  const advice = 'start one (kazahanad serve), or name its socket in KAZAHANA_SOCKET';
  throw new DaemonUnavailableError(`no daemon's socket found; tried ${tried.join(', ')}: ${advice}`, { cause });
}

/** Says why another user may answer in the daemon's place in the directory, if one may: su keeps XDG_RUNTIME_DIR. */
function distrust(directory: string, uid: number): string | undefined {
  const info = fs.lstatSync(directory);
  if (info.isDirectory() && info.uid === uid && (info.mode & 0o022) === 0) return undefined;
  return `${directory} belongs to user ${info.uid} with mode ${(info.mode & 0o7777).toString(8)}, and only user ${uid} must be able to write to it`;
}

/** The error for a socket that cannot be connected to, with what to do about it. */
export function unavailable(file: string, cause: NodeJS.ErrnoException): DaemonUnavailableError {
  const { code } = cause;
  const advice = `start it with: kazahanad serve --socket ${file}`;
  const message = code === 'ENOENT' ? `there is no socket at ${file}; ${advice}`
    : code === 'ECONNREFUSED' && isOther(file) ? `${file} exists and is not a socket`
    : code === 'ECONNREFUSED' ? `no daemon listens on ${file}; ${advice}`
    : code === 'EACCES' ? `permission denied on ${file}: ${denialHint(file)}`
    : `cannot reach the daemon at ${file}: ${cause.message}`;
  return new DaemonUnavailableError(message, { cause });
}

/** Whether something else than a socket is there. A daemon that restarts removes its socket at any moment. */
function isOther(file: string): boolean {
  try {
    return !fs.statSync(file).isSocket();
  } catch {
    return false;
  }
}

/** Names the group of the socket, or of the directory that hides it. */
function denialHint(file: string): string {
  const place = fs.existsSync(file) ? file : path.dirname(file);
  try {
    const { gid, uid, mode } = fs.statSync(place);
    const groups = fs.readFileSync('/etc/group', 'utf8').split('\n').map((line) => line.split(':'));
    const group = groups.find((fields) => fields[2] === String(gid))?.[0] ?? String(gid);
    const owner = `${place} belongs to user ${uid} and group ${group} with mode ${(mode & 0o7777).toString(8)}`;
    return `${owner}: add your user to the group that the daemon's --socket-group names`;
  } catch {
    return 'its directory cannot be read either';
  }
}
