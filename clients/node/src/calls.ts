import { randomUUID } from 'node:crypto';
import { InvalidParamsError, ProtocolError } from './errors.js';
import { encodeCall } from './protocol.js';
import type { Body } from './channel.js';
import type { Value } from './msgpack.js';
import { known } from './options.js';
import type { Lock, LockOptions } from './lock.js';

/** A UUID of version 7: its time tells a store whether it may have forgotten the request. */
export function requestId(): string {
  const time = Date.now().toString(16).padStart(12, '0');
  return `${time.slice(0, 8)}-${time.slice(8)}-7${randomUUID().slice(15)}`;
}

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

export interface IdOptions extends ServiceOptions {
  /**
   * `int`, the default: bigint. `number`: a number, where the daemon's layout is `js`; an ID of 2^53 or more is an InvalidParamsError.
   * `string`: decimal. `external`: the 11 characters of an external ID, with the service's secret.
   */
  format?: 'int' | 'number' | 'string' | 'external' | undefined;
  /** Fail instead of returning a fallback ID, which the daemon makes while it has no lease. */
  regularOnly?: boolean | undefined;
}
type TextOptions = IdOptions & { format: 'string' | 'external' };
type NumberOptions = IdOptions & { format: 'number' };
type IntOptions = IdOptions & { format?: 'int' | undefined };

/** An ID in one of its forms. A number must be below 2^53: numbers that may be rounded are refused. */
export type Id = bigint | number | string;

export interface SequenceOptions extends CallOptions {
  /** Repeating a call with the same request ID gives the same values. Default: a new one for each call, kept over its own retries. */
  requestId?: string | undefined;
}

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

export interface ServiceStatus {
  service: string;
  mode: string;
  fallback: string;
  leases: { machineId: number; expiredMs: number; remainingMs: number; usable: boolean; [key: string]: unknown }[];
  [key: string]: unknown;
}

/** The output of `kazahanad status --json`, in camelCase. Newer daemons have more fields. */
export interface Status {
  version: string;
  features: string[];
  socket: string;
  provider: string;
  scope: string;
  mode: string;
  services: ServiceStatus[];
  [key: string]: unknown;
}

export const CALL_OPTIONS: readonly (keyof CallOptions)[] = ['timeout', 'signal'];
const SERVICE_OPTIONS: readonly (keyof ServiceOptions)[] = [...CALL_OPTIONS, 'service'];
export const ID_OPTIONS: readonly (keyof IdOptions)[] = [...SERVICE_OPTIONS, 'format', 'regularOnly'];
const SEQUENCE_OPTIONS: readonly (keyof SequenceOptions)[] = [...CALL_OPTIONS, 'requestId'];

const MAX_ID = (1n << 63n) - 1n;
export const MAX_TIMEOUT_MS = 3_600_000;
/** The daemon's time limit is shorter than the call's by this share, and a few milliseconds at most: its error says more than ours. */
const MARGIN = 0.05;
const MAX_MARGIN_MS = 100;

/** The daemon's time limit, for the remaining milliseconds. */
export function daemonTimeout(remaining: number): number {
  return Math.max(Math.floor(remaining - Math.min(remaining * MARGIN, MAX_MARGIN_MS)), 0);
}

export function checkTimeout(ms: number, name = 'timeout'): number {
  if (!(ms >= 1 && ms <= MAX_TIMEOUT_MS)) throw new InvalidParamsError(`${name} of ${ms}: 1 to ${MAX_TIMEOUT_MS} milliseconds are right`);
  return ms;
}

/** All calls of a daemon. Client calls a real one, FakeClient of kazahana/testing a fake one. */
export abstract class Calls {
  readonly timeout: number;
  readonly service: string | undefined;

  constructor(options: { timeout?: number | undefined; service?: string | undefined }) {
    this.timeout = checkTimeout(options.timeout ?? 10_000);
    this.service = options.service;
  }

  /** Sends a request. `params` gets the remaining milliseconds. */
  /** @internal */
  abstract request(method: string, params: (remaining: number) => unknown[], options: CallOptions): Promise<Value>;

  abstract close(): Promise<void>;

  /** One ID, greater than every ID that this client got before (of the same service). */
  nextId(options?: IntOptions): Promise<bigint>;
  nextId(options: TextOptions): Promise<string>;
  nextId(options: NumberOptions): Promise<number>;
  nextId(options: IdOptions): Promise<Id>;
  nextId(options: IdOptions = {}): Promise<Id> {
    return this.ids('NextID', [], options).then(reader(options));
  }

