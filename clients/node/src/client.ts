import { identifier, MAX_TIMEOUT_MS, milliseconds, type CallOptions, type IdFormats, type IdOptions } from './calls.js';
import { Channel } from './channel.js';
import { InvalidParamsError } from './errors.js';
import { acquire, type Lock, type LockOptions } from './lock.js';
import { KazahanaClient } from './other.js';
import { MAX_BATCH, Prefetcher } from './prefetch.js';
import { socketPath } from './socket.js';
import { encodeCall, type Value } from './wire.js';

export interface ClientOptions {
  /** Path of the daemon's socket, or a unix:/// URI. Default: KAZAHANA_SOCKET, else the first of the usual places that exists. */
  socket?: string | undefined;
  /** The service of calls that name none. Default: the daemon's. */
  service?: string | undefined;
  /** Time limit of a call in milliseconds: 1 to 3,600,000. Default 10,000. */
  timeout?: number | undefined;
  /** Number of IDs to fetch at once and hand out from memory: 0 to 65,536. Default 0: every call asks the daemon. */
  prefetch?: number | undefined;
  /** Milliseconds after which a prefetched ID is thrown away, since an old ID sorts wrongly. Default 50. */
  maxAge?: number | undefined;
  /** Fail a call at once when the daemon is away, instead of trying until the timeout. Only a lost connection is replaced, once. Default false. */
  singleAttempt?: boolean | undefined;
}

/**
 * A client of the kazahana daemon of this host. It connects at the first call, and again after a loss, and never keeps an otherwise
 * finished process alive. One client serves any number of concurrent calls.
 */
export class Client extends KazahanaClient {
  /** @internal */
  readonly socket: string | undefined;
  private readonly channel: Channel;
  private readonly prefetcher: Prefetcher | undefined;
  private readonly single: Buffer; // the request for one ID

  constructor(options: ClientOptions = {}) {
    super(options);
    const { socket, prefetch = 0, maxAge = 50, singleAttempt = false } = options;
    this.socket = socket === undefined ? undefined : socketPath(socket, 'socket');
    this.channel = new Channel(this.socket, singleAttempt);
    this.single = encodeCall('NextID', [this.idParams({})]);
    milliseconds('maxAge', maxAge);
    if (!Number.isInteger(prefetch) || prefetch < 0 || prefetch > MAX_BATCH) throw new InvalidParamsError(`prefetch of ${prefetch}: 0 to ${MAX_BATCH} IDs are right`);
    const batch = (count: number, timeout: number) => encodeCall('NextIDs', [count, this.idParams({ timeout })]);
    if (prefetch > 0) this.prefetcher = new Prefetcher(this.channel, batch, prefetch, maxAge);
  }

  /** @internal */
  async request(method: string, params: unknown[], { timeout = this.timeout, signal }: CallOptions): Promise<Value> {
    const result = await this.channel.call(encodeCall(method, params), milliseconds('timeout', timeout), signal);
    if (method.startsWith('NextID')) this.prefetcher?.drop();
    return result;
  }

  override nextId<F extends keyof IdFormats = 'int'>(options: IdOptions<F> = {}): Promise<IdFormats[F]> {
    const { service = this.service, format = 'int', regularOnly, timeout = this.timeout, signal } = options;
    const isPlain = format === 'int' && !regularOnly && service === this.service && timeout >= 1 && timeout <= MAX_TIMEOUT_MS;
    if (isPlain && this.prefetcher && !signal?.aborted) return this.prefetcher.nextId(timeout, signal) as Promise<IdFormats[F]>;
    if (isPlain && timeout === this.timeout) return this.channel.call(Buffer.from(this.single), timeout, signal).then(identifier) as Promise<IdFormats[F]>;
    return super.nextId(options);
  }

  tryNextId(): bigint | undefined {
    return this.prefetcher?.take();
  }

  lock(key: string, options: LockOptions = {}): Promise<Lock> {
    return acquire(key, { ...options, timeout: options.timeout ?? this.timeout }, this.socket, this.channel.isSingle);
  }

  /** Fails the calls under way with ClientClosedError and closes the connection. Locks have connections of their own. */
  async close(): Promise<void> {
    this.channel.close();
    this.prefetcher?.drop();
  }
}
