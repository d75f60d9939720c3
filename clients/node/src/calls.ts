import { InvalidParamsError, ProtocolError } from './errors.js';
import type { Value } from './msgpack.js';
import { milliseconds } from './options.js';

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

/** The content of an ID. Times are Unix milliseconds. */
export interface Inspection {
  id: bigint;
  external: string;
  timestampMs: number;
  /** RFC 3339, UTC, with milliseconds. */
  time: string;
  machineId: number;
  sequence: number;
  kind: 'regular' | 'fallback';
  bitId: number;
  bitSeq: number;
  epochMs: number;
}

/** The output of `kazahanad status --json`, in camelCase. These fields are always there. */
export interface Status {
  version: string;
  features: string[];
  scope: string;
  [key: string]: unknown;
}

const MAX_ID = (1n << 63n) - 1n;
/** How much shorter the daemon's time limit is than the call's, a share and a few milliseconds at most: its error says more than ours. */
export const margin = (timeout: number): number => Math.min(timeout / 20, 100);

/** How long a call may take. */
export type Limits = CallOptions & { timeout: number };

/** What a request says, for the remaining milliseconds. */
export type Params = (remaining: number) => unknown[];

/** The calls about IDs. */
export abstract class Calls {
  readonly timeout: number;
  readonly service: string | undefined;

  constructor(options: { timeout?: number | undefined; service?: string | undefined }) {
    this.timeout = milliseconds('timeout', options.timeout ?? 10_000);
    this.service = options.service;
  }

  /** @internal */
  abstract request(method: string, params: Params, limits: Limits): Promise<Value>;

  abstract close(): Promise<void>;

  /** One ID, greater than every ID that this client got before (of the same service). */
  async nextId<F extends keyof IdFormats = 'int'>(options: IdOptions<F> = {}): Promise<IdFormats[F]> {
    const value = await this.call('NextID', (remaining) => [this.idParams(options, remaining)], options);
    return (isText(options) ? text(value) : identifier(value)) as IdFormats[F];
  }

  /**
   * A prefetched ID, if a fresh one is in memory, else undefined (always without `prefetch`): the way to an ID without a promise in a hot
   * loop, as `client.tryNextId() ?? (await client.nextId())`.
   */
  abstract tryNextId(): bigint | undefined;

  /** `count` IDs, ascending: 1 to 65,536. */
  async nextIds<F extends keyof IdFormats = 'int'>(count: number, options: IdOptions<F> = {}): Promise<IdFormats[F][]> {
    const values = await this.call('NextIDs', (remaining) => [count, this.idParams(options, remaining)], options);
    return (isText(options) ? list(values, count).map(text) : identifiers(values, count)) as IdFormats[F][];
  }

  /** @internal */
  protected idParams({ service = this.service, format, regularOnly }: IdOptions, remaining: number): object {
    const timeout_ms = Math.floor(Math.max(remaining - margin(remaining), 0));
    return { service, format, regular_only: regularOnly, timeout_ms };
  }

  /** Explains an ID: an integer, or a string that is decimal, hexadecimal with 0x, or external. */
  async inspect(id: Id, options: ServiceOptions = {}): Promise<Inspection> {
    const found = map(await this.about('Inspect', [exact(id)], options));
    return { ...found, id: integer(found['id']) } as Inspection;
  }

  /** Reports whether the ID was made while the daemon had no valid lease. */
  async isFallback(id: Id, options: ServiceOptions = {}): Promise<boolean> {
    return (await this.inspect(id, options)).kind === 'fallback';
  }

  /** The smallest and the largest ID that a time in [from, to) can have, for a range scan in a database. */
  async bounds(from: Date | number, to: Date | number, options: ServiceOptions = {}): Promise<[smallest: bigint, largest: bigint]> {
    const found = await this.about('Bounds', [Math.floor(Number(from)), Math.ceil(Number(to))], options);
    return list(found, 2).map(integer) as [bigint, bigint];
  }

  /** A UUID of version 7 (sortable by time) or 4 (random). Without a version, the daemon's configuration decides: 7 by default. */
  async uuid(version?: 4 | 7, options: CallOptions = {}): Promise<string> {
    return text(await this.call('UUID', () => (version === undefined ? [] : [version]), options));
  }

  async status(options: CallOptions = {}): Promise<Status> {
    return map(await this.call('Status', () => [], options)) as unknown as Status;
  }

  /** Resolves when the daemon has answered. */
  async ping(options: CallOptions = {}): Promise<void> {
    await this.call('Ping', () => [], options);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** @internal Calls a method that takes a service. */
  protected about(method: string, params: unknown[], options: ServiceOptions, more = {}): Promise<Value> {
    return this.call(method, () => [...params, { service: options.service ?? this.service, ...more }], options);
  }

  /** @internal */
  protected async call(method: string, params: Params, options: CallOptions): Promise<Value> {
    return this.request(method, params, this.limits(options));
  }

  /** @internal */
  limits({ timeout = this.timeout, signal }: CallOptions): Limits {
    return { timeout: milliseconds('timeout', timeout), signal };
  }
}

/** Whether the daemon answers with strings. */
function isText({ format }: IdOptions): boolean {
  return format === 'string' || format === 'external';
}

/** An ID in its form on the wire. */
export function exact(id: Id): Id {
  if (typeof id !== 'number' || Number.isSafeInteger(id)) return id;
  throw new InvalidParamsError(`an ID of ${id} may be rounded: write it as a bigint or a string`);
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

/** A map, with its keys, at every level, in camelCase: `machine_id` becomes `machineId`. */
export function map(value: Value | undefined): Record<string, Value> {
  if (!isMap(value)) throw due('a map', value);
  const nested = (member: Value): Value => (Array.isArray(member) ? member.map(nested) : isMap(member) ? map(member) : member);
  const spelled = (key: string) => key.replace(/_([a-z0-9])/g, (_, c: string) => c.toUpperCase());
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [spelled(key), nested(member)]));
}

function isMap(value: Value | undefined): value is { [key: string]: Value } {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Uint8Array);
}

function due(what: string, value: Value | undefined): ProtocolError {
  return new ProtocolError(`the daemon answered with ${Array.isArray(value) ? `an array of ${value.length}` : typeof value} where ${what} is due`);
}
