import { setMaxListeners } from 'node:events';
import * as net from 'node:net';
import { performance } from 'node:perf_hooks';
import {
  ClientClosedError, DaemonUnavailableError, OverloadedError, PermissionDeniedError, ProtocolError, RequestTimeoutError, ShuttingDownError,
  type KazahanaError,
} from './errors.js';
import type { Value } from './msgpack.js';
import { Protocol, type Receiver } from './protocol.js';
import { findSocket, isHopeless, unavailable } from './socket.js';

/** How long to try the first connection: enough for a daemon that is starting, and short enough to report a missing one soon. */
export const FIRST_CONNECT_MS = 1000;
const BACKOFF_MS = 5;
const MAX_BACKOFF_MS = 200;
const READ_BUFFER = 64 << 10;
/** All deadlines are checked together, at most this often. */
const SWEEP_MS = 4;

/** A wait until a deadline. To end it, call Channel.finish first, and do nothing if that returns false. */
export class Waiter<T> {
  readonly promise: Promise<T>;
  readonly deadline: number;
  resolve!: (value: T) => void;
  reject!: (error: unknown) => void;
  onAbort: (() => void) | undefined = undefined;
  done = false;

  constructor(
    readonly timeout: number,
    readonly signal: AbortSignal | undefined,
    now: number,
  ) {
    this.deadline = now + timeout;
    this.promise = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }
}

/** A waiter of any type: it can only fail. */
type Waiting = Omit<Waiter<unknown>, 'promise' | 'resolve'>;

/** Encodes a request, for the remaining milliseconds. */
export type Body = (remaining: number) => Uint8Array;

class Call extends Waiter<Value> {
  connection: Connection | undefined = undefined;
  msgid = 0;
  constructor(
    readonly body: Body,
    timeout: number,
    signal: AbortSignal | undefined,
    now: number,
  ) {
    super(timeout, signal, now);
  }
}

/** Answers a request of the daemon, once: with the text of an error, or a result. */
export type Answer = (error: string | null, result: unknown) => void;

/** A socket with a Protocol on it. It closes once, and never opens again. */
class Connection implements Receiver<Call> {
  readonly protocol = new Protocol<Call>(this);
  isOpen = false;
  isRetired = false;
  private readonly socket: net.Socket;
  private error: unknown;
  private refusal: KazahanaError | undefined;

  constructor(
    readonly file: string,
    private readonly channel: Channel,
  ) {
    this.socket = net.connect({
      path: file,
      onread: { buffer: Buffer.allocUnsafeSlow(READ_BUFFER), callback: (length, buffer) => this.read(buffer as Buffer, length) },
    });
    this.socket.on('connect', () => {
      this.isOpen = true;
      channel.opened();
    });
    this.socket.on('error', (error) => (this.error ??= error));
    this.socket.on('close', () => channel.closed(this, this.error, this.refusal));
  }

  flush(): void {
    const bytes = this.protocol.take();
    if (bytes.length > 0) this.socket.write(bytes);
  }

  /** Sends nothing more, and closes after the last answer. */
  retire(): void {
    this.isRetired = true;
    if (this.protocol.pending === 0) this.socket.destroy();
  }

  destroy(): void {
    this.socket.destroy();
  }

  ref(needed: boolean): void {
    if (needed) this.socket.ref();
    else this.socket.unref();
  }

  private read(buffer: Buffer, length: number): boolean {
    try {
      this.protocol.feed(buffer.subarray(0, length));
    } catch (error) {
      // An exception that left a socket's callback would end the process.
      const unreadable = error instanceof ProtocolError ? error : new ProtocolError(`the daemon's message cannot be read: ${String(error)}`, { cause: error });
      this.refusal = this.error = unreadable;
      this.socket.destroy();
      return false;
    }
    if (this.isRetired && this.protocol.pending === 0) this.socket.destroy();
    return true;
  }

  answered(call: Call, error: KazahanaError | null, result: Value): void {
    // A daemon that turns a client away sends one error and closes.
    this.refusal = error instanceof PermissionDeniedError || error instanceof OverloadedError ? error : undefined;
    this.channel.answered(call, error, result);
  }

  refused(error: KazahanaError): void {
    this.refusal = error;
  }

  notified(method: string, params: Value): void {
    this.channel.onNotification?.(method, params);
  }

  requested(msgid: number, method: string, params: Value): void {
    this.channel.onRequest?.(method, params, (error, result) => {
      this.protocol.respond(msgid, error, result);
      this.flush();
    });
  }
}

/**
 * Calls over one connection at a time. The calls of a tick share a write. After a loss it makes a new connection and repeats the calls
 * under way: every method that this package calls may be repeated.
 */
export class Channel {
  /** Called with each notification. */
  onNotification: ((method: string, params: Value) => void) | undefined;
  /** Called with each request of the daemon, which it sends only after a registration. */
  onRequest: ((method: string, params: Value, answer: Answer) => void) | undefined;
  private connection: Connection | undefined;
  private readonly retiring = new Set<Connection>();
  private readonly waiters = new Set<Waiting>();
  private queue: Call[] = [];
  private isFlushing = false;
  private onLoss: ((error: KazahanaError) => void) | undefined; // set: the connection is not replaced
  private closedBy: KazahanaError | undefined;
  /** Whether a daemon was ever reached. */
  wasConnected = false;
  private failingSince: number | undefined;
  private lastFailure: DaemonUnavailableError | undefined;
  private backoff = BACKOFF_MS;
  private retry: NodeJS.Timeout | undefined;
  private sweeper: NodeJS.Timeout | undefined;
  private sweepAt = Infinity;

