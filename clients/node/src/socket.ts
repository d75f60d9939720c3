import * as fs from 'node:fs';
import * as path from 'node:path';
import { DaemonUnavailableError, InvalidParamsError } from './errors.js';

const PATH_LIMIT = process.platform === 'darwin' ? 103 : 107;
const OTHER = 'it is not a socket';
const JOIN = "add your user to the group that the daemon's --socket-group names";

/**
 * Reads PATH, unix:PATH or unix:///PATH, as testdata/socket_addresses.json has it. The path is taken as it is, with any percent sign.
 * `source` names where it was written. The errors leave out the text: it may be a URL with a password.
 */
export function socketPath(text: string, source: string): string {
  const [, scheme, slashes, file = ''] = /^[ \t\r\n]*(unix:(\/\/)?)?(.*?)[ \t\r\n]*$/is.exec(text)!;
  const length = Buffer.byteLength(file);
  const why = !scheme && /^[a-z][a-z0-9+.-]*:\/\//i.test(file) ? 'is not a Unix socket: write its path, or unix:///PATH'
    : file === '' ? 'is empty: write the path of a Unix socket'
    : slashes && !file.startsWith('/') ? 'names a host: write unix:///PATH, with three slashes, or just the path'
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
  const { KAZAHANA_SOCKET: named, XDG_RUNTIME_DIR: runtime } = env;
  if (named && /[^ \t\r\n]/.test(named)) return socketPath(named, 'KAZAHANA_SOCKET');
  // Each with the directory that another user could have made.
  const places: [string, string?][] = [['/run/kazahana/kazahanad.sock'], [`/tmp/kazahana-${uid}/kazahanad.sock`, `/tmp/kazahana-${uid}`]];
  if (runtime && path.isAbsolute(runtime)) places.unshift([path.join(runtime, 'kazahana/kazahanad.sock'), path.resolve(runtime)]);
  const tried: string[] = [];
  for (const [place, directory] of places) {
    const why = absence(place, directory, uid);
    if (!why || why === OTHER) return place;
    tried.push(`${place} (${why})`);
  }
  const cause = tried.some((why) => why.includes(JOIN)) ? Object.assign(new Error('permission denied'), { code: 'EACCES' }) : undefined;
  throw new DaemonUnavailableError(`no daemon's socket found; tried ${tried.join(', ')}: start one (kazahanad serve), or name its socket in KAZAHANA_SOCKET`, { cause });
}

/** Says why there is no socket at a place, or why another user may answer there in the daemon's place: su keeps XDG_RUNTIME_DIR. */
function absence(place: string, directory?: string, uid?: number): string | undefined {
  try {
    const info = directory === undefined ? undefined : fs.lstatSync(directory);
    if (info && !(info.isDirectory() && info.uid === uid && (info.mode & 0o022) === 0)) {
      return `ignored: ${directory} belongs to user ${info.uid} with mode ${(info.mode & 0o7777).toString(8)}, and only user ${uid} must be able to write to it`;
    }
    return fs.statSync(place).isSocket() ? undefined : OTHER;
  } catch (error) {
    const { code = 'unreadable' } = error as NodeJS.ErrnoException;
    return code === 'ENOENT' ? 'no such file' : code === 'EACCES' ? `permission denied: ${JOIN}` : code;
  }
}

/** The error for a socket that cannot be connected to, with what to do about it. */
export function unavailable(file: string, reason: NodeJS.ErrnoException): DaemonUnavailableError {
  // Linux says the same where no daemon listens and where there is another file.
  const cause = reason.code === 'ECONNREFUSED' && absence(file) === OTHER ? Object.assign(new Error(OTHER), { code: 'ENOTSOCK' }) : reason;
  const advice = `start it with: kazahanad serve --socket ${file}`;
  const message = cause.code === 'ENOENT' ? `there is no socket at ${file}; ${advice}`
    : cause.code === 'ECONNREFUSED' ? `no daemon listens on ${file}; ${advice}`
    : cause.code === 'EACCES' ? `permission denied on ${file}: ${JOIN}`
    : `cannot reach the daemon at ${file}: ${cause.message}`;
  return new DaemonUnavailableError(message, { cause });
}

/** Reports whether the failure lasts until a person changes something, so that no caller waits for its end. */
export const isHopeless = ({ cause }: DaemonUnavailableError) => ['EACCES', 'ENOTSOCK'].includes((cause as NodeJS.ErrnoException | undefined)?.code ?? '');
