import { setMaxListeners } from 'node:events';
import * as net from 'node:net';
import {
  ClientClosedError, DaemonUnavailableError, OverloadedError, PermissionDeniedError, ProtocolError, RequestTimeoutError, ShuttingDownError,
  type KazahanaError,
} from './errors.js';
import type { Value } from './msgpack.js';
import { Protocol } from './protocol.js';
import { findSocket, unavailable } from './socket.js';
import { clearTimer, nextTick, setTimer, steadyNow } from './system.js';

/** How long a call waits for the first connection: enough for a daemon that is starting, and short enough to report a missing one soon. */
const FIRST_CONNECT_MS = 1000;
const BACKOFF_MS = 5;
const MAX_BACKOFF_MS = 200;
const READ_BUFFER = 64 << 10;
/** While so many bytes are unsent, calls stay in the queue. A daemon that reads nothing then costs no memory for calls that gave up. */
const MAX_UNSENT = 1 << 20;
/** Deadlines share a timer, since one for each call makes pipelined calls slower. It fires at most this often. */
const SWEEP_MS = 4;

/**
 * A caller that waits until a deadline, for the answer to its request or for an ID of a batch. The time counts from here, so it includes
 * connecting. A signal may end the wait too. The process lives until it is over.
 */
export class Waiter {
  readonly began = steadyNow();
  readonly deadline: number;
  connection: Connection | undefined; // where the request went
  msgid = 0;
  private fulfil!: (value: Value) => void;
  private refuse!: (error: unknown) => void;
  readonly promise = new Promise<Value>((resolve, reject) => {
    this.fulfil = resolve;
    this.refuse = reject;
  });

  constructor(
    private readonly channel: Channel,
    readonly timeout: number,
    private readonly signal?: AbortSignal,
    readonly request?: Buffer,
  ) {
    this.deadline = this.began + timeout;
    if (signal) setMaxListeners(0, signal); // one signal may end many calls, which is not a leak
    signal?.addEventListener('abort', this);
    channel.watch(this); // not before: what is no signal throws, and nobody would see this wait fail
    if (signal?.aborted) this.handleEvent();
  }

  /** The signal's event. */
  handleEvent(): void {
    this.reject(this.signal?.reason);
  }

  resolve(value: Value): void {
    this.end();
    this.fulfil(value);
  }

  reject(error: unknown): void {
    this.end();
    this.refuse(error);
  }

  private end(): void {
    this.channel.forget(this);
    this.signal?.removeEventListener('abort', this);
    this.connection?.waiting.delete(this.msgid);
  }
}

/** A socket with a Protocol on it. When it closes, `closed` repeats the calls under way on another one. */
export class Connection extends Protocol<Waiter> {
  readonly socket: net.Socket;
  error: Error | undefined;
  refusal: KazahanaError | undefined;

  constructor(
    readonly path: string,
    private readonly channel: Channel,
  ) {
    super();
    const callback = (length: number, buffer: Uint8Array) => this.read((buffer as Buffer).subarray(0, length));
    this.socket = net.connect({ path, onread: { buffer: Buffer.allocUnsafeSlow(READ_BUFFER), callback } }).unref();
    this.socket.on('connect', () => channel.opened());
    this.socket.on('drain', () => channel.flush());
    this.socket.on('error', (error) => (this.error ??= error));
    this.socket.on('close', () => channel.closed(this));
  }

  private read(chunk: Buffer): boolean {
    try {
      this.decoder.feed(chunk);
    } catch (error) {
      // An exception that left a socket's callback would end the process.
      this.refusal = new ProtocolError(`the daemon's message cannot be read: ${(error as Error).message}`, { cause: error });
      this.socket.destroy();
    }
    return !this.socket.destroyed;
  }

  protected answered(waiter: Waiter | undefined, error: KazahanaError | undefined, result: Value): void {
    // A daemon that turns a client away answers the first request, and closes.
    const isLast = !waiter || (waiter.msgid === 1 && (error instanceof PermissionDeniedError || error instanceof OverloadedError));
    this.refusal = isLast ? error : undefined;
    if (waiter) this.channel.answered(waiter, error, result);
  }
}

/**
 * Calls over one connection at a time. The calls of a tick share a write (flush). After a loss it makes a new connection and repeats the
 * calls under way (closed): every method that this package calls may be repeated. A call ends with its answer (answered), at its deadline
 * (sweep), or when there is no daemon to wait for (disconnected).
 */
export class Channel {
  /** Whether a daemon was ever reached. */
  wasConnected = false;
  protected connection: Connection | undefined;
  /** The waits that are not over. */
  readonly waiters = new Set<Waiter>();
  /** Set while there is no connection after a failure. */
  protected lastFailure: KazahanaError | undefined;
  private queue = new Set<Waiter>();
  protected closedBy: KazahanaError | undefined;
  private backoff = BACKOFF_MS;
  private retry: NodeJS.Timeout | undefined;
  private sweeper: NodeJS.Timeout | undefined;
  private sweepAt = Infinity;

