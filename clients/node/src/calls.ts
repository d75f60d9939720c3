import { InvalidParamsError, ProtocolError } from './errors.js';
import type { Value } from './wire.js';

export interface CallOptions {
  /** Time limit of the call over all its attempts, in milliseconds: 1 to 3,600,000. Default: the client's. */
  timeout?: number | undefined;
  /** Ends the call: it rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

export interface ServiceOptions extends CallOptions {
  /** The daemon's service (stream of IDs). Default: the client's, else the daemon's. */
  service?: string | undefined;
}

/** The forms of an ID, and their types. */
export interface IdFormats {
  /** The default. */
  int: bigint;
  /** Decimal. */
  string: string;
  /** The 11 characters of an external ID, made with the service's secret. */
  external: string;
}

export interface IdOptions<F extends keyof IdFormats = keyof IdFormats> extends ServiceOptions {
  format?: F | undefined;
  /** Fail instead of returning a fallback ID, which the daemon makes while it has no lease. */
  regularOnly?: boolean | undefined;
}

const MAX_ID = (1n << 63n) - 1n;
export const MAX_TIMEOUT_MS = 3_600_000;

/** The calls for IDs. */
export abstract class Calls {
  readonly timeout: number;
  readonly service: string | undefined;

  constructor(options: { timeout?: number | undefined; service?: string | undefined }) {
    this.timeout = milliseconds('timeout', options.timeout ?? 10_000);
    this.service = options.service;
  }

  /** @internal */
  abstract request(method: string, params: unknown[], options: CallOptions): Promise<Value>;

  abstract close(): Promise<void>;

  /** One ID, greater than every ID that this client got before (of the same service). */
  async nextId<F extends keyof IdFormats = 'int'>(options: IdOptions<F> = {}): Promise<IdFormats[F]> {
    const value = await this.request('NextID', [this.idParams(options)], options);
    return idsOf([value], options)[0]!;
  }

  /**
   * A prefetched ID, if a fresh one is in memory, else undefined (always without `prefetch`): the way to an ID without a promise in a hot
   * loop, as `client.tryNextId() ?? (await client.nextId())`.
   */
  abstract tryNextId(): bigint | undefined;

  /** `count` IDs, ascending: 1 to 65,536. */
  async nextIds<F extends keyof IdFormats = 'int'>(count: number, options: IdOptions<F> = {}): Promise<IdFormats[F][]> {
    const values = await this.request('NextIDs', [count, this.idParams(options)], options);
    return idsOf(list(values, count), options);
  }

  /** @internal The daemon's time limit is a little shorter than the call's: its error says more than ours. */
  protected idParams({ service = this.service, format, regularOnly, timeout = this.timeout }: IdOptions): object {
    const timeout_ms = Math.floor(timeout - Math.min(timeout / 20, 100));
    return { service, format, regular_only: regularOnly, timeout_ms };
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Returns a number of milliseconds, or throws if it is out of range. */
export function milliseconds(name: string, ms: number, least = 1, most = MAX_TIMEOUT_MS): number {
  if (ms >= least && ms <= most) return ms;
  throw new InvalidParamsError(`${name} of ${ms}: ${least} to ${most} milliseconds are right`);
}

/** The IDs of one answer, in the form that was asked for. */
export function idsOf<F extends keyof IdFormats>(values: Value[], { format }: { format?: F | undefined }): IdFormats[F][] {
  if (format === 'string' || format === 'external') return values.map((value) => text(value)) as IdFormats[F][];
  let last = 0n;
  return values.map((value) => (last = identifier(value, last))) as IdFormats[F][];
}

/** An ID: 1 to 2^63-1, and greater than the one before in the same answer. */
export function identifier(value: Value, last = 0n): bigint {
  const id = integer(value);
  if (id > last && id <= MAX_ID) return id;
  throw new ProtocolError(`the daemon answered with the ID ${id}: IDs are 1 to ${MAX_ID}, and ascend within an answer`);
}

export function integer(value: Value | undefined): bigint {
  if (typeof value === 'bigint') return value;
  return BigInt(checked(value, 'an integer', (found): found is number => Number.isSafeInteger(found)));
}

export const text = (value: Value | undefined) => checked(value, 'a string', (found) => typeof found === 'string');
export const list = (value: Value, count: number) => checked(value, `an array of ${count}`, (found): found is Value[] => Array.isArray(found) && found.length === count);

/** Returns what the daemon answered with, or throws if it is not what is due. */
export function checked<T extends Value>(value: Value | undefined, what: string, isRight: (value: Value | undefined) => value is T): T {
  if (isRight(value)) return value;
  throw new ProtocolError(`the daemon answered with ${Array.isArray(value) ? `an array of ${value.length}` : typeof value} where ${what} is due`);
}
