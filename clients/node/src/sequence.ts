import { randomUUID } from 'node:crypto';
import { Calls, exact, identifier, integer, list, text, type CallOptions, type Id, type ServiceOptions } from './calls.js';
import type { Lock, LockOptions } from './lock.js';

export interface SequenceOptions extends CallOptions {
  /** Repeating a call with the same request ID gives the same values. Default: a new one for each call, kept over its own retries. */
  requestId?: string | undefined;
}

/** All calls of a daemon. Client calls a real one, FakeClient of kazahana/testing a fake one. */
export abstract class KazahanaClient extends Calls {
  /** The next value of the sequence of that name. */
  async nextSequence(key: string, options: SequenceOptions = {}): Promise<bigint> {
    const { requestId = randomUUID() } = options;
    return integer(await this.call('Sequence.Next', () => [key, { request_id: requestId }], options));
  }

  /** The next `count` values, ascending: 1 to 65,536. */
  async nextSequences(key: string, count: number, options: SequenceOptions = {}): Promise<bigint[]> {
    const { requestId = randomUUID() } = options;
    const params = [key, count, { request_id: requestId }];
    return list(await this.call('Sequence.NextBatch', () => params, options), count).map(integer);
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
}