  /** A single one fails a call when the daemon is away, instead of repeating it. */
  constructor(
    private readonly path: string | undefined,
    readonly isSingle = false,
  ) {}

  /** Calls a method. It rejects with the daemon's error, at the deadline, or with the signal's reason. */
  call(request: Buffer, timeout: number, signal?: AbortSignal): Promise<Value> {
    const waiter = new Waiter(this, timeout, signal, request);
    if (this.closedBy) waiter.reject(this.closedBy);
    if (this.waiters.has(waiter)) this.enqueue(waiter);
    return waiter.promise;
  }

  /** Fails all waiting calls and closes the connection. */
  close(reason: KazahanaError = new ClientClosedError('the client is closed')): void {
    this.closedBy ??= reason;
    for (const timer of [this.retry, this.sweeper]) clearTimer(timer);
    this.sweepAt = -Infinity; // no later call begins a timer, which would keep the connection's memory
    for (const waiter of this.waiters) waiter.reject(reason);
    this.connection?.socket.destroy();
  }

  /** Ends a wait at its deadline, and keeps the process alive until then. */
  watch(waiter: Waiter): void {
    this.waiters.add(waiter);
    this.sweeper?.ref();
    if (waiter.deadline >= this.sweepAt) return;
    clearTimer(this.sweeper);
    this.sweepAt = waiter.deadline;
    this.sweeper = setTimer(() => this.sweep(), Math.max(waiter.deadline - steadyNow(), SWEEP_MS));
  }

  forget(waiter: Waiter): void {
    this.waiters.delete(waiter);
    this.queue.delete(waiter);
    if (this.waiters.size === 0) this.sweeper?.unref();
  }

  private sweep(): void {
    const now = steadyNow();
    this.sweepAt = Infinity;
    for (const waiter of this.waiters) {
      const { deadline, timeout } = waiter;
      if (deadline > now) this.watch(waiter);
      else waiter.reject(this.lastFailure ?? new RequestTimeoutError(`no answer from the daemon within ${timeout} ms`, { details: { waited_ms: String(timeout) } }));
    }
  }

  /** Sees to it that the request is sent: others in the queue have done so already. */
  private enqueue(waiter: Waiter): void {
    if (this.queue.add(waiter).size === 1) nextTick(() => this.flush());
  }

  /** Sends the requests in the queue, on a new connection if there is none. */
  flush(): void {
    if (this.queue.size === 0 || this.retry || this.closedBy) return;
    try {
      this.connection ??= new Connection(this.path ?? findSocket(), this);
    } catch (error) {
      return this.disconnected(error as KazahanaError);
    }
    const { connection } = this;
    for (const waiter of this.queue) {
      if (connection.size + connection.socket.writableLength > MAX_UNSENT) break; // until 'drain'
      this.queue.delete(waiter);
      waiter.msgid = connection.ask(waiter.request!, waiter);
      waiter.connection = connection;
    }
    if (connection.size > 0) connection.socket.write(connection.take());
  }

  opened(): void {
    this.wasConnected = true;
    this.lastFailure = undefined;
  }

  answered(waiter: Waiter, error: KazahanaError | undefined, result: Value): void {
    if (error instanceof ShuttingDownError && !this.isSingle) {
      this.enqueue(waiter); // all that wait are to ask another daemon, on another connection
      this.connection?.socket.destroy();
      return;
    }
    this.backoff = BACKOFF_MS;
    if (error) waiter.reject(error);
    else waiter.resolve(result);
  }

  /** Has the calls under way repeated, unless the daemon has refused them. */
  closed({ path, error, refusal, waiting }: Connection): void {
    this.connection = undefined;
    if (this.closedBy) return;
    const failure = unavailable(path, error ?? new Error('the connection was closed'));
    if (refusal || this.isSingle) for (const waiter of waiting.values()) waiter.reject(refusal ?? failure);
    this.queue = new Set([...waiting.values(), ...this.queue]);
    this.disconnected(failure);
  }

  /** Fails the calls that have waited long enough for a first connection, and tries again for the others after a pause. */
  private disconnected(failure: KazahanaError): void {
    this.lastFailure = failure;
    const isAway = failure instanceof DaemonUnavailableError; // else KAZAHANA_SOCKET names no socket
    const patience = this.isSingle || !isAway ? 0 : this.wasConnected ? Infinity : FIRST_CONNECT_MS;
    const now = steadyNow();
    for (const waiter of this.waiters) if (now - waiter.began >= patience) waiter.reject(failure);
    if (this.queue.size === 0) return;
    const delay = this.backoff * (0.5 + Math.random() / 2);
    this.backoff = Math.min(2 * this.backoff, MAX_BACKOFF_MS);
    this.retry ??= setTimer(() => {
      this.retry = undefined;
      this.flush();
    }, delay).unref();
  }
}
