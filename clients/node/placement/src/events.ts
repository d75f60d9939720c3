import { encodeCall, integer, map, milliseconds, PinnedChannel, text, type CallOptions, type Value } from 'kazahana/internal';
import { WatchEndedError } from './errors.js';
import { EXACT, withTokens } from './host.js';

export type PlacementEventName = 'resolved' | 'lock_denied' | 'activated' | 'activation_failed' | 'passivated' | 'unserved' | 'pid_cached' | 'pid_dropped';

export interface PlacementEvent {
  event: PlacementEventName;
  kind: string;
  identity: string;
  authority: string;
  pid: string;
  version: bigint;
  token: bigint;
  /** The reason, or ''. */
  reason: string;
  /** When the daemon saw it, in Unix ms. */
  observedMs: number;
}

export interface PlacementEventOptions extends CallOptions {
  /** The wanted events. Default: all but `resolved`, which comes for each resolve. */
  events?: readonly PlacementEventName[] | undefined;
}

/**
 * The events on this host, from `ready` on, in order. If events may be missing it throws a WatchEndedError: when the connection is lost,
 * when the daemon stops, and when events are not read in time. It keeps the process alive until then, or until `break` or return().
 */
export interface PlacementEvents extends AsyncIterableIterator<PlacementEvent> {
  /** Resolves when the daemon has begun to send events. */
  readonly ready: Promise<void>;
}

/** How many events wait here at most: as many as in the daemon. */
export const MAX_BEHIND = 4096;

interface Taker {
  resolve(result: IteratorResult<PlacementEvent>): void;
  reject(error: unknown): void;
}

/** Queue between the connection and the iteration. */
export class EventQueue implements AsyncIterableIterator<PlacementEvent> {
  private readonly events: PlacementEvent[] = [];
  private readonly takers: Taker[] = [];
  private isOver = false;
  private failure: { error: unknown } | undefined;

  /** `release` is called once, at the end, which is also when the signal fires. */
  constructor(
    private readonly signal: AbortSignal | undefined,
    private readonly release: () => void,
  ) {
    signal?.addEventListener('abort', this.abort, { once: true });
  }

  private readonly abort = (): void => this.end({ error: this.signal?.reason });

  push(event: PlacementEvent): void {
    if (this.isOver) return;
    const taker = this.takers.shift();
    if (taker) taker.resolve({ done: false, value: event });
    else if (this.events.length < MAX_BEHIND) this.events.push(event);
    else this.end({ error: ended('too_slow') });
  }

  /** No more events come. Queued ones can still be taken, and then the failure. */
  end(failure?: { error: unknown }): void {
    if (this.isOver) return;
    this.isOver = true;
    this.signal?.removeEventListener('abort', this.abort);
    const [first, ...others] = this.takers.splice(0);
    if (first && failure) first.reject(failure.error);
    else {
      this.failure = failure;
      first?.resolve({ done: true, value: undefined });
    }
    for (const taker of others) taker.resolve({ done: true, value: undefined });
    this.release();
  }

  next(): Promise<IteratorResult<PlacementEvent>> {
    return new Promise((resolve, reject) => {
      const event = this.events.shift();
      const { failure } = this;
      if (event) return resolve({ done: false, value: event });
      if (!this.isOver) return void this.takers.push({ resolve, reject });
      this.failure = undefined;
      if (failure) reject(failure.error);
      else resolve({ done: true, value: undefined });
    });
  }

  async return(): Promise<IteratorResult<PlacementEvent>> {
    this.end();
    this.events.length = 0;
    this.failure = undefined;
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}

/** Subscribes to the daemon's events on a connection of its own. */
export function watch(options: PlacementEventOptions & { timeout: number }, socket: string | undefined): PlacementEvents {
  const { events, signal, timeout } = options;
  milliseconds('timeout', timeout);
  const channel = new PinnedChannel(socket, false, true);
  const queue = new EventQueue(signal, () => channel.close());
  channel.onMessage = (method, params) => {
    const told = Array.isArray(params) ? params[0] : null;
    if (method === 'Placement.Event') queue.push(eventOf(told));
    if (method === 'Placement.WatchEnded') queue.end({ error: ended(text(map(told)['reason'])) });
  };
  let isTold = false;
  channel.pin((error) => queue.end({ error: isTold ? ended('disconnected', error) : error }));
  const ready = channel.call(encodeCall('Placement.Watch', [{ events }]), timeout, signal).then(
    () => void (isTold = true),
    (error: unknown) => {
      queue.end({ error });
      throw error;
    },
  );
  ready.catch(() => undefined); // the iteration throws the same error
  return Object.assign(queue, { ready });
}

const TEXTS = ['event', 'kind', 'identity', 'authority', 'pid', 'reason'];

function eventOf(told: Value | undefined): PlacementEvent {
  const event = withTokens(told);
  for (const name of TEXTS) text(event[name]);
  for (const name of EXACT) integer(event[name]);
  return event as unknown as PlacementEvent;
}

function ended(reason: string, cause?: unknown): WatchEndedError {
  return new WatchEndedError(`no more events come: ${reason}`, { details: { reason }, cause });
}
