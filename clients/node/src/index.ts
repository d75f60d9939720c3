// The way of a call: Client.nextId takes a prefetched ID, or gives a request to Channel.call, where its time begins. The channel connects if
// it has to, sends the requests of a tick together, finds the caller of each answer by its msgid, repeats what a lost connection left
// without an answer, and ends what takes too long.
//
// To read the source, go from what knows of no client to the clients: errors and errortext; socket (where the daemon is, and who may
// connect); wire (values and messages as bytes); channel; prefetch; calls and client. That is the core. Beside it, lock, moment and pinned
// are about locks, other about the rest of the calls; system has the clocks, and testing the fake.
//
// Nothing here minds a fork: Node copies no process. A child, a worker of a cluster and a worker thread begin without connections and IDs.
export type { CallOptions, IdFormats, IdOptions, ServiceOptions } from './calls.js';
export { Client, type ClientOptions } from './client.js';
export * from './errors.js';
export * from './lockerrors.js';
export { ExternalCodec } from './external.js';
export type { Lock, LockOptions } from './lock.js';
export type { Id, Inspection, KazahanaClient, SequenceOptions, Status } from './other.js';
