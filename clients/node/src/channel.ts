import { setMaxListeners } from 'node:events';
import * as net from 'node:net';
import { performance } from 'node:perf_hooks';
import {
  ClientClosedError, DaemonUnavailableError, OverloadedError, PermissionDeniedError, ProtocolError, RequestTimeoutError, ShuttingDownError,
  type KazahanaError,
} from './errors.js';
import type { Value } from './msgpack.js';
import { Protocol, type Body } from './protocol.js';
import { findSocket, isHopeless, unavailable } from './socket.js';

/** How long to try the first connection: enough for a daemon that is starting, and short enough to report a missing one soon. */
const FIRST_CONNECT_MS = 1000;
const BACKOFF_MS = 5;
const MAX_BACKOFF_MS = 200;
const READ_BUFFER = 64 << 10;
/** All deadlines are checked together, at most this often. */
const SWEEP_MS = 4;

/**
 * A wait until a deadline: for the answer to `body`, or for an ID of a batch. To end it, call Channel.finish first, and do nothing if that
 * returns false.
 */
export class Waiter {
  readonly promise: Promise<Value>;
  readonly deadline: number;
  resolve!: (value: Value) => void;
  reject!: (error: unknown) => void;
  onAbort: (() => void) | undefined;
  connection: Connection | undefined; // where the request went
  msgid = 0;
  done = false;

  constructor(
    readonly timeout: number,
    readonly signal?: AbortSignal,
    readonly body?: Body,
  ) {
    this.deadline = performance.now() + timeout;
    this.promise = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }
}

/** Answers a request of the daemon, once: with the text of an error, or a result. */
export type Answer = (error: string | null, result: unknown) => void;

/** A socket with a Protocol on it. It closes once, and never opens again. */
class Connection extends Protocol<Waiter> {
  readonly socket: net.Socket;
  isOpen = false;
  isRetired = false; // it closes after the last answer
  error: unknown;
  refusal: KazahanaError | undefined;

  constructor(
    readonly file: string,
    private readonly channel: Channel,
  ) {
    super();
    const callback = (length: number, buffer: Uint8Array) => this.read((buffer as Buffer).subarray(0, length));
    this.socket = net.connect({ path: file, onread: { buffer: Buffer.allocUnsafeSlow(READ_BUFFER), callback } });
    this.socket.on('connect', () => {
      this.isOpen = true;
      channel.opened();
    });
    this.socket.on('error', (error) => (this.error ??= error));
    this.socket.on('close', () => channel.closed(this));
  }

  flush(): void {
    const bytes = this.take();
    if (bytes.length > 0) this.socket.write(bytes);
  }

  private read(chunk: Buffer): boolean {
    try {
      this.feed(chunk);
    } catch (error) {
      // An exception that left a socket's callback would end the process.
      const message = `the daemon's message cannot be read: ${String(error)}`;
      this.refusal = error instanceof ProtocolError ? error : new ProtocolError(message, { cause: error });
      this.socket.destroy();
    }
    if (this.isRetired && this.waiting.size === 0) this.socket.destroy();
    return !this.socket.destroyed;
  }

  protected answered(call: Waiter | undefined, error: KazahanaError | undefined, result: Value): void {
    // A daemon that turns a client away sends one error and closes.
    const isLast = !call || error instanceof PermissionDeniedError || error instanceof OverloadedError;
    this.refusal = isLast ? error : undefined;
    if (call) this.channel.answered(call, error, result);
  }

  protected told(method: string, params: Value, msgid?: number): void {
    const answer = (error: string | null, result: unknown) => {
      this.respond(msgid!, error, result);
      this.flush();
    };
    this.channel.onMessage?.(method, params, msgid === undefined ? undefined : answer);
  }
}

/**
 * Calls over one connection at a time. The calls of a tick share a write. After a loss it makes a new connection and repeats the calls
 * under way: every method that this package calls may be repeated.
 */
