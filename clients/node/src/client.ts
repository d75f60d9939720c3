import { body, Calls, checkTimeout, ID_OPTIONS, identifier, identifiers, numeric, type CallOptions, type Id, type IdOptions } from './calls.js';
import { Channel, type Body } from './channel.js';
import { InvalidParamsError } from './errors.js';
import { acquire, type Lock, type LockOptions } from './lock.js';
import type { Value } from './msgpack.js';
import { known } from './options.js';
import { Prefetcher } from './prefetch.js';
import { socketPath } from './socket.js';

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
  /** Fail a call at once when the daemon is away, instead of trying again until the timeout. Default false. */
  singleAttempt?: boolean | undefined;
}

const CLIENT_OPTIONS: readonly (keyof ClientOptions)[] = ['socket', 'service', 'timeout', 'prefetch', 'maxAge', 'singleAttempt'];
/** The formats that the client makes itself. */
const PREFETCHED: readonly unknown[] = [undefined, 'int', 'number', 'string'];

/**
 * A client of the kazahana daemon of this host. It connects at the first call, and again after a loss, and never keeps an otherwise
 * finished process alive. One client serves any number of concurrent calls.
 */
export class Client extends Calls {
  /** @internal */
  readonly socket: string | undefined;
  private readonly channel: Channel;
  private readonly prefetcher: Prefetcher | undefined;
  private readonly single: Body;

  constructor(options: ClientOptions = {}) {
    super(known(options, CLIENT_OPTIONS));
    const { socket, prefetch = 0, maxAge = 50, singleAttempt = false } = options;
    this.socket = socket === undefined ? undefined : socketPath(socket, 'socket');
    if (!(Number.isInteger(prefetch) && prefetch >= 0 && prefetch <= 65_536)) {
      throw new InvalidParamsError(`prefetch of ${prefetch}: 0 to 65536 IDs are right`);
    }
    checkTimeout(maxAge, 'maxAge');
    this.channel = new Channel(this.socket, false, singleAttempt);
    this.single = this.frequent('NextID', []);
    if (prefetch > 0) {
      const batch = this.frequent('NextIDs', [prefetch]);
      const fetch = (count: number) => {
        const request = count === prefetch ? batch : body('NextIDs', (remaining) => [count, this.idParams({}, remaining)]);
        return this.channel.call(request, this.timeout).then((values) => identifiers(values, count));
      };
      this.prefetcher = new Prefetcher(this.channel, fetch, prefetch, maxAge);
    }
  }

  /** A request with the client's own options. Its encoding is reused while almost no time has passed. */
  private frequent(method: string, params: unknown[]): Body {
    const encoded = body(method, (remaining) => [...params, this.idParams({}, remaining)]);
    const whole = encoded(this.timeout);
    return (remaining) => (this.timeout - remaining < 1 ? whole : encoded(remaining));
  }

  // async, so that invalid options reject.
  /** @internal */
  async request(method: string, params: (remaining: number) => unknown[], options: CallOptions): Promise<Value> {
    const { timeout = this.timeout, signal } = options;
    const result = await this.channel.call(body(method, params), checkTimeout(timeout), signal);
    if (method.startsWith('NextID')) this.prefetcher?.drop();
    return result;
  }

  override nextId(options?: IdOptions & { format?: 'int' | undefined }): Promise<bigint>;
  override nextId(options: IdOptions & { format: 'string' | 'external' }): Promise<string>;
  override nextId(options: IdOptions & { format: 'number' }): Promise<number>;
  override nextId(options: IdOptions): Promise<Id>;
  override nextId(options?: IdOptions): Promise<Id> {
    const { prefetcher } = this;
    if (!options) {
      if (!prefetcher) return this.channel.call(this.single, this.timeout).then(identifier);
      const id = prefetcher.take();
      return id === undefined ? prefetcher.wait(this.timeout, undefined) : Promise.resolve(id);
    }
    const { service, format, regularOnly } = options;
    if (prefetcher && PREFETCHED.includes(format) && !regularOnly && (service === undefined || service === this.service)) {
      return this.prefetched(prefetcher, options);
    }
    return super.nextId(options);
  }

  private async prefetched(prefetcher: Prefetcher, options: IdOptions): Promise<Id> {
    const { timeout = this.timeout, signal, format } = known(options, ID_OPTIONS);
    checkTimeout(timeout);
    const id = (signal?.aborted ? undefined : prefetcher.take()) ?? (await prefetcher.wait(timeout, signal));
    return format === 'string' ? String(id) : format === 'number' ? numeric(id) : id;
  }

  tryNextId(): bigint | undefined {
    return this.prefetcher?.take();
  }

  lock(key: string, options: LockOptions = {}): Promise<Lock> {
    return acquire(key, { ...options, timeout: options.timeout ?? this.timeout }, this.socket, this.channel);
  }

  /** Fails the calls under way with ClientClosedError and closes the connection. Locks have connections of their own. */
  close(): Promise<void> {
    this.channel.close();
    this.prefetcher?.drop();
    return Promise.resolve();
  }
}
