import { randomUUID } from 'node:crypto';
import { integer, milliseconds, text, type CallOptions } from './calls.js';
import type { KazahanaError } from './errors.js';
import { known } from './errortext.js';
import * as lockErrors from './lockerrors.js';
import { LockExpiredError, LockLostError, LockNotFoundError, LockNotOwnedError, RequestIdReusedError } from './lockerrors.js';
import { LONG_AGO, Moment } from './moment.js';
import { map } from './other.js';
import { PinnedChannel } from './pinned.js';
import { clearTimer, setTimer, steadyNow } from './system.js';
import { encodeCall, type Value } from './wire.js';

export interface LockOptions extends CallOptions {
  /** Milliseconds for which the lock stays taken after a crash of its holder. Default 30,000. */
  ttl?: number | undefined;
  /** Milliseconds to wait while another owner holds the lock. Default 0: LockHeldError at once. `timeout` comes on top. */
  wait?: number | undefined;
}

/** A lock that this process holds, until release() or `lost`. */
export interface Lock extends AsyncDisposable {
  readonly key: string;
  /** The fencing token: greater than that of every earlier holder. Send it to the resource that the lock protects, to refuse late writers. */
  readonly token: bigint;
  readonly leaseId: string;
  readonly ownerId: string;
  /** Aborted, with a LockLostError, when the lock can no longer be relied upon. */
  readonly lost: AbortSignal;
  /** Gives the lock back. It also resolves if the lock was lost: check `lost`. */
  release(): Promise<void>;
}

known.push(...Object.values(lockErrors));

interface Lease {
  leaseId: string;
  ownerId: string;
  fencingToken: Value;
  state: string;
  expiresInMs: Value;
}

/** Parts of the ttl: how often a held lock is checked, and how soon again after a failure. */
const CHECK = 1 / 3;
const RETRY = 1 / 10;
/** How often a lock's end is looked at: a timer stands still while the machine is suspended. */
const LOOK_MS = 1000;
/** Takes a lock on a connection of its own, whose end ends the wait: the daemon keeps no lock for a caller who gave up. */
export async function acquire(key: string, options: LockOptions & { timeout: number }, socket: string | undefined, isSingle: boolean): Promise<Lock> {
  const { timeout, signal } = options;
  const ttl = milliseconds('ttl', options.ttl ?? 30_000);
  const wait = milliseconds('wait', options.wait ?? 0, 0);
  milliseconds('timeout', timeout);
  const own = new PinnedChannel(socket, isSingle);
  const until = steadyNow() + wait + timeout;
  const left = () => Math.max(until - steadyNow(), 1);
  const take = () => {
    const request = { ttl_ms: ttl, wait_ms: Math.floor(wait), request_id: randomUUID(), hold: 'connection' };
    return own.call(encodeCall('Lock.Acquire', [key, request]), left(), signal);
  };
  try {
    const taken = await take().catch((error: unknown) => {
      // A first attempt was granted, and released with its connection.
      if (error instanceof RequestIdReusedError) return take();
      throw error;
    });
    const lock = new HeldLock(key, ttl, taken, own);
    await lock.begin(left(), signal);
    return lock;
  } catch (error) {
    own.close();
    throw error;
  }
}

class HeldLock implements Lock {
  readonly token: bigint;
  readonly leaseId: string;
  readonly ownerId: string;
  private readonly losing = new AbortController();
  private until = LONG_AGO; // the lock certainly lives until then
  private timer: NodeJS.Timeout | undefined;
  private releasing: Promise<void> | undefined;

  constructor(
    readonly key: string,
    private readonly ttl: number,
    taken: Value,
    private readonly own: PinnedChannel,
  ) {
    const lease = map(taken) as unknown as Lease;
    this.token = integer(lease.fencingToken);
    this.leaseId = text(lease.leaseId);
    this.ownerId = text(lease.ownerId);
    own.pin((error) => this.lose('the connection to the daemon was lost', error));
    own.onMessage = (method, params) => {
      if (method !== 'Lock.Lost') return;
      const lost = map(Array.isArray(params) ? params[0] : undefined);
      if (lost['leaseId'] === this.leaseId) this.lose(`the daemon says: ${text(lost['reason'] ?? 'lost')}`);
    };
  }

  get lost(): AbortSignal {
    return this.losing.signal;
  }

  /** Gets the remaining time of the lock (the acquire may have waited), and subscribes to its loss. */
  async begin(timeout: number, signal: AbortSignal | undefined): Promise<void> {
    await this.ask('Lock.Watch', { lease_id: this.leaseId }, timeout, signal);
    this.checkIn(this.ttl * CHECK);
  }

  release(): Promise<void> {
    return (this.releasing ??= this.giveBack());
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  private async giveBack(): Promise<void> {
    clearTimer(this.timer);
    if (this.lost.aborted) return;
    const params = [this.key, { lease_id: this.leaseId, request_id: randomUUID() }];
    try {
      await this.own.call(encodeCall('Lock.Release', params), Math.max(Math.min(this.until.left, this.ttl), 1000));
    } catch (error) {
      if (isGone(error)) this.lose(error.message, error);
    } finally {
      this.own.close(); // which releases the lock, whatever became of the call
    }
  }

  /** Calls a method that answers with the lock, and notes the lock's earliest end, counted from before the request. */
  private async ask(method: string, options: object | undefined, timeout: number, signal?: AbortSignal): Promise<void> {
    const sent = new Moment();
    const params = options ? [this.key, options] : [this.key];
    let answer: Value;
    try {
      answer = await this.own.call(encodeCall(method, params), timeout, signal);
    } catch (error) {
      if (isGone(error)) this.lose(error.message, error);
      throw error;
    }
    const lease = map(answer) as unknown as Lease;
    const left = integer(lease.expiresInMs);
    if (lease.leaseId !== this.leaseId || lease.state !== 'ACTIVE') this.lose(lease.leaseId === this.leaseId ? `it is ${text(lease.state)}` : 'somebody else holds it');
    this.until = sent.plus(Number(left));
    this.lost.throwIfAborted();
  }

  /** Checks the lock after a pause, or when its time ran out. */
  private checkIn(pause: number): void {
    clearTimer(this.timer);
    if (this.lost.aborted || this.releasing) return;
    const next = Math.min(LOOK_MS, this.until.left, pause);
    this.timer = setTimer(() => {
      if (pause <= next || this.until.left <= 0) void this.check();
      else this.checkIn(pause - next);
    }, next).unref();
  }

  private async check(): Promise<void> {
    // After a long pause of this process, still ask whether the daemon has renewed the lock.
    const { left } = this.until;
    try {
      await this.ask('Lock.Get', undefined, left > 0 ? Math.max(Math.min(left, this.ttl * CHECK), 1) : this.ttl * CHECK);
      this.checkIn(this.ttl * CHECK);
    } catch (error) {
      if (this.until.left <= 0) this.lose('the daemon does not tell whether it lives', error);
      else this.checkIn(this.ttl * RETRY);
    }
  }

  private lose(why: string, cause?: unknown): void {
    if (this.losing.signal.aborted || (this.releasing && !isGone(cause))) return;
    clearTimer(this.timer);
    this.losing.abort(new LockLostError(`the lock ${JSON.stringify(this.key)} is lost: ${why}`, { cause }));
    this.own.close();
  }
}

/** Reports whether the error means that the lock is lost. */
function isGone(error: unknown): error is KazahanaError {
  return error instanceof LockNotOwnedError || error instanceof LockExpiredError || error instanceof LockNotFoundError;
}
