export type { Calls as KazahanaClient, CallOptions, Id, IdOptions, Inspection, SequenceOptions, ServiceOptions, ServiceStatus, Status } from './calls.js';
export { Client, type ClientOptions } from './client.js';
export * from './errors.js';
export { ExternalCodec } from './external.js';
export type { PlacementEvent, PlacementEventName, PlacementEventOptions, PlacementEvents } from './events.js';
export type { Lock, LockOptions } from './lock.js';
export type { Activation, Executor, PlacementSnapshot, PlacementSnapshotOptions, RegisterOptions, Resolution, ResolveOptions } from './placement.js';
