import * as fs from 'node:fs';
import * as path from 'node:path';
import { DaemonUnavailableError, InvalidParamsError } from './errors.js';

const NO_SOCKET = 'is not a socket';

const PATH_LIMIT = process.platform === 'darwin' ? 103 : 107;

/**
 * Reads PATH, unix:PATH or unix:///PATH, as testdata/socket_addresses.json has it. The path is taken as it is, with any percent sign.
 * `source` names where it was written. The errors leave out the text: it may be a URL with a password.
 */
export function socketPath(text: string, source: string): string {
  const trimmed = text.replace(/^[ \t\r\n]+|[ \t\r\n]+$/g, '');
  const uri = /^unix:(\/\/)?(.*)$/is.exec(trimmed);
  const file = uri ? uri[2]! : trimmed;
  const wrong = (why: string) => new InvalidParamsError(`${source} ${why}`);
  if (!uri && /^[a-z][a-z0-9+.-]*:\/\//i.test(file)) throw wrong('is not a Unix socket: write its path, or unix:///PATH');
  if (file === '') throw wrong('is empty: write the path of a Unix socket');
  if (uri?.[1] && !file.startsWith('/')) throw wrong('names a host: write unix:///PATH, with three slashes, or just the path');
  if (file.startsWith('@') || file.startsWith('\0')) throw wrong('is an abstract socket, which every user can open: write a path');
  if (file.includes('\0')) throw wrong('holds a zero byte: write the path of a Unix socket');
  if (file === '~' || file.startsWith('~/')) throw wrong('begins with ~, which only a shell replaces: write the whole path');
  if (file.endsWith('/')) throw wrong('is a directory: write the path of a Unix socket');
  const length = Buffer.byteLength(file);
  if (length > PATH_LIMIT) throw wrong(`is ${length} bytes long, and the system allows a socket's path ${PATH_LIMIT}`);
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
        tried.push(`${place} (ignored: ${directory} ${why})`);
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

/**
 * Says why another user may answer in the daemon's place in the directory, if one may: su and sudo -E keep another user's
 * XDG_RUNTIME_DIR, and every user can make a directory below /tmp.
 */
function distrust(directory: string, uid: number): string | undefined {
  const info = fs.lstatSync(directory);
  return !info.isDirectory() ? 'is not a directory'
    : info.uid !== uid ? `belongs to another user, ${info.uid}, and this is user ${uid}`
    : (info.mode & 0o022) !== 0 ? `can be written by others (mode ${(info.mode & 0o7777).toString(8)})` : undefined;
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

/** Says what keeps this user out, and what to do: a directory that it may not enter, else the socket. */
function denialHint(file: string): string {
  let place = closed(path.dirname(path.resolve(file))) ?? file;
  if (place === file && !fs.existsSync(file)) place = path.dirname(file);
  try {
    const info = fs.statSync(place);
    const groups = fs.readFileSync('/etc/group', 'utf8').split('\n').map((line) => line.split(':'));
    const group = groups.find((fields) => fields[2] === String(info.gid))?.[0] ?? String(info.gid);
    if (info.gid !== 0 && (info.mode & (info.isDirectory() ? 0o010 : 0o020)) !== 0) {
      return `${place} belongs to group ${group}: a user of that group may connect (usermod -aG ${group} USER, then log in again)`;
    }
    const advice = info.isDirectory() ? 'open it with chmod o+x, or give the daemon another --socket'
      : 'give the daemon a group of its own with --socket-group and --socket-mode 0660';
    return `${place} belongs to user ${info.uid} and group ${group} with mode ${(info.mode & 0o7777).toString(8)}: ${advice}`;
  } catch {
    return 'its directory cannot be read either';
  }
}

/** Finds the outermost directory on the way that this process may not enter. */
function closed(directory: string): string | undefined {
  let found: string | undefined;
  for (let at = directory; ; at = path.dirname(at)) {
    try {
      fs.accessSync(at, fs.constants.X_OK);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EACCES') found = at;
    }
    if (at === path.dirname(at)) return found;
  }
}
