import * as fs from 'node:fs';
import * as path from 'node:path';
import { DaemonUnavailableError, InvalidParamsError } from './errors.js';

const NO_SOCKET = 'is not a socket';

/** Reads a socket's path, or a unix:/// URI with one. `source` names where it was written. */
export function socketPath(text: string, source: string): string {
  const uri = /^unix:(\/\/)?(.*)$/s.exec(text);
  const file = uri ? uri[2]! : text;
  const wrong = (why: string) => new InvalidParamsError(`${source}: ${JSON.stringify(text)} ${why}`);
  if (uri?.[1] && !file.startsWith('/')) throw wrong('names a host: write unix:///PATH, with three slashes, or just the path');
  if (!uri && /^[a-z][a-z0-9+.-]*:\/\//i.test(text)) throw wrong('is not a Unix socket: write its path, or unix:///PATH');
  if (file === '') throw wrong('is empty: write the path of a Unix socket');
  if (file.startsWith('@') || file.includes('\0')) throw wrong('is an abstract socket, which every user can open: write a path');
  return file;
}

/**
 * Finds the daemon's socket: KAZAHANA_SOCKET, else the first of the usual places that exists. It does not try to connect: a socket that
 * exists and does not answer is the one to report, and not a reason to ask another daemon.
 */
export function findSocket(env: NodeJS.ProcessEnv = process.env, uid = process.getuid?.() ?? 0): string {
  const named = env['KAZAHANA_SOCKET']?.trim();
  if (named) return socketPath(named, 'KAZAHANA_SOCKET');
  const inTmp = `/tmp/kazahana-${uid}/kazahanad.sock`;
  const runtime = env['XDG_RUNTIME_DIR'];
  const places = ['/run/kazahana/kazahanad.sock', inTmp];
  if (runtime && path.isAbsolute(runtime)) places.unshift(path.join(runtime, 'kazahana/kazahanad.sock'));
  const tried: string[] = [];
  let cause: unknown;
  for (const place of places) {
    try {
      fs.statSync(place);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (!cause || code === 'EACCES') cause = error;
      tried.push(`${place} (${code === 'ENOENT' ? 'no such file' : code === 'EACCES' ? `permission denied: ${denialHint(place)}` : code})`);
      continue;
    }
    if (place === inTmp) checkOwner(path.dirname(place), uid);
    return place;
  }
  const advice = 'start one (kazahanad serve), or name its socket in KAZAHANA_SOCKET';
  throw new DaemonUnavailableError(`no daemon's socket found; tried ${tried.join(', ')}: ${advice}`, { cause });
}

/** Refuses a directory below /tmp that another user could have put there to answer in the daemon's place. */
function checkOwner(directory: string, uid: number): void {
  const info = fs.lstatSync(directory);
  const why = !info.isDirectory() ? 'is not a directory'
    : info.uid !== uid ? 'belongs to another user'
    : (info.mode & 0o022) !== 0 ? 'can be written by others' : undefined;
  if (why) throw new DaemonUnavailableError(`${directory} ${why}: its socket is not trusted`);
}

/** The error for a socket that cannot be connected to, with what to do about it. */
export function unavailable(file: string, cause: NodeJS.ErrnoException): DaemonUnavailableError {
  const { code } = cause;
  const isOther = code === 'ENOTSOCK' || (code === 'ECONNREFUSED' && fs.statSync(file, { throwIfNoEntry: false })?.isSocket() === false);
  const advice = `start it with: kazahanad serve --socket ${file}`;
  const message = isOther ? `${file} exists and ${NO_SOCKET}`
    : code === 'ENOENT' ? `there is no socket at ${file}; ${advice}`
    : code === 'ECONNREFUSED' ? `no daemon listens on ${file}; ${advice}`
    : code === 'EACCES' ? `permission denied on ${file}: ${denialHint(file)}`
    : `cannot reach the daemon at ${file}: ${cause.message}`;
  return new DaemonUnavailableError(message, { cause });
}

/** Reports whether waiting cannot help, because the cause needs a change by a person. */
export function isHopeless({ cause, message }: DaemonUnavailableError): boolean {
  const code = (cause as NodeJS.ErrnoException | undefined)?.code;
  return cause === undefined || code === 'EACCES' || code === 'EPERM' || message.endsWith(NO_SOCKET);
}

/** Says which group may open the socket. The directory may keep even that from being read; then the directory's group is meant. */
function denialHint(file: string): string {
  const place = fs.existsSync(file) ? file : path.dirname(file);
  try {
    const { gid } = fs.statSync(place);
    const groups = fs.readFileSync('/etc/group', 'utf8').split('\n').map((line) => line.split(':'));
    const group = groups.find((fields) => fields[2] === String(gid))?.[0] ?? String(gid);
    return group === 'root'
      ? `${place} belongs to group root: give the daemon a group of its own with --socket-group`
      : `${place} belongs to group ${group}: a user of that group may connect (usermod -aG ${group} USER, then log in again)`;
  } catch {
    return 'its directory cannot be read either';
  }
}
