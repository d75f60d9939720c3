import { randomUUID } from 'node:crypto';
import { Calls, checked, identifier, integer, list, text, type CallOptions, type ServiceOptions } from './calls.js';
import { InvalidParamsError } from './errors.js';
import type { Lock, LockOptions } from './lock.js';
import type { Value } from './wire.js';

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

export interface SequenceOptions extends CallOptions {
  /** Repeating a call with the same request ID gives the same values. Default: a new one for each call, kept over its own retries. */
  requestId?: string | undefined;
}

/** All calls of a daemon. Client calls a real one, FakeClient of kazahana/testing a fake one. */
export abstract class KazahanaClient extends Calls {
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
    return text(await this.request('UUID', version === undefined ? [] : [version], options));
  }

  async status(options: CallOptions = {}): Promise<Status> {
    return map(await this.request('Status', [], options)) as unknown as Status;
  }

  /** Resolves when the daemon has answered. */
  async ping(options: CallOptions = {}): Promise<void> {
    await this.request('Ping', [], options);
  }

  /** The next value of the sequence of that name. */
  async nextSequence(key: string, options: SequenceOptions = {}): Promise<bigint> {
    const { requestId = randomUUID() } = options;
    return integer(await this.request('Sequence.Next', [key, { request_id: requestId }], options));
  }

  /** The next `count` values, ascending: 1 to 65,536. */
  async nextSequences(key: string, count: number, options: SequenceOptions = {}): Promise<bigint[]> {
    const { requestId = randomUUID() } = options;
    const params = [key, count, { request_id: requestId }];
    return list(await this.request('Sequence.NextBatch', params, options), count).map(integer);
  }

  /** The external ID, made with the service's secret, which the daemon knows. */
  async toExternal(id: Id, options: ServiceOptions = {}): Promise<string> {
    return text(await this.about('ToExternal', [exact(id)], options));
  }

  /** The ID of an external ID. With `latest`, IDs with a later time are refused, and so almost every forged one. */
  async toInternal(external: string, options: ServiceOptions & { latest?: Date | number | undefined } = {}): Promise<bigint> {
    const { latest } = options;
    const latest_ms = latest === undefined ? undefined : Math.floor(Number(latest));
    return identifier(await this.about('ToInternal', [external], options, { latest_ms }));
  }

  /** Takes a lock, which `await using` or release() gives back. It rejects with LockHeldError if another owner has it. */
  abstract lock(key: string, options?: LockOptions): Promise<Lock>;

  /** Calls a method that takes a service. */
  private about(method: string, params: unknown[], options: ServiceOptions, more = {}): Promise<Value> {
    return this.request(method, [...params, { service: options.service ?? this.service, ...more }], options);
  }
}

/** An ID in its form on the wire. */
export function exact(id: Id): Id {
  if (typeof id !== 'number' || Number.isSafeInteger(id)) return id;
  throw new InvalidParamsError(`an ID of ${id} may be rounded: write it as a bigint or a string`);
}

/** A map, with its keys, at every level, in camelCase: `machine_id` becomes `machineId`. Its integers are numbers where that is exact. */
export function map(value: Value | undefined): Record<string, Value> {
  const nested = (member: Value): Value => {
    if (Array.isArray(member)) return member.map(nested);
    if (typeof member === 'bigint') return Number.isSafeInteger(Number(member)) ? Number(member) : member;
    return isMap(member) ? map(member) : member;
  };
  const spelled = (key: string) => key.replace(/_([a-z0-9])/g, (_, c: string) => c.toUpperCase());
  const members = Object.entries(checked(value, 'a map', isMap));
  return Object.fromEntries(members.map(([key, member]) => [spelled(key), nested(member)]));
}

function isMap(value: Value | undefined): value is { [key: string]: Value } {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Uint8Array);
}
