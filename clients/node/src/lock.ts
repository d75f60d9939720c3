import { CALL_OPTIONS, integer, map, text, type CallOptions } from './calls.js';
import type { Channel } from './channel.js';
import type { KazahanaError } from './errors.js';
import { know } from './errortext.js';
import * as lockErrors from './lockerrors.js';
import { LockExpiredError, LockLostError, LockNotFoundError, LockNotOwnedError, RequestIdReusedError } from './lockerrors.js';
import type { Value } from './msgpack.js';
import { known, milliseconds } from './options.js';
import { PinnedChannel } from './pinned.js';
import { encodeCall } from './protocol.js';
import { newRequestId } from './sequence.js';

export interface LockOptions extends CallOptions {
  /** Milliseconds for which the lock stays taken after a crash of its holder. Default 30,000. */
  ttl?: number | undefined;
  /** Milliseconds to wait while another owner holds the lock. Default 0: LockHeldError at once. `timeout` comes on top. */
  wait?: number | undefined;
  /**
   * `connection`, the default: the daemon renews the lock while this process keeps a connection of its own for it, and releases it when
   * that closes. `none`: the lock ends after ttl, unless renew() is called.
   */
  hold?: 'connection' | 'none' | undefined;
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
  /** Makes the lock last another ttl from now. Only needed with `hold: 'none'`. */
  renew(ttl?: number): Promise<void>;
  /** Gives the lock back. It also resolves if the lock was lost: check `lost`. */
  release(): Promise<void>;
}

know(lockErrors);

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

export const LOCK_OPTIONS: readonly (keyof LockOptions)[] = [...CALL_OPTIONS, 'ttl', 'wait', 'hold'];

/** Takes a lock; `shared` is used unless the lock needs a connection of its own. */
export async function acquire(key: string, options: LockOptions & { timeout: number }, socket: string | undefined, shared: Channel): Promise<Lock> {
  const { timeout, signal, hold = 'connection' } = known(options, LOCK_OPTIONS);
  const ttl = milliseconds('ttl', options.ttl ?? 30_000);
  const wait = milliseconds('wait', options.wait ?? 0, 0);
  milliseconds('timeout', timeout);
  const own = hold === 'connection' ? new PinnedChannel(socket, shared.isSingle) : undefined;
  const channel = own ?? shared;
  const until = performance.now() + wait + timeout;
  const take = (requestId: string) => {
    const params = (remaining: number) => [
      key,
      { ttl_ms: ttl, wait_ms: Math.floor(Math.min(Math.max(remaining - timeout, 0), wait)), request_id: requestId, hold: own && hold },
    ];
    return channel.call((remaining) => encodeCall('Lock.Acquire', params(remaining)), Math.max(until - performance.now(), 1), signal);
  };
  try {
    const taken = await take(newRequestId()).catch((error: unknown) => {
      // A first attempt was granted, and released with its connection.
      if (error instanceof RequestIdReusedError) return take(newRequestId());
      throw error;
    });
    const lock = new HeldLock(key, ttl, taken, channel, own);
    await lock.begin(Math.max(until - performance.now(), 1), signal);
    return lock;
  } catch (error) {
    own?.close();
    throw error;
  }
}

class HeldLock implements Lock {
  readonly token: bigint;
  readonly leaseId: string;
  readonly ownerId: string;
  private readonly losing = new AbortController();
  private until = 0; // in performance.now(): the lock certainly lives until then
  private timer: NodeJS.Timeout | undefined;
  private releasing: Promise<void> | undefined;

  constructor(
    readonly key: string,
    private ttl: number,
    taken: Value,
    private readonly channel: Channel,
    private readonly own: PinnedChannel | undefined,
  ) {
    const lease = map(taken) as unknown as Lease;
    this.token = integer(lease.fencingToken);
    this.leaseId = text(lease.leaseId);
    this.ownerId = text(lease.ownerId);
    if (own) {
      own.pin((error) => this.lose('the connection to the daemon was lost', error));
      own.onMessage = (method, params) => {
        if (method !== 'Lock.Lost') return;
        const lost = map(Array.isArray(params) ? params[0] : undefined);
        if (lost['leaseId'] === this.leaseId) this.lose(`the daemon says: ${text(lost['reason'] ?? 'lost')}`);
      };
    }
  }