  /** A kept channel keeps the process alive until it is closed, any other only during calls. */
  constructor(
    private readonly socket: string | undefined,
    private readonly isKept = false,
    /** Whether a call is failed, instead of repeated, when the daemon is away. */
    readonly isSingle = false,
  ) {}

  /** Calls a method. It rejects with the daemon's error, at the deadline, or with the signal's reason. */
  call(body: Body, timeout: number, signal?: AbortSignal): Promise<Value> {
    const call = new Call(body, timeout, signal, performance.now());
    if (this.wait(call)) {
      this.queue.push(call);
      this.flushSoon();
    }
    return call.promise;
  }

  /** Watches a waiter's deadline, and keeps the process alive meanwhile. It returns false if the wait is over already. */
  wait(waiter: Waiting): boolean {
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
    if (waiter.deadline < this.sweepAt) this.sweepBy(waiter.deadline);
    return true;
  }

  /** Ends a wait, and returns whether it had not ended before. */
  finish(waiter: Waiting): boolean {
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
    if (this.wasConnected && !this.connection?.isOpen) this.close(this.lastFailure ?? new DaemonUnavailableError('the connection to the daemon was lost'));
  }

  /** Fails all waiting calls and closes the connection. */
  close(reason: KazahanaError = new ClientClosedError('the client is closed')): void {
    if (this.closedBy) return;
    this.closedBy = reason;
    clearTimeout(this.retry);
    clearTimeout(this.sweeper);
    this.queue = [];
    for (const waiter of [...this.waiters]) this.fail(waiter, reason);
    for (const connection of [this.connection, ...this.retiring]) connection?.destroy();
    this.onLoss?.(reason);
  }

  private fail(waiter: Waiting, reason: unknown): void {
    if (!this.finish(waiter)) return;
    if (waiter instanceof Call) waiter.connection?.protocol.forget(waiter.msgid);
    waiter.reject(reason);
  }

  private keepAlive(needed: boolean): void {
    if (this.isKept) return;
    this.connection?.ref(needed);
    for (const connection of this.retiring) connection.ref(needed);
    if (needed) this.retry?.ref();
    else this.retry?.unref();
  }

  private sweepBy(deadline: number): void {
    clearTimeout(this.sweeper);
    this.sweepAt = deadline;
    // A socket or a retry keeps the process alive during calls.
    this.sweeper = setTimeout(() => this.sweep(), Math.max(Math.ceil(deadline - performance.now()), 1)).unref();
  }

  private sweep(): void {
    const now = performance.now();
    let next = Infinity;
    for (const waiter of this.waiters) {
      if (waiter.deadline > now) next = Math.min(next, waiter.deadline);
      else this.fail(waiter, this.timeoutError(waiter));
    }
    this.sweepAt = Infinity;
    if (next < Infinity) this.sweepBy(Math.max(next, now + SWEEP_MS));
  }

  private timeoutError(waiter: Waiting): KazahanaError {
    if (!this.connection?.isOpen && this.lastFailure) return this.lastFailure;
    return new RequestTimeoutError(`no answer from the daemon within ${waiter.timeout} ms`, { details: { waited_ms: String(waiter.timeout) } });
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
        call.msgid = connection.protocol.request(call.body(call.deadline - now), call);
        call.connection = connection;
      } catch (error) {
        this.fail(call, error); // it cannot be encoded
      }
    }
    connection.flush();
  }

  private connect(): void {
    if (this.retry || this.closedBy) return;
    let file = this.socket;
    try {
      file ??= findSocket();
    } catch (error) {
      return this.disconnected(error as DaemonUnavailableError);
    }
    this.connection = new Connection(file, this);
  }

  opened(): void {
    this.wasConnected = true;
    this.failingSince = this.lastFailure = undefined;
    if (this.waiters.size === 0) this.keepAlive(false);
    this.flush();
  }

  answered(call: Call, error: KazahanaError | null, result: Value): void {
    if (error instanceof ShuttingDownError && !this.onLoss && !this.isSingle) return this.askAgain(call);
    this.backoff = BACKOFF_MS;
    if (!this.finish(call)) return;
    if (error) call.reject(error);
    else call.resolve(result);
  }

  /** Repeats the call elsewhere: a stopping daemon still answers calls that it has begun, and refuses the others. */
  private askAgain(call: Call): void {
    const { connection } = call;
    this.queue.push(call);
    this.flushSoon();
    if (!connection || connection !== this.connection) return;
    this.connection = undefined;
    this.retiring.add(connection);
    connection.retire();
    this.reconnectLater();
  }

  closed(connection: Connection, error: unknown, refusal: KazahanaError | undefined): void {
    this.retiring.delete(connection);
    const calls = connection.protocol.drain();
    const isCurrent = connection === this.connection;
    if (isCurrent) this.connection = undefined;
    if (this.closedBy) return;
    const failure = unavailable(connection.file, error ?? new Error('the connection was closed'));
    for (const call of calls) if (refusal || this.isSingle) this.fail(call, refusal ?? failure);
    this.queue = [...calls.filter((call) => !call.done), ...this.queue];
    if (!isCurrent) return;
    if (this.onLoss && this.wasConnected) this.close(refusal ?? failure);
    else this.disconnected(failure);
  }

  /** Fails the waiting calls, or tries to connect again while that makes sense. */
  private disconnected(failure: DaemonUnavailableError): void {
    const now = performance.now();
    this.failingSince ??= now;
    this.lastFailure = failure;
    const patience = this.isSingle ? 0 : this.wasConnected ? Infinity : FIRST_CONNECT_MS;
    if (isHopeless(this.lastFailure) || now - this.failingSince >= patience) {
      this.failingSince = undefined;
      this.queue = [];
      for (const waiter of [...this.waiters]) this.fail(waiter, failure);
    }
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
