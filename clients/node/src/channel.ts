import { setMaxListeners } from 'node:events';
import * as net from 'node:net';
import * as errors from './errors.js';
import { errorOf } from './errortext.js';
import { findSocket, isHopeless, unavailable } from './socket.js';
import { clearTimer, nextTick, setTimer, steadyNow } from './system.js';
import { Decoder, MSGID_AT, type Value } from './wire.js';

/** How long a call waits for the first connection: enough for a daemon that is starting, and short enough to report a missing one soon. */
const FIRST_CONNECT_MS = 1000;
/** The pause before another connection: the first, and the longest. */
const [BACKOFF_MS, MAX_BACKOFF_MS] = [5, 200];
/** While so many bytes are unsent, calls stay in the queue. A daemon that reads nothing then costs no memory for calls that gave up. */
const MAX_UNSENT = 1 << 20;
/** Deadlines share a timer, since one for each call makes calls slower. It fires at most this often. */
const SWEEP_MS = 4;

/**
 * A caller that waits, for the answer to its request or for a prefetched ID. The time counts from here, so it includes connecting. The
 * process lives until the wait is over. The constructor throws if it is over already.
 */
export class Waiter {
  msgid = 0;
  failures = 0; // of the connection, or to make one
  readonly began = steadyNow();

  constructor(
    private readonly channel: Channel,
    readonly timeout: number,
    private readonly signal: AbortSignal | undefined,
    private readonly fulfil: (value: Value) => void,
    private readonly refuse: (error: unknown) => void,
    readonly request?: Buffer,
  ) {
    if (signal) setMaxListeners(0, signal); // one signal may end many calls, which is not a leak
    signal?.throwIfAborted();
    channel.watch(this);
    signal?.addEventListener('abort', this);
  }

  /** The signal's event. */
  handleEvent(): void {
    this.end(this.signal?.reason);
  }

  /** Ends the wait with an error or a value. */
  end(error: unknown, value?: Value): void {
    this.channel.forget(this);
    this.signal?.removeEventListener('abort', this);
    if (error === undefined) this.fulfil(value!);
    else this.refuse(error);
  }
}

/**
 * Calls over one connection at a time. The calls of a tick share a write (flush). After a loss it makes a new connection and repeats the
 * calls under way (failed): every method that this package calls may be repeated. A call ends with its answer (heard), at its deadline
 * (sweep), by its signal, or when there is no daemon to wait for (failed).
 */
export class Channel {
  /** Whether a daemon was ever reached. */
  wasConnected = false;
  /** The waits that are not over, by msgid. */
  readonly waiters = new Map<number, Waiter>();
  protected socket: net.Socket | undefined;
  /** Set while there is no connection after a failure. */
  protected lastFailure: errors.KazahanaError | undefined;
  protected closedBy: errors.KazahanaError | undefined;
  private queue = new Set<Waiter>(); // whose requests are to be sent
  private lastMsgid = 0;
  private isNew = false; // nothing was answered on this connection
  private refusal: errors.KazahanaError | undefined; // with which the daemon turns this client away, if it says no more
  private backoff = BACKOFF_MS;
  private retry: NodeJS.Timeout | undefined;
  private sweeper: NodeJS.Timeout | undefined;
  private sweepAt = Infinity; // when a wait has to end

  /** A single one fails a call when the daemon is away. It repeats a call only once, since a connection may have been lost long ago. */
  constructor(
    private readonly path: string | undefined,
    public isSingle = false,
  ) {}

  /** Calls a method. It rejects with the daemon's error, at the deadline, or with the signal's reason. The request's bytes are its own from now on. */
  call(request: Buffer, timeout: number, signal?: AbortSignal): Promise<Value> {
    return new Promise((fulfil, refuse) => {
      const waiter = new Waiter(this, timeout, signal, fulfil, refuse, request);
      request.writeUInt32BE(waiter.msgid, MSGID_AT);
      // Who is not the first in the queue is sent with the first.
      if (this.queue.add(waiter).size === 1) nextTick(() => this.flush());
    });
  }

  /** Takes in a wait, and sees to it that it ends in time. */
  watch(waiter: Waiter): void {
    if (this.closedBy) throw this.closedBy;
    // The daemon answers with msgid 0 what it could not read.
    do this.lastMsgid = (this.lastMsgid + 1) >>> 0;
    while (this.lastMsgid === 0 || this.waiters.has(this.lastMsgid));
    waiter.msgid = this.lastMsgid;
    this.waiters.set(waiter.msgid, waiter);
    if (waiter.began + waiter.timeout < this.sweepAt) this.sweep(waiter.began); // which leaves this one its time
    this.sweeper!.ref();
  }

  forget(waiter: Waiter): void {
    this.waiters.delete(waiter.msgid);
    this.queue.delete(waiter);
    if (this.waiters.size === 0) this.sweeper?.unref();
  }