export class Channel {
  /** Called with each notification, and with each request of the daemon, which it sends only after a registration and which has an answer. */
  onMessage: ((method: string, params: Value, answer?: Answer) => void) | undefined;
  /** Whether a daemon was ever reached. */
  wasConnected = false;
  private connection: Connection | undefined; // for requests; the others only finish what they have begun
  private readonly connections = new Set<Connection>();
  private readonly waiters = new Set<Waiter>();
  private queue: Waiter[] = [];
  private isFlushing = false;
  private onLoss: ((error: KazahanaError) => void) | undefined; // set: the connection is not replaced
  private closedBy: KazahanaError | undefined;
  private failingSince: number | undefined;
  private lastFailure: DaemonUnavailableError | undefined;
  private backoff = BACKOFF_MS;
  private retry: NodeJS.Timeout | undefined;
  private sweeper: NodeJS.Timeout | undefined;
  private sweepAt = Infinity;

  /**
   * A kept channel keeps the process alive until it is closed, any other only during calls. A single one fails a call when the daemon is
   * away, instead of repeating it.
   */
  constructor(
    private readonly socket: string | undefined,
    private readonly isKept = false,
    readonly isSingle = false,
  ) {}

  /** Calls a method. It rejects with the daemon's error, at the deadline, or with the signal's reason. */
  call(body: Body, timeout: number, signal?: AbortSignal): Promise<Value> {
    const call = new Waiter(timeout, signal, body);
    if (this.wait(call)) {
      this.queue.push(call);
      this.flushSoon();
    }
    return call.promise;
  }

  /** Watches a waiter's deadline, and keeps the process alive meanwhile. It returns false if the wait is over already. */
  wait(waiter: Waiter): boolean {
    const { signal } = waiter;
    if (this.closedBy || signal?.aborted) {
      waiter.done = true;
      waiter.reject(this.closedBy ?? signal?.reason);
      return false;
    }
    if (signal) {
      setMaxListeners(0, signal); // one signal may end many calls, which is not a leak
      waiter.onAbort = () => this.fail(waiter, signal.reason);
      signal.addEventListener('abort', waiter.onAbort, { once: true });
    }
    if (this.waiters.size === 0) this.keepAlive(true);
    this.waiters.add(waiter);
    this.sweepBy(waiter.deadline);
    return true;
  }

  /** Ends a wait, and returns whether it had not ended before. */
  finish(waiter: Waiter): boolean {
    if (waiter.done) return false;
    waiter.done = true;
    this.waiters.delete(waiter);
    if (waiter.onAbort) waiter.signal?.removeEventListener('abort', waiter.onAbort);
    if (this.waiters.size === 0) this.keepAlive(false);
    return true;
  }

  /** From now on, or from the first connection on, a lost connection ends the channel and calls onLoss. */
  pin(onLoss: (error: KazahanaError) => void): void {
    this.onLoss = onLoss;
    const isLost = this.wasConnected && !this.connection?.isOpen;
    if (isLost) this.close(this.lastFailure ?? new DaemonUnavailableError('the connection to the daemon was lost'));
  }

  /** Fails all waiting calls and closes the connection. */
  close(reason: KazahanaError = new ClientClosedError('the client is closed')): void {
    if (this.closedBy) return;
    this.closedBy = reason;
    clearTimeout(this.retry);
    clearTimeout(this.sweeper);
    this.failAll(reason);
    for (const { socket } of this.connections) socket.destroy();
    this.onLoss?.(reason);
  }

  private fail(waiter: Waiter, reason: unknown): void {
    if (!this.finish(waiter)) return;
    waiter.connection?.waiting.delete(waiter.msgid);
    waiter.reject(reason);
  }

  private failAll(reason: KazahanaError): void {
    this.queue = [];
    for (const waiter of this.waiters) this.fail(waiter, reason);
  }

  private keepAlive(isNeeded: boolean): void {
    if (this.isKept) return;
    const change = isNeeded ? 'ref' : 'unref';
    for (const { socket } of this.connections) socket[change]();
    this.retry?.[change]();
  }

  private sweepBy(deadline: number): void {
    if (deadline >= this.sweepAt) return;
    clearTimeout(this.sweeper);
    this.sweepAt = deadline;
    // A socket or a retry keeps the process alive during calls.
    this.sweeper = setTimeout(() => this.sweep(), Math.max(Math.ceil(deadline - performance.now()), 1)).unref();
  }

