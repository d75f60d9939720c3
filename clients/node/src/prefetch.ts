import { margin } from './calls.js';
import { Waiter, type Channel } from './channel.js';
import { DaemonUnavailableError, RequestTimeoutError } from './errors.js';
import { nextTick, steadyNow, wallNow } from './system.js';

export const MAX_BATCH = 65_536;
/** Batches grow, at most so many times, while each is used up in less than this. */
const GROWTH = 16;
const SHORT_MS = 1;

/** Consecutive IDs of one answer, and when they were asked for, on both clocks: only one counts a suspend, only the other is steady. */
interface Batch {
  ids: bigint[];
  asked: number; // in steadyNow()
  wallAsked: number; // in wallNow()
  prompt: number; // how many waited for it when its request was sent
}

const NOTHING: Batch = { ids: [], asked: 0, wallAsked: 0, prompt: 0 };

/**
 * IDs that are fetched in batches before they are asked for, and never handed out when they are older than maxAge, counted from the
 * request: see isFresh. Each caller waits until its own deadline; a refill that fails for one is begun anew for the others.
 */
export class Prefetcher {
  private batch = NOTHING;
  private at = 0; // of the batch's next ID
  private next = NOTHING;
  private fetching: Waiter[] | undefined; // who waits for the batch that is under way
  private fetched = -Infinity; // when the last fetch began
  private count = 0;

  constructor(
    private readonly channel: Channel,
    private readonly fetch: (count: number) => Promise<bigint[]>,
    private readonly size: number,
    private readonly maxAge: number,
  ) {}

  /** An ID, if a fresh one is here. It sees to it that the next ones are under way. */
  take(): bigint | undefined {
    const id = this.here();
    if (id === undefined) this.refill();
    return id;
  }

  private here(): bigint | undefined {
    const { batch } = this;
    if (this.at < batch.ids.length && this.isFresh(batch)) {
      // Soon enough for the next batch to be here in time, and not before this one proves useful.
      if (this.at === batch.ids.length >> 2) this.refill();
      return batch.ids[this.at++];
    }
    [this.batch, this.at, this.next] = [this.next, 0, NOTHING];
    return this.batch === NOTHING ? undefined : this.here();
  }

  private isFresh({ asked, wallAsked }: Batch): boolean {
    return steadyNow() - asked <= this.maxAge && wallNow() - wallAsked <= this.maxAge;
  }

  /** An ID that is here, or from the next batch. */
  nextId(timeout: number, signal?: AbortSignal): Promise<bigint> {
    const id = signal?.aborted ? undefined : this.take();
    if (id !== undefined) return Promise.resolve(id);
    const waiter = new Waiter(this.channel, timeout, signal);
    if (this.channel.waiters.has(waiter)) this.refill([waiter]);
    return waiter.promise as Promise<bigint>;
  }

  /** Forgets what is here or under way, because greater IDs were handed out: whoever asks from now on gets IDs that are asked for from now on. */
  drop(): void {
    this.batch = this.next = NOTHING;
    this.fetching = undefined;
  }

  /** Sees to it that a batch is under way, for some who wait. */
  private refill(waiting: Waiter[] = []): void {
    for (const waiter of this.fetching ? waiting : []) this.fetching?.push(waiter);
    if (this.fetching || (this.next !== NOTHING && waiting.length === 0)) return;
    this.fetching = waiting;
    const now = steadyNow();
    this.count = now - this.fetched < SHORT_MS ? Math.min(2 * this.count, GROWTH * this.size) : Math.max(this.count >> 1, this.size);
    this.fetched = now;
    const batch = { ...NOTHING, asked: now, wallAsked: wallNow() }; // an ID is not older than the request for it
    nextTick(() => (batch.prompt = waiting.length)); // as the request is sent, when all calls of this tick are made
    this.fetch(Math.min(Math.max(this.count, waiting.length), MAX_BATCH)).then(
      (ids) => this.came({ ...batch, ids }, waiting),
      (error: unknown) => {
        // Who has more time than the fetch gets the next batch. Who has hardly more gets this error: it may say what the daemon waited for.
        const end = error instanceof RequestTimeoutError || error instanceof DaemonUnavailableError ? steadyNow() : Infinity;
        for (const waiter of waiting) if (waiter.deadline - 2 * margin(waiter.timeout) <= end) waiter.reject(error);
        this.came(NOTHING, waiting);
      },
    );
  }

  private came(batch: Batch, waiting: Waiter[]): void {
    // An ID that was asked for since the call began sorts rightly, however slow the answer was.
    const most = this.isFresh(batch) ? waiting.length : batch.prompt;
    const isThere = (waiter: Waiter) => this.channel.waiters.has(waiter);
    const served = waiting.slice(0, most).filter(isThere);
    for (const [i, id] of batch.ids.splice(0, served.length).entries()) served[i]!.resolve(id);
    if (this.fetching === waiting) [this.fetching, this.next] = [undefined, batch];
    // After a drop a later batch may be here already: its IDs go to these first, as the next batch has greater ones.
    const left = waiting.filter(isThere);
    for (let id; left.length > 0 && (id = this.here()) !== undefined; ) left.shift()!.resolve(id);
    if (left.length > 0) this.refill(left);
  }
}