  /**
   * A prefetched ID, if a fresh one is in memory, else undefined (always without `prefetch`): the way to an ID without a promise in a hot
   * loop, as `client.tryNextId() ?? (await client.nextId())`.
   */
  abstract tryNextId(): bigint | undefined;

  /** `count` IDs, ascending: 1 to 65,536. */
  nextIds(count: number, options?: IntOptions): Promise<bigint[]>;
  nextIds(count: number, options: TextOptions): Promise<string[]>;
  nextIds(count: number, options: NumberOptions): Promise<number[]>;
  nextIds(count: number, options: IdOptions): Promise<bigint[] | number[] | string[]>;
  nextIds(count: number, options: IdOptions = {}): Promise<bigint[] | number[] | string[]> {
    const { format = 'int' } = options;
    return this.ids('NextIDs', [count], options).then((values) => (format === 'int' ? identifiers(values, count) : (counted(list(values, reader(options)), count) as number[] | string[])));
  }

  private async ids(method: string, params: unknown[], options: IdOptions): Promise<Value> {
    known(options, ID_OPTIONS);
    return this.request(method, (remaining) => [...params, this.idParams(options, remaining)], options);
  }

  protected idParams(options: IdOptions, remaining: number): object {
    const { service = this.service, regularOnly } = options;
    const format = options.format === 'number' ? undefined : options.format;
    return { service, format, regular_only: regularOnly, timeout_ms: daemonTimeout(remaining) };
  }

  /** Explains an ID: an integer, or a string that is decimal, hexadecimal with 0x, or external. */
  async inspect(id: Id, options: ServiceOptions = {}): Promise<Inspection> {
    const found = map(await this.call('Inspect', [exact(id)], options, true));
    return { ...found, id: integer(found['id']!) } as Inspection;
  }

  /** Reports whether the ID was made while the daemon had no valid lease. */
  async isFallback(id: Id, options: ServiceOptions = {}): Promise<boolean> {
    return (await this.inspect(id, options)).kind === 'fallback';
  }

  /** The smallest and the largest ID that a time in [from, to) can have, for a range scan in a database. */
  async bounds(from: Date | number, to: Date | number, options: ServiceOptions = {}): Promise<[smallest: bigint, largest: bigint]> {
    const params = [Math.floor(Number(from)), Math.ceil(Number(to))];
    return integers(await this.call('Bounds', params, options, true)) as [bigint, bigint];
  }

  /** The external ID, made with the service's secret, which the daemon knows. */
  async toExternal(id: Id, options: ServiceOptions = {}): Promise<string> {
    return text(await this.call('ToExternal', [exact(id)], options, true));
  }

  /** The ID of an external ID. With `latest`, IDs with a later time are refused, and so almost every forged one. */
  async toInternal(external: string, options: ServiceOptions & { latest?: Date | number | undefined } = {}): Promise<bigint> {
    const { latest, service = this.service } = options;
    const latest_ms = latest === undefined ? undefined : Math.floor(Number(latest));
    return identifier(await this.call('ToInternal', [external, { service, latest_ms }], options, false, [...SERVICE_OPTIONS, 'latest']));
  }

  /** A UUID of version 7 (sortable by time) or 4 (random). */
  async uuid(version: 4 | 7 = 7, options: CallOptions = {}): Promise<string> {
    return text(await this.call('UUID', [version], options));
  }

  async status(options: CallOptions = {}): Promise<Status> {
    return map(await this.call('Status', [], options)) as unknown as Status;
  }

  /** Resolves when the daemon has answered. */
  async ping(options: CallOptions = {}): Promise<void> {
    await this.call('Ping', [], options);
  }

  /** The next value of the sequence of that name. */
  async nextSequence(key: string, options: SequenceOptions = {}): Promise<bigint> {
    return integer(await this.call('Sequence.Next', [key, { request_id: options.requestId ?? requestId() }], options, false, SEQUENCE_OPTIONS));
  }

  /** The next `count` values, ascending: 1 to 65,536. */
  async nextSequences(key: string, count: number, options: SequenceOptions = {}): Promise<bigint[]> {
    const params = [key, count, { request_id: options.requestId ?? requestId() }];
    return integers(await this.call('Sequence.NextBatch', params, options, false, SEQUENCE_OPTIONS));
  }

