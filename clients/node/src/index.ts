export type { CallOptions, Id, IdFormats, IdOptions, Inspection, ServiceOptions, Status } from './calls.js';
export { Client, type ClientOptions } from './client.js';
export * from './errors.js';
export * from './lockerrors.js';
export { ExternalCodec } from './external.js';
export type { Lock, LockOptions } from './lock.js';
export type { KazahanaClient, SequenceOptions } from './sequence.js';