  private sweep(): void {
    const now = performance.now();
    this.sweepAt = Infinity;
    for (const waiter of this.waiters) {
      if (waiter.deadline <= now) this.fail(waiter, this.timeoutError(waiter));
      else this.sweepBy(Math.max(waiter.deadline, now + SWEEP_MS));
    }
  }

  private timeoutError({ timeout }: Waiter): KazahanaError {
    if (!this.connection?.isOpen && this.lastFailure) return this.lastFailure;
    return new RequestTimeoutError(`no answer from the daemon within ${timeout} ms`, { details: { waited_ms: String(timeout) } });
  }

  private flushSoon(): void {
    if (this.isFlushing) return;
    this.isFlushing = true;
    process.nextTick(() => {
      this.isFlushing = false;
      this.flush();
    });
  }

  private flush(): void {
    const { connection, queue } = this;
    if (queue.length === 0) return;
    if (!connection) return this.connect();
    if (!connection.isOpen) return;
    this.queue = [];
    const now = performance.now();
    for (const call of queue) {
      if (call.done) continue;
      try {
        call.msgid = connection.request(call.body!(call.deadline - now), call);
        call.connection = connection;
      } catch (error) {
        this.fail(call, error); // it cannot be encoded
      }
    }
    connection.flush();
  }

  private connect(): void {
    if (this.retry || this.closedBy) return;
    try {
      this.connection = new Connection(this.socket ?? findSocket(), this);
      this.connections.add(this.connection);
    } catch (error) {
      this.disconnected(error as DaemonUnavailableError);
    }
  }

  opened(): void {
    this.wasConnected = true;
    this.failingSince = this.lastFailure = undefined;
    if (this.waiters.size === 0) this.keepAlive(false);
    this.flush();
  }

  answered(call: Waiter, error: KazahanaError | undefined, result: Value): void {
    if (error instanceof ShuttingDownError && !this.onLoss && !this.isSingle) return this.askAgain(call);
    this.backoff = BACKOFF_MS;
    if (!this.finish(call)) return;
    if (error) call.reject(error);
    else call.resolve(result);
  }

  /** Repeats the call elsewhere: a stopping daemon still answers calls that it has begun, and refuses the others. */
  private askAgain(call: Waiter): void {
    this.queue.push(call);
    this.flushSoon();
    if (call.connection !== this.connection || !this.connection) return;
    this.connection.isRetired = true;
    this.connection = undefined;
    this.reconnectLater();
  }

  closed(connection: Connection): void {
    this.connections.delete(connection);
    const isCurrent = connection === this.connection;
    if (isCurrent) this.connection = undefined;
    if (this.closedBy) return;
    const { file, error, refusal } = connection;
    const failure = unavailable(file, error ?? new Error('the connection was closed'));
    const calls = [...connection.waiting.values()];
    if (refusal || this.isSingle) for (const call of calls) this.fail(call, refusal ?? failure);
    this.queue = calls.filter(({ done }) => !done).concat(this.queue);
    if (!isCurrent) this.flushSoon();
    else if (this.onLoss && this.wasConnected) this.close(refusal ?? failure);
    else this.disconnected(failure);
  }

  /** Fails the waiting calls, or tries to connect again while that makes sense. */
  private disconnected(failure: DaemonUnavailableError): void {
    const now = performance.now();
    this.failingSince ??= now;
    this.lastFailure = failure;
    const patience = this.isSingle ? 0 : this.wasConnected ? Infinity : FIRST_CONNECT_MS;
    if (isHopeless(failure) || now - this.failingSince >= patience) this.failAll(failure);
    if (this.waiters.size > 0) this.reconnectLater();
    else this.failingSince = undefined;
  }

  private reconnectLater(): void {
    const delay = this.backoff * (0.5 + Math.random() / 2);
    this.backoff = Math.min(2 * this.backoff, MAX_BACKOFF_MS);
    this.retry ??= setTimeout(() => {
      this.retry = undefined;
      if (this.waiters.size > 0) this.connect();
    }, delay);
  }
}