  /** Ends the waits that are out of time, and comes back for the next one. */
  private sweep(now = steadyNow()): void {
    clearTimer(this.sweeper);
    this.sweepAt = Infinity;
    for (const waiter of this.waiters.values()) {
      const { began, timeout } = waiter;
      if (began + timeout > now) this.sweepAt = Math.min(this.sweepAt, began + timeout);
      else waiter.end(this.lastFailure ?? new errors.RequestTimeoutError(`no answer from the daemon within ${timeout} ms`, { details: { waited_ms: String(timeout) } }));
    }
    if (this.sweepAt < Infinity) this.sweeper = setTimer(() => this.sweep(), Math.max(this.sweepAt - now, SWEEP_MS));
  }

  /** Fails all waiting calls and closes the connection. */
  close(reason: errors.KazahanaError = new errors.ClientClosedError('the client is closed')): void {
    this.closedBy ??= reason;
    for (const timer of [this.retry, this.sweeper]) clearTimer(timer);
    for (const waiter of this.waiters.values()) waiter.end(reason);
    this.socket?.destroy();
  }

  /** Sends the requests in the queue, on a new connection if there is none. */
  private flush(): void {
    if (this.queue.size === 0 || this.retry || (this.socket?.writableLength ?? 0) > MAX_UNSENT) return; // until 'drain'
    try {
      this.socket ??= this.connect();
    } catch (error) {
      return this.failed(error as errors.KazahanaError);
    }
    this.socket.write(Buffer.concat(Array.from(this.queue, ({ request }) => request!)));
    this.queue = new Set(); // a set that is cleared keeps what it had from the collector of young objects
  }

  private connect(): net.Socket {
    const path = this.path ?? findSocket();
    const decoder = new Decoder();
    let error = new Error('the connection was closed');
    const callback = (length: number, buffer: Uint8Array) => {
      try {
        decoder.feed((buffer as Buffer).subarray(0, length), (message) => this.heard(message));
      } catch (cause) {
        // An exception that left a socket's callback would end the process.
        this.refusal = new errors.ProtocolError(`the daemon's message cannot be read: ${(cause as Error).message}`, { cause });
        socket.destroy();
      }
      return !socket.destroyed;
    };
    const socket = net.connect({ path, onread: { buffer: Buffer.allocUnsafeSlow(64 << 10), callback } }).unref();
    socket.on('connect', () => this.opened());
    socket.on('drain', () => this.flush());
    socket.on('error', (found) => (error = found));
    socket.on('close', () => this.failed(this.refusal ?? unavailable(path, error)));
    [this.isNew, this.refusal] = [true, undefined];
    return socket;
  }

  protected opened(): void {
    this.wasConnected = true;
    this.lastFailure = undefined;
  }

  /** Takes in a message of the daemon. */
  private heard(message: Value): void {
    if (!Array.isArray(message)) throw new errors.ProtocolError('the daemon sent no MessagePack-RPC: is another program behind the socket?');
    const [type, id, third, last] = message as [Value, Value, Value, Value];
    if (type === 2 && message.length === 3 && typeof id === 'string') return this.told?.(id, third);
    const isRequest = type === 0 && typeof third === 'string';
    if (message.length !== 4 || !Number.isInteger(id) || !(type === 1 || isRequest)) throw new errors.ProtocolError('the daemon sent an array that is no message');
    const msgid = id as number;
    if (isRequest) return this.told?.(third, last, msgid);
    const error = third === null ? undefined : errorOf(third);
    // A daemon that turns a client away answers once, and closes. With msgid 0 it answers what it could not read: its last word, too.
    const isLast = msgid === 0 || (this.isNew && (error instanceof errors.PermissionDeniedError || error instanceof errors.OverloadedError));
    [this.isNew, this.refusal] = [false, isLast ? error : undefined];
    const waiter = this.waiters.get(msgid);
    if (!waiter?.request) return;
    if (error instanceof errors.ShuttingDownError && !this.isSingle) return void this.socket?.destroy(); // all that wait ask another daemon
    this.backoff = BACKOFF_MS;
    waiter.end(error, last);
  }

  /** The daemon tells something, or asks: then it gets an answer with the msgid. */
  protected told?(method: string, params: Value, msgid?: number): void;

  /** Fails the calls that have waited long enough, or are refused, and tries again for the others after a pause. */
  protected failed(failure: errors.KazahanaError): void {
    this.socket = undefined;
    if (this.closedBy) return;
    this.lastFailure = failure;
    const isFinal = !(failure instanceof errors.DaemonUnavailableError) || isHopeless(failure);
    const latest = this.wasConnected ? -Infinity : steadyNow() - FIRST_CONNECT_MS; // who began then or earlier has waited long enough
    for (const waiter of this.waiters.values()) {
      if (isFinal || waiter.began <= latest || (waiter.failures++ > 0 && this.isSingle)) waiter.end(failure);
      else if (waiter.request) this.queue.add(waiter);
    }
    if (this.queue.size === 0) return;
    this.retry = setTimer(() => {
      this.retry = undefined;
      this.flush();
    }, this.isSingle ? 0 : this.backoff * (0.5 + Math.random() / 2)).unref();
    this.backoff = Math.min(2 * this.backoff, MAX_BACKOFF_MS);
  }
}
