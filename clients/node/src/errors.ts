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
    return Number(this.details[key]);
  }
}

/** The base of an error's class, with the class's code. */
export function coded(code: string): typeof KazahanaError {
  return class extends KazahanaError {
    static override readonly code = code;
  };
}

/** The host's clock was set back by more than the daemon's `max_backward`. Both figures are milliseconds. */
export class ClockBackwardError extends coded('CLOCK_BACKWARD') {
  readonly backwardMs = this.number('backward_ms');
  readonly limitMs = this.number('limit_ms');
}
/** The daemon holds no valid lease and may not make fallback IDs; `cause` says why. */
export class LeaseAcquisitionError extends coded('LEASE_ACQUISITION') {}
/** The daemon has no provider and may not make fallback IDs. */
export class NoProviderError extends coded('NO_PROVIDER') {}
/** The call's timeout ran out. `cause` is `clock`, `sequence` or `lease` if the daemon knows what it waited for. */
export class RequestTimeoutError extends coded('TIMEOUT') {
  readonly waitedMs = this.number('waited_ms');
}
/** The layout's time is used up. */
export class TimestampOverflowError extends coded('TIMESTAMP_OVERFLOW') {}
export class UnknownServiceError extends coded('UNKNOWN_SERVICE') {}
/** The daemon does not know the method: it is older than this package. */
export class UnknownMethodError extends coded('UNKNOWN_METHOD') {}
/** An argument is wrong; the message says what is allowed. */
export class InvalidParamsError extends coded('INVALID_PARAMS') {}
export class InvalidExternalIdError extends coded('INVALID_EXTERNAL_ID') {}
/** The daemon does not serve this user. */
export class PermissionDeniedError extends coded('PERMISSION_DENIED') {}
/** The daemon's limit of connections or waiting requests is reached. */
export class OverloadedError extends coded('OVERLOADED') {}
/** The daemon is stopping. Clients connect again by themselves while the timeout lasts. */
export class ShuttingDownError extends coded('SHUTTING_DOWN') {}
/** The daemon cannot start; the message says whether it tries again. */
export class StartFailedError extends coded('START_FAILED') {}
/** No daemon answers at the socket; `cause` is the system's error. */
export class DaemonUnavailableError extends coded('DAEMON_UNAVAILABLE') {}
/** The peer is not a kazahana daemon. */
export class ProtocolError extends coded('PROTOCOL_ERROR') {}
/** The client was closed. */
export class ClientClosedError extends coded('CLIENT_CLOSED') {}

const BY_CODE = new Map<string, typeof KazahanaError>();

/** Makes errors of the wire with these classes' codes errors of these classes. */
export function know(...types: (typeof KazahanaError)[]): void {
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
    const [whole, key = '', quoted, bare = ''] = detail.exec(text) ?? [];
    if (whole === undefined) {
      details = {};
      at = text.indexOf(' ', at) + 1 || text.length;
    } else {
      if (!Object.hasOwn(details, key)) details[key] = quoted === undefined ? bare : unquote(quoted);
      at += whole.length;
    }
  }
  return details;
}

const ESCAPES: Record<string, string> = { a: '\x07', b: '\b', f: '\f', n: '\n', r: '\r', t: '\t', v: '\v' };

/** Undoes the escapes of a Go string, with which the daemon quotes values. */
function unquote(quoted: string): string {
  return quoted.replace(/\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))/g, (_, ...[x, u, U, plain]: string[]) => {
    if (plain !== undefined) return ESCAPES[plain] ?? plain;
    const point = parseInt(x ?? u ?? U ?? '', 16);
    return point <= 0x10ffff ? String.fromCodePoint(point) : '\uFFFD';
  });
}
