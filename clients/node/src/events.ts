import { body, checkTimeout, withTokens, type CallOptions } from './calls.js';
import { Channel } from './channel.js';
import { WatchEndedError } from './errors.js';

export type PlacementEventName = 'resolved' | 'lock_denied' | 'activated' | 'activation_failed' | 'passivated';

export interface PlacementEvent {
  event: PlacementEventName;
  kind: string;
  identity: string;
  authority: string;
  pid: string;
  version: bigint;
  token: bigint;
  /** Why, where there is a reason. */
  reason: string;
  /** When the daemon saw it, in Unix ms. */
  observedMs: number;
}

export interface PlacementEventOptions extends CallOptions {
  /** Which ones. Default: all but `resolved`, of which there is one for each resolve. */
  events?: readonly PlacementEventName[] | undefined;
}

/**
 * What happens on this host, from `ready` on, in order. Where events are missing it throws a WatchEndedError: when the connection is
 * lost, when the daemon stops, and when whoever takes the events is too slow. It keeps the process alive until then, or until it is
 * returned from, as `break` does.
 */
export interface PlacementEvents extends AsyncIterableIterator<PlacementEvent> {
  /** Resolves when the daemon has begun to tell. */
  readonly ready: Promise<void>;
}

/** How many events wait here at most: as many as in the daemon. */
export const MAX_BEHIND = 4096;

interface Taker {
  resolve(result: IteratorResult<PlacementEvent>): void;
  reject(error: unknown): void;
}

/** Events between those who tell and those who take them. */
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

  /** Nothing more comes. What is here can still be taken, and then the failure. */
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

/** Has the daemon tell its events by a connection of its own. */
export function watch(options: PlacementEventOptions & { timeout: number }, socket: string | undefined): PlacementEvents {
  const { events, signal, timeout } = options;
  checkTimeout(timeout);
  const channel = new Channel(socket, true);
  const queue = new EventQueue(signal, () => channel.close());
  channel.onNotification = (method, params) => {
    const told = Array.isArray(params) ? params[0] : null;
    if (method === 'Placement.Event') queue.push(withTokens(told) as PlacementEvent);
    if (method === 'Placement.WatchEnded') queue.end({ error: ended((withTokens(told) as { reason: string }).reason) });
  };
  let isTold = false;
  channel.pin((error) => queue.end({ error: isTold ? ended('disconnected', error) : error }));
  const ready = channel.call(body('Placement.Watch', () => [{ events }]), timeout, signal).then(
    () => void (isTold = true),
    (error: unknown) => {
      queue.end({ error });
      throw error;
    },
  );
  ready.catch(() => undefined); // whoever takes the events hears of it as well
  return Object.assign(queue, { ready });
}

function ended(reason: string, cause?: unknown): WatchEndedError {
  return new WatchEndedError(`no more events come: ${reason}`, { details: { reason }, cause });
}
