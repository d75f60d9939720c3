import { InvalidParamsError, ProtocolError } from './errors.js';
import type { Value } from './msgpack.js';

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

/** An ID in one of its forms. A number must be below 2^53: numbers that may be rounded are refused. */
export type Id = bigint | number | string;

const MAX_ID = (1n << 63n) - 1n;
export const MAX_TIMEOUT_MS = 3_600_000;
/** How much shorter the daemon's time limit is than the call's, a share and a few milliseconds at most: its error says more than ours. */
export const margin = (timeout: number): number => Math.min(timeout / 20, 100);

/** How long a call may take. */
export type Limits = CallOptions & { timeout: number };

/** The calls for IDs. */
export abstract class Calls {
  readonly timeout: number;
  readonly service: string | undefined;

  constructor(options: { timeout?: number | undefined; service?: string | undefined }) {
    this.timeout = milliseconds('timeout', options.timeout ?? 10_000);
    this.service = options.service;
  }

  /** @internal */
  abstract request(method: string, params: unknown[], limits: Limits): Promise<Value>;

  abstract close(): Promise<void>;

  /** One ID, greater than every ID that this client got before (of the same service). */
  async nextId<F extends keyof IdFormats = 'int'>(options: IdOptions<F> = {}): Promise<IdFormats[F]> {
    const value = await this.call('NextID', [this.idParams(options)], options);
    return (isText(options) ? text(value) : identifier(value)) as IdFormats[F];
  }

  /**
   * A prefetched ID, if a fresh one is in memory, else undefined (always without `prefetch`): the way to an ID without a promise in a hot
   * loop, as `client.tryNextId() ?? (await client.nextId())`.
   */
  abstract tryNextId(): bigint | undefined;

  /** `count` IDs, ascending: 1 to 65,536. */
  async nextIds<F extends keyof IdFormats = 'int'>(count: number, options: IdOptions<F> = {}): Promise<IdFormats[F][]> {
    const values = await this.call('NextIDs', [count, this.idParams(options)], options);
    return (isText(options) ? list(values, count).map(text) : identifiers(values, count)) as IdFormats[F][];
  }

  /** @internal */
  protected idParams({ service = this.service, format, regularOnly, timeout = this.timeout }: IdOptions): object {
    const timeout_ms = Math.floor(timeout - margin(timeout));
    return { service, format, regular_only: regularOnly, timeout_ms };
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** @internal */
  protected async call(method: string, params: unknown[], options: CallOptions): Promise<Value> {
    return this.request(method, params, this.limits(options));
  }

  /** @internal */
  limits({ timeout = this.timeout, signal }: CallOptions): Limits {
    return { timeout: milliseconds('timeout', timeout), signal };
  }
}

/** Returns a number of milliseconds, or throws if it is out of range. */
export function milliseconds(name: string, ms: number, least = 1, most = MAX_TIMEOUT_MS): number {
  if (ms >= least && ms <= most) return ms;
  throw new InvalidParamsError(`${name} of ${ms}: ${least} to ${most} milliseconds are right`);
}

/** Whether the daemon answers with strings. */
function isText({ format }: IdOptions): boolean {
  return format === 'string' || format === 'external';
}

/** An ID: 1 to 2^63-1, and greater than the one before in the same answer. */
export function identifier(value: Value, last = 0n): bigint {
  const id = integer(value);
  if (id > last && id <= MAX_ID) return id;
  throw new ProtocolError(`the daemon answered with the ID ${id}: IDs are 1 to ${MAX_ID}, and ascend within an answer`);
}

export function identifiers(values: Value, count: number): bigint[] {
  let last = 0n;
  return list(values, count).map((value) => (last = identifier(value, last)));
}

export function integer(value: Value | undefined): bigint {
  if (typeof value === 'bigint') return value;
  if (typeof value === 'number' && Number.isSafeInteger(value)) return BigInt(value);
  throw due('an integer', value);
}

export function text(value: Value | undefined): string {
  if (typeof value === 'string') return value;
  throw due('a string', value);
}

export function list(value: Value, count: number): Value[] {
  if (Array.isArray(value) && value.length === count) return value;
  throw due(`an array of ${count}`, value);
}

export function due(what: string, value: Value | undefined): ProtocolError {
  return new ProtocolError(`the daemon answered with ${Array.isArray(value) ? `an array of ${value.length}` : typeof value} where ${what} is due`);
}