  get lost(): AbortSignal {
    return this.losing.signal;
  }

  /** Gets the remaining time of the lock (the acquire may have waited), and subscribes to its loss. */
  async begin(timeout: number, signal: AbortSignal | undefined): Promise<void> {
    await this.ask(this.own ? 'Lock.Watch' : 'Lock.Get', this.own ? { lease_id: this.leaseId } : undefined, timeout, signal);
    this.checkIn(this.ttl * CHECK);
  }

  async renew(ttl = this.ttl): Promise<void> {
    this.ttl = milliseconds('ttl', ttl);
    this.lost.throwIfAborted();
    await this.ask('Lock.Renew', { ttl_ms: ttl, lease_id: this.leaseId, request_id: newRequestId() }, Math.max(this.until - performance.now(), 1));
    this.checkIn(this.ttl * CHECK);
  }

  release(): Promise<void> {
    return (this.releasing ??= this.giveBack());
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  private async giveBack(): Promise<void> {
    clearTimeout(this.timer);
    if (this.lost.aborted) return;
    const params = [this.key, { lease_id: this.leaseId, request_id: newRequestId() }];
    try {
      await this.channel.call(() => encodeCall('Lock.Release', params), Math.max(Math.min(this.until - performance.now(), this.ttl), 1000));
    } catch (error) {
      if (isGone(error)) this.lose(error.message, error);
      // The end of the connection has released the lock, or its ttl will.
      else if (!this.own) throw error;
    } finally {
      this.own?.close();
    }
  }

  /** Calls a method that answers with the lock, and notes the lock's earliest end, counted from before the request. */
  private async ask(method: string, options: object | undefined, timeout: number, signal?: AbortSignal): Promise<void> {
    const sent = performance.now();
    const params = options ? [this.key, options] : [this.key];
    let answer: Value;
    try {
      answer = await this.channel.call(() => encodeCall(method, params), timeout, signal);
    } catch (error) {
      if (isGone(error)) this.lose(error.message, error);
      throw error;
    }
    const lease = map(answer) as unknown as Lease;
    const left = integer(lease.expiresInMs);
    if (lease.leaseId !== this.leaseId || lease.state !== 'ACTIVE') this.lose(lease.leaseId === this.leaseId ? `it is ${text(lease.state)}` : 'somebody else holds it');
    this.until = sent + Number(left);
    this.lost.throwIfAborted();
  }

  /** Checks a lock that the daemon renews; any other lock ends at its time. */
  private checkIn(pause: number): void {
    clearTimeout(this.timer);
    if (this.lost.aborted || this.releasing) return;
    const left = Math.max(this.until - performance.now(), 0);
    this.timer = setTimeout(() => {
      if (this.own) void this.check();
      else this.lose('its time ran out');
    }, this.own ? Math.min(pause, left) : left).unref();
  }

  private async check(): Promise<void> {
    // After a long pause of this process, still ask whether the daemon has renewed the lock.
    const left = this.until - performance.now();
    try {
      await this.ask('Lock.Get', undefined, left > 0 ? Math.max(Math.min(left, this.ttl * CHECK), 1) : this.ttl * CHECK);
      this.checkIn(this.ttl * CHECK);
    } catch (error) {
      if (performance.now() >= this.until) this.lose('the daemon does not tell whether it lives', error);
      else this.checkIn(this.ttl * RETRY);
    }
  }

  private lose(why: string, cause?: unknown): void {
    if (this.lost.aborted || (this.releasing && !isGone(cause))) return;
    clearTimeout(this.timer);
    this.losing.abort(new LockLostError(`the lock ${JSON.stringify(this.key)} is lost: ${why}`, { cause }));
    this.own?.close();
  }
}

/** Reports whether the error means that the lock is lost. */
function isGone(error: unknown): error is KazahanaError {
  return error instanceof LockNotOwnedError || error instanceof LockExpiredError || error instanceof LockNotFoundError;
}
