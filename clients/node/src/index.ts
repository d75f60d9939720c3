export type { CallOptions, Id, IdFormats, IdOptions, Inspection, ServiceOptions, ServiceStatus, Status } from './calls.js';
export { Client, type ClientOptions } from './client.js';
export {
  KazahanaError, ClockBackwardError, LeaseAcquisitionError, NoProviderError, RequestTimeoutError,
  TimestampOverflowError, UnknownServiceError, UnknownMethodError, InvalidParamsError, InvalidExternalIdError,
  PermissionDeniedError, OverloadedError, ShuttingDownError, StartFailedError, DaemonUnavailableError, ProtocolError, ClientClosedError, type ErrorInfo,
} from './errors.js';
export * from './lockerrors.js';
export { ExternalCodec } from './external.js';
export type { Lock, LockOptions } from './lock.js';
export type { KazahanaClient, SequenceOptions } from './sequence.js';
