import { milliseconds, type CallOptions } from './calls.js';
import { ClientClosedError, InvalidParamsError, UnknownMethodError } from './errors.js';
import { ExternalCodec } from './external.js';
import type { Lock, LockOptions } from './lock.js';
import { LockHeldError, LockLostError } from './lockerrors.js';
import { KazahanaClient } from './other.js';
import type { Value } from './wire.js';

const EPOCH_MS = Date.UTC(2026, 0, 1);
/** The default layout. */
const BIT_TS = 41;
const BIT_ID = 14;
const BIT_SEQ = 8;
const LOW_BITS = BigInt(BIT_ID + BIT_SEQ);
const FALLBACK_BIT = 1n << (LOW_BITS - 1n);
const MACHINE_ID = 1;

export interface FakeOptions {
  service?: string | undefined;
  timeout?: number | undefined;
  /** When the first ID seems to be made, in Unix ms; 256 IDs share a millisecond. Default 2026-01-02T00:00:00Z. */
  start?: number | undefined;
  /** Make fallback IDs, as a daemon without a lease does. */
  fallback?: boolean | undefined;
  /** The secret for external IDs. Default: none. */
  secret?: string | undefined;
}

type Options = Record<string, Value>;

/**
 * A Client for unit tests. It needs no daemon and gives the same answers in every run: IDs of the default layout, and sequences and locks
 * that count from 1. It never waits: a held lock is a LockHeldError even with `wait`.
 */
export class FakeClient extends KazahanaClient {
  /** The methods that were asked for, in order, by their names on the wire. */
  readonly calls: string[] = [];
  private readonly codec: ExternalCodec;
  /** @internal */
  readonly start: number;
  private readonly lowest: bigint;
  private readonly failures: Error[] = [];
  private readonly sequences = new Map<string, bigint>();
  private readonly locks = new Map<string, AbortController>();
  private count = 0;
  private uuids = 0;
  private tokens = 0n;
  private isClosed = false;

  constructor(options: FakeOptions = {}) {
    super(options);
    this.codec = options.secret === undefined ? ExternalCodec.plain() : new ExternalCodec(options.secret);
    this.start = options.start ?? EPOCH_MS + 86_400_000;
    this.lowest = (options.fallback ? FALLBACK_BIT : 0n) | BigInt(MACHINE_ID << BIT_SEQ);
  }

  /** Makes the next `times` calls reject with the error, or throw it where they are synchronous. */
  fail(error: Error, times = 1): void {
    for (let i = 0; i < times; i++) this.failures.push(error);
  }

  /** Makes the holder of the lock lose it. */
  loseLock(key: string): void {
    this.locks.get(key)?.abort(new LockLostError(`the lock ${JSON.stringify(key)} is lost: the test says so`));
    this.locks.delete(key);
  }

  tryNextId(): bigint {
    this.begin('NextID', undefined);
    return this.id();
  }

  async lock(key: string, options: LockOptions = {}): Promise<Lock> {
    this.begin('Lock.Acquire', options.signal);
    if (this.locks.has(key)) throw new LockHeldError(`${JSON.stringify(key)} is held`, { details: { retry_after_ms: '1000', owner: 'fake' } });
    const losing = new AbortController();
    this.locks.set(key, losing);
    const token = ++this.tokens;
    const release = () => {
      if (this.locks.get(key) === losing) this.locks.delete(key);
      return Promise.resolve();
    };
    return { key, token, leaseId: `fake-${token}`, ownerId: 'fake', lost: losing.signal, release, [Symbol.asyncDispose]: release };
  }

  close(): Promise<void> {
    this.isClosed = true;
    return Promise.resolve();
  }

  /** @internal */
  async request(method: string, params: unknown[], { timeout = this.timeout, signal }: CallOptions): Promise<Value> {
    milliseconds('timeout', timeout);
    this.begin(method, signal);
    return this.answer(method, params as Value[]);
  }

  /** @internal Notes a request, and fails it if the test wants that. */
  begin(method: string, signal: AbortSignal | undefined): void {
    this.calls.push(method);
    if (this.isClosed) throw new ClientClosedError('the client is closed');
    signal?.throwIfAborted();
    const failure = this.failures.shift();
    if (failure) throw failure;
  }

  private answer(method: string, params: Value[]): Value | Promise<Value> {
    switch (method) {
      case 'NextID': return this.spelled(params[0] as Options);
      case 'NextIDs': return Array.from({ length: counted(params[0]!) }, () => this.spelled(params[1] as Options));
      case 'Inspect': return this.explain(params[0]!);
      case 'Bounds': return this.boundsOf(Number(params[0]), Number(params[1]));
      case 'ToExternal': return this.codec.encode(this.read(params[0]!));
      case 'ToInternal': return this.codec.decode(params[0] as string);
      case 'UUID': return `00000000-0000-${String(params[0] ?? 7)}000-8000-${(++this.uuids).toString(16).padStart(12, '0')}`;
      case 'Status': return { version: 'fake', features: ['ids', 'uuid', 'locks', 'sequences', 'placement'], socket: '', provider: 'memory:', scope: 'host', mode: 'regular', services: [] };
      case 'Ping': return 'pong';
      case 'Sequence.Next': return this.values(params[0] as string, 1)[0]!;
      case 'Sequence.NextBatch': return this.values(params[0] as string, counted(params[1]!));
      default: throw new UnknownMethodError(`there is no method ${method}`);
    }
  }

  private id(): bigint {
    const n = this.count++;
    const perMs = 1 << BIT_SEQ;
    const time = this.start - EPOCH_MS + Math.floor(n / perMs);
    return (BigInt(time) << LOW_BITS) | this.lowest | BigInt(n % perMs);
  }

  private spelled(options: Options): Value {
    const id = this.id();
    return options['format'] === 'string' ? String(id) : options['format'] === 'external' ? this.codec.encode(id) : id;
  }

  private read(id: Value): bigint {
    if (typeof id !== 'string') return BigInt(id as bigint);
    return /^(0x[0-9a-f]+|\d+)$/i.test(id) ? BigInt(id) : this.codec.decode(id);
  }

  private explain(spelling: Value): Value {
    const id = this.read(spelling);
    const time = Number(id >> LOW_BITS) + EPOCH_MS;
    const low = Number(id & (FALLBACK_BIT - 1n));
    return {
      id, external: this.codec.encode(id), timestamp_ms: time, time: new Date(time).toISOString(), machine_id: low >> BIT_SEQ,
      sequence: low & ((1 << BIT_SEQ) - 1), kind: id & FALLBACK_BIT ? 'fallback' : 'regular', bit_id: BIT_ID, bit_seq: BIT_SEQ, epoch_ms: EPOCH_MS,
    };
  }

  private boundsOf(from: number, to: number): bigint[] {
    const first = Math.max(from - EPOCH_MS, 0);
    const last = Math.min(to - EPOCH_MS, 2 ** BIT_TS);
    if (!(to > from && last > first)) throw new InvalidParamsError('the interval holds no ID');
    return [BigInt(first) << LOW_BITS, (BigInt(last) << LOW_BITS) - 1n];
  }

  private values(key: string, count: number): bigint[] {
    const last = this.sequences.get(key) ?? 0n;
    this.sequences.set(key, last + BigInt(count));
    return Array.from({ length: count }, (_, i) => last + BigInt(i + 1));
  }
}

function counted(count: Value): number {
  if (Number.isInteger(count) && Number(count) >= 1 && Number(count) <= 65_536) return count as number;
  throw new InvalidParamsError(`a count of ${String(count)} is out of range: 1 to 65536`);
}
