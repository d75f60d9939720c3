export type { Calls as KazahanaClient, CallOptions, IdOptions, Inspection, SequenceOptions, ServiceOptions, ServiceStatus, Status } from './calls.js';
export { Client, type ClientOptions } from './client.js';
export * from './errors.js';
export { ExternalCodec } from './external.js';
export type { Lock, LockOptions } from './lock.js';