  /** Takes a lock, which `await using` or release() gives back. It rejects with LockHeldError if another owner has it. */
  abstract lock(key: string, options?: LockOptions): Promise<Lock>;

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  private async call(method: string, params: unknown[], options: ServiceOptions, ofService = false, names: readonly string[] = ofService ? SERVICE_OPTIONS : CALL_OPTIONS): Promise<Value> {
    known(options, names);
    const service = options.service ?? this.service;
    const all = ofService && service !== undefined ? [...params, { service }] : params;
    return this.request(method, () => all, options);
  }
}

/** A request for a channel. */
export function body(method: string, params: (remaining: number) => unknown[]): Body {
  return (remaining) => encodeCall(method, params(remaining));
}

export function integer(value: Value): bigint {
  if (typeof value === 'bigint') return value;
  if (typeof value === 'number' && Number.isSafeInteger(value)) return BigInt(value);
  throw new ProtocolError(`the daemon answered with ${typeof value} where an integer is due`);
}

function reader({ format }: IdOptions): (value: Value) => Id {
  return format === 'number' ? (value) => numeric(identifier(value)) : format === 'string' || format === 'external' ? text : identifier;
}

/** An ID: 1 to 2^63-1. */
export function identifier(value: Value): bigint {
  const id = integer(value);
  if (id <= 0n || id > MAX_ID) throw impossible(id);
  return id;
}

function counted<T>(ids: T[], count: number): T[] {
  if (ids.length === count) return ids;
  throw new ProtocolError(`the daemon answered with ${ids.length} IDs where ${count} are due`);
}

/** The IDs of one answer, each greater than the one before. */
export function identifiers(values: Value, count: number): bigint[] {
  const ids = counted(integers(values), count);
  let last = 0n;
  for (const id of ids) {
    if (id <= last) throw impossible(id);
    last = id;
  }
  if (last > MAX_ID) throw impossible(last);
  return ids;
}

function impossible(id: bigint): ProtocolError {
  return new ProtocolError(`the daemon answered with the ID ${id}: IDs are 1 to ${MAX_ID}, and ascend within an answer`);
}

/** The ID as a number of at most 53 bits. */
export function numeric(id: bigint): number {
  if (id <= Number.MAX_SAFE_INTEGER) return Number(id);
  throw new InvalidParamsError(`a number would round the ID ${id}: format 'number' needs a daemon whose layout is js`);
}

/** An ID in its form on the wire. */
function exact(id: Id): bigint | string {
  if (typeof id !== 'number') return id;
  if (Number.isSafeInteger(id)) return BigInt(id);
  throw new InvalidParamsError(`an ID of ${id} may be rounded: write it as a bigint or a string`);
}

export function text(value: Value): string {
  if (typeof value === 'string') return value;
  throw new ProtocolError(`the daemon answered with ${typeof value} where a string is due`);
}

/** Reads an array of integers, if possible without a copy. */
export function integers(values: Value): bigint[] {
  return Array.isArray(values) && values.every((value) => typeof value === 'bigint') ? values : list(values, integer);
}

export function list<T>(values: Value, read: (value: Value) => T): T[] {
  if (Array.isArray(values)) return values.map(read);
  throw new ProtocolError(`the daemon answered with ${typeof values} where an array is due`);
}

/** Converts the keys of maps, at every level, to camelCase: `machine_id` becomes `machineId`. The values of some become bigints. */
export function camelCase(value: Value, bigints?: ReadonlySet<string>): Value {
  if (Array.isArray(value)) return value.map((element) => camelCase(element, bigints));
  if (value === null || typeof value !== 'object' || value instanceof Uint8Array) return value;
  const spelled = ([key, member]: [string, Value]): [string, Value] => [
    key.replace(/_([a-z0-9])/g, (_, c: string) => c.toUpperCase()),
    bigints?.has(key) ? integer(member) : camelCase(member, bigints),
  ];
  return Object.fromEntries(Object.entries(value).map(spelled));
}

/** A map, with its keys in camelCase. */
export function map(value: Value | undefined, bigints?: ReadonlySet<string>): Record<string, Value> {
  if (value === null || typeof value !== 'object' || Array.isArray(value) || value instanceof Uint8Array) throw new ProtocolError('the daemon sent no map where one is due');
  return camelCase(value, bigints) as Record<string, Value>;
}
