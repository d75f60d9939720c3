/** The fields of every error of this package besides its message. */
export interface ErrorInfo {
  /** Stable code of the error, for programs; each class has its own by default. */
  code?: string;
  /** Facts from the daemon, as text, by its own names (`backward_ms`). */
  details?: Readonly<Record<string, string>>;
  cause?: unknown;
}

/** The base class of every error of this package. Errors with a code that this version does not know are plain KazahanaErrors. */
export class KazahanaError extends Error {
  static readonly code: string = '';
  readonly code: string;
  readonly details: Readonly<Record<string, string>>;

  constructor(message: string, info: ErrorInfo = {}) {
    super(message, info.cause === undefined ? undefined : { cause: info.cause });
    this.name = new.target.name;
    this.code = info.code ?? new.target.code;
    this.details = info.details ?? {};
  }

  /** A detail as a number; NaN if it is missing. */
  protected number(key: string): number {
    return Number(this.details[key] ?? NaN);
  }
}

/** The host's clock was set back by more than the daemon's `max_backward`. Both figures are milliseconds. */
export class ClockBackwardError extends KazahanaError {
  static override readonly code = 'CLOCK_BACKWARD';
  readonly backwardMs = this.number('backward_ms');
  readonly limitMs = this.number('limit_ms');
}
/** The daemon holds no valid lease and may not make fallback IDs; `cause` says why. */
export class LeaseAcquisitionError extends KazahanaError {
  static override readonly code = 'LEASE_ACQUISITION';
}
/** The daemon has no provider and may not make fallback IDs. */
export class NoProviderError extends KazahanaError {
  static override readonly code = 'NO_PROVIDER';
}
/** The call's timeout ran out. `cause` is `clock`, `sequence` or `lease` if the daemon knows what it waited for. */
export class RequestTimeoutError extends KazahanaError {
  static override readonly code = 'TIMEOUT';
  readonly waitedMs = this.number('waited_ms');
}
/** The layout's time is used up. */
export class TimestampOverflowError extends KazahanaError {
  static override readonly code = 'TIMESTAMP_OVERFLOW';
}
export class UnknownServiceError extends KazahanaError {
  static override readonly code = 'UNKNOWN_SERVICE';
}
/** The daemon does not know the method: it is older than this package. */
export class UnknownMethodError extends KazahanaError {
  static override readonly code = 'UNKNOWN_METHOD';
}
/** An argument is wrong; the message says what is allowed. */
export class InvalidParamsError extends KazahanaError {
  static override readonly code = 'INVALID_PARAMS';
}
export class InvalidExternalIdError extends KazahanaError {
  static override readonly code = 'INVALID_EXTERNAL_ID';
}
/** The daemon does not serve this user. */
export class PermissionDeniedError extends KazahanaError {
  static override readonly code = 'PERMISSION_DENIED';
}
/** The daemon's limit of connections or waiting requests is reached. */
export class OverloadedError extends KazahanaError {
  static override readonly code = 'OVERLOADED';
}
/** The daemon is stopping. Clients connect again by themselves while the timeout lasts. */
export class ShuttingDownError extends KazahanaError {
  static override readonly code = 'SHUTTING_DOWN';
}
/** The daemon cannot start; the message says whether it tries again. */
export class StartFailedError extends KazahanaError {
  static override readonly code = 'START_FAILED';
}
/** No daemon answers at the socket; `cause` is the system's error. */
export class DaemonUnavailableError extends KazahanaError {
  static override readonly code = 'DAEMON_UNAVAILABLE';
}
/** The peer is not a kazahana daemon. */
export class ProtocolError extends KazahanaError {
  static override readonly code = 'PROTOCOL_ERROR';
}
/** The client was closed. */
export class ClientClosedError extends KazahanaError {
  static override readonly code = 'CLIENT_CLOSED';
}

type ErrorClass = new (message: string, info?: ErrorInfo) => KazahanaError;
const BY_CODE = new Map<string, ErrorClass>();

/** Makes errors of the wire with these classes' codes errors of these classes. */
export function know(...types: (ErrorClass & { readonly code: string })[]): void {
  for (const type of types) BY_CODE.set(type.code, type);
}
know(
  ClockBackwardError, LeaseAcquisitionError, NoProviderError, RequestTimeoutError, TimestampOverflowError, UnknownServiceError,
  UnknownMethodError, InvalidParamsError, InvalidExternalIdError, PermissionDeniedError, OverloadedError, ShuttingDownError,
  StartFailedError,
);

/** Turns the text of an error on the wire, `CODE: message key=value key="a value"`, into an error of the class for its code. */
export function errorFromText(text: string): KazahanaError {
  const head = /^([A-Z][A-Z0-9_]*):(?: |$)/.exec(text);
  const code = head?.[1] ?? ProtocolError.code;
  const message = text.slice(head?.[0].length ?? 0);
  const details = parseDetails(message);
  const type = head ? (BY_CODE.get(code) ?? KazahanaError) : ProtocolError;
  return new type(message, { code, details, cause: details['cause'] });
}

/** A longer text is not from a daemon: its details are not parsed. */
const MAX_TEXT = 64 << 10;

/** Reads the longest tail of the text that consists of details, in one pass. */
function parseDetails(text: string): Record<string, string> {
  if (text.length > MAX_TEXT) return {};
  const detail = /([a-z][a-z0-9_]*)=(?:"((?:[^"\\]|\\.)*)"|([^" ][^ ]*))(?: |$)/y;
  let details: Record<string, string> = {};
  for (let at = 0; at < text.length; ) {
    detail.lastIndex = at;
    const found = detail.exec(text);
    if (found) {
      const [, key, quoted, bare] = found;
      if (!Object.hasOwn(details, key!)) details[key!] = quoted === undefined ? bare! : unquote(quoted);
      at = detail.lastIndex;
      continue;
    }
    details = {};
    const space = text.indexOf(' ', at);
    if (space < 0) break;
    at = space + 1;
  }
  return details;
}

const ESCAPES: Record<string, string> = { a: '\x07', b: '\b', f: '\f', n: '\n', r: '\r', t: '\t', v: '\v' };

/** Undoes the escapes of a Go string, with which the daemon quotes values. */
function unquote(quoted: string): string {
  return quoted.replace(/\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))/g, (_, x: string | undefined, u: string | undefined, U: string | undefined, plain: string) => {
    const hex = x ?? u ?? U;
    if (hex === undefined) return ESCAPES[plain] ?? plain;
    const point = parseInt(hex, 16);
    return point <= 0x10ffff ? String.fromCodePoint(point) : '\uFFFD';
  });
}
