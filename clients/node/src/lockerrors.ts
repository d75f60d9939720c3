import { KazahanaError } from './errors.js';

/** Another owner holds the lock. */
export class LockHeldError extends KazahanaError.coded('LOCK_HELD') {
  readonly retryAfterMs = Number(this.details['retry_after_ms']);
  readonly owner: string | undefined = this.details['owner'];
}
export class LockNotOwnedError extends KazahanaError.coded('LOCK_NOT_OWNED') {}
export class LockExpiredError extends KazahanaError.coded('LOCK_EXPIRED') {}
export class LockNotFoundError extends KazahanaError.coded('LOCK_NOT_FOUND') {}
/** The store may have forgotten locks: none is granted until `untilMs` (Unix ms). */
export class LockFencedError extends KazahanaError.coded('LOCK_FENCED') {
  readonly untilMs = Number(this.details['until_ms']);
}
/** A lock was lost while it was held: the reason of its `lost` signal. */
export class LockLostError extends KazahanaError.coded('LOCK_LOST') {}
/** The sequence has reached its largest value. */
export class SequenceExhaustedError extends KazahanaError.coded('SEQUENCE_EXHAUSTED') {
  readonly maxValue: string | undefined = this.details['max_value'];
}
/** The store may have forgotten values: none is given until `untilMs` (Unix ms). */
export class SequenceFencedError extends KazahanaError.coded('SEQUENCE_FENCED') {
  readonly untilMs = Number(this.details['until_ms']);
}
/** The store of locks and sequences does not answer the daemon. */
export class StoreUnavailableError extends KazahanaError.coded('STORE_UNAVAILABLE') {}
/** The store has no room for a new key. `setting` is the daemon's limit: max_keys, max_disk, or undefined where the disk is full. */
export class StoreFullError extends KazahanaError.coded('STORE_FULL') {
  readonly setting: string | undefined = this.details['setting'];
  readonly limit = Number(this.details['limit']);
}
/** The daemon keeps no locks and sequences. */
export class NoStoreError extends KazahanaError.coded('NO_STORE') {}
export class RequestIdReusedError extends KazahanaError.coded('REQUEST_ID_REUSED') {}
