import { idsOf, list } from './calls.js';
import { Waiter, type Channel } from './channel.js';
import { nextTick, steadyNow, wallNow } from './system.js';

export const MAX_BATCH = 65_536;
/** Batches grow, at most so many times, while each is used up in less than this. */
const [GROWTH, SHORT_MS] = [16, 1];

/** Consecutive IDs of one answer, and when they were asked for, on both clocks: only one counts a suspend, only the other is steady. */
interface Batch {
  ids: bigint[];
  at: number; // of the next ID
  asked: number; // in steadyNow()
  wallAsked: number; // in wallNow()
}

/**
 * IDs that are fetched in batches before they are asked for, and never handed out when they are older than maxAge, counted from the
 * request. Each caller waits until its own deadline. A batch that fails fails those who waited when it was asked for; who came later gets
 * the next one.
 */
export class Prefetcher {
  private batches: Batch[] = []; // the one in use, and the next
  private waiting: Waiter[] | undefined; // who waits for the batch that is under way
  private fetched = -Infinity; // when the last fetch began
  private count = 0;

  constructor(
    private readonly channel: Channel,
    private readonly request: (count: number, timeout: number) => Buffer,
    private readonly size: number,
    private readonly maxAge: number,
  ) {}

  /** An ID, if a fresh one is here. It sees to it that the next ones are under way. */
  take(): bigint | undefined {
    for (let batch; (batch = this.batches[0]); this.batches.shift()) {
      const isFresh = steadyNow() - batch.asked <= this.maxAge && wallNow() - batch.wallAsked <= this.maxAge;
      if (!isFresh || batch.at >= batch.ids.length) continue;
      // Soon enough for the next batch to be here in time, and not before this one proves useful.
      if (this.batches.length === 1 && batch.at >= batch.ids.length >> 2) this.refill();
      return batch.ids[batch.at++];
    }
    this.refill();
    return undefined;
  }

  /** An ID that is here, or from the next batch. */
  nextId(timeout: number, signal?: AbortSignal): Promise<bigint> {
    const id = this.take();
    if (id !== undefined) return Promise.resolve(id);
    return new Promise<unknown>((fulfil, refuse) => this.waiting!.push(new Waiter(this.channel, timeout, signal, fulfil, refuse))) as Promise<bigint>;
  }

  /** Forgets what is here or under way, because greater IDs were handed out: whoever asks from now on gets IDs that are asked for from now on. */
  drop(): void {
    this.batches = [];
    this.waiting = undefined;
  }

  /** Sees to it that a batch is under way. */
  private refill(): void {
    if (this.waiting) return;
    const waiting: Waiter[] = (this.waiting = []);
    nextTick(() => void this.fetch(waiting)); // when all calls of this tick wait
  }

  private async fetch(waiting: Waiter[]): Promise<void> {
    const asked = steadyNow(); // an ID is not older than the request for it
    const batch: Batch = { ids: [], at: 0, asked, wallAsked: wallNow() };
    this.count = asked - this.fetched < SHORT_MS ? Math.min(2 * this.count, GROWTH * this.size) : Math.max(this.count >> 1, this.size);
    this.fetched = asked;
    const prompt = waiting.length;
    const count = Math.min(Math.max(this.count, prompt), MAX_BATCH);
    const timeout = waiting.reduce((longest, waiter) => Math.max(longest, waiter.timeout), this.maxAge); // an older answer serves no other caller
    try {
      batch.ids = idsOf<'int'>(list(await this.channel.call(this.request(count, timeout), timeout), count), {});
    } catch (error) {
      for (const waiter of waiting.slice(0, prompt)) waiter.end(error);
    }
    if (this.waiting === waiting) {
      this.waiting = undefined;
      this.batches.push(batch);
    }
    for (const [i, waiter] of waiting.entries()) {
      if (!this.channel.waiters.has(waiter.msgid)) continue; // it is over
      // An ID that was asked for since the call began sorts rightly, however slow the answer was. Who came later gets a fresh one, which
      // may be of a later batch after a drop.
      const id = (i < prompt ? batch.ids[batch.at++] : undefined) ?? this.take();
      if (id === undefined) this.waiting!.push(waiter);
      else waiter.end(undefined, id);
    }
  }
}
