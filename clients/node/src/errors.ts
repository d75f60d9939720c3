/** The base class of every error of this package. Errors with a code that this version does not know are plain KazahanaErrors. */
export class KazahanaError extends Error {
  static readonly code: string = '';
  /** Stable, for programs; each class has its own. */
  readonly code: string;
  /** Facts from the daemon, as text, by its own names (`backward_ms`). */
  readonly details: Readonly<Record<string, string>>;

  constructor(message: string, { code, details = {}, cause }: { code?: string; details?: Readonly<Record<string, string>>; cause?: unknown } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.code = code ?? new.target.code;
    this.details = details;
  }

  /** @internal The base of an error's class, with the class's code. */
  static coded(code: string): typeof KazahanaError {
    return class extends KazahanaError {
      static override readonly code = code;
    };
  }
}

/** The host's clock was set back by more than the daemon's `max_backward`. Both figures are milliseconds. */
export class ClockBackwardError extends KazahanaError.coded('CLOCK_BACKWARD') {
  readonly backwardMs = Number(this.details['backward_ms']);
  readonly limitMs = Number(this.details['limit_ms']);
}
/** The daemon holds no valid lease and may not make fallback IDs; `cause` says why. */
export class LeaseAcquisitionError extends KazahanaError.coded('LEASE_ACQUISITION') {}
/** The daemon has no provider and may not make fallback IDs. */
export class NoProviderError extends KazahanaError.coded('NO_PROVIDER') {}
/** The call's timeout ran out. `cause` is `clock`, `sequence` or `lease` if the daemon knows what it waited for. */
export class RequestTimeoutError extends KazahanaError.coded('TIMEOUT') {
  readonly waitedMs = Number(this.details['waited_ms']);
}
/** The layout's time is used up. */
export class TimestampOverflowError extends KazahanaError.coded('TIMESTAMP_OVERFLOW') {}
export class UnknownServiceError extends KazahanaError.coded('UNKNOWN_SERVICE') {}
/** The daemon does not know the method: it is older than this package. */
export class UnknownMethodError extends KazahanaError.coded('UNKNOWN_METHOD') {}
/** An argument is wrong; the message says which values are allowed. */
export class InvalidParamsError extends KazahanaError.coded('INVALID_PARAMS') {}
export class InvalidExternalIdError extends KazahanaError.coded('INVALID_EXTERNAL_ID') {}
/** The daemon does not serve this user. */
export class PermissionDeniedError extends KazahanaError.coded('PERMISSION_DENIED') {}
/** The daemon's limit of connections or waiting requests is reached. */
export class OverloadedError extends KazahanaError.coded('OVERLOADED') {}
/** The daemon is stopping. Clients connect again by themselves while the timeout lasts. */
export class ShuttingDownError extends KazahanaError.coded('SHUTTING_DOWN') {}
/** The daemon cannot start; the message says whether it tries again. */
export class StartFailedError extends KazahanaError.coded('START_FAILED') {}
/** No daemon answers at the socket; `cause` is the system's error. */
export class DaemonUnavailableError extends KazahanaError.coded('DAEMON_UNAVAILABLE') {}
/** The peer is not a kazahana daemon. */
export class ProtocolError extends KazahanaError.coded('PROTOCOL_ERROR') {}
/** The client was closed. */
export class ClientClosedError extends KazahanaError.coded('CLIENT_CLOSED') {}
