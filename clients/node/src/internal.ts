// For the package kazahana-placement of the same version, and for no other program: it changes without notice.
import type { CallOptions } from './calls.js';
import type { Client } from './client.js';
import { KazahanaError } from './errors.js';
import type { FakeClient } from './testing.js';
import type { Value } from './wire.js';

export { integer, MAX_TIMEOUT_MS, milliseconds, text, type CallOptions } from './calls.js';
export { known } from './errortext.js';
export { LONG_AGO, Moment } from './moment.js';
export { map } from './other.js';
export { PinnedChannel, type Answer } from './pinned.js';
export { delay, steadyNow } from './system.js';
export { encodeCall, type Value } from './wire.js';

/** The base of an error's class, with the class's code. */
export const coded = (code: string): typeof KazahanaError => KazahanaError.coded(code);

/** What a client keeps from other programs. */
export interface Inside {
  readonly socket: string | undefined;
  readonly timeout: number;
  request(method: string, params: unknown[], options: CallOptions): Promise<Value>;
}
export const inside = (client: Client): Inside => client;

export interface FakeInside extends Omit<Inside, 'socket'> {
  readonly start: number;
  begin(method: string, signal: AbortSignal | undefined): void;
}
export const insideFake = (client: FakeClient): FakeInside => client;
