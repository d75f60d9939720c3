import { Channel, type Connection, type Waiter } from './channel.js';
import { ShuttingDownError, type KazahanaError } from './errors.js';
import { encode, type Value } from './msgpack.js';
import type { Protocol } from './protocol.js';

/** Answers a request of the daemon, once: with the text of an error, or a result. */
export type Answer = (error: string | null, result: unknown) => void;

/** A channel for what ends with its connection: a lock, an executor, a watch. On it the daemon also tells and asks. */
export class PinnedChannel extends Channel {
  /** Called with each notification, and with each request of the daemon, which it sends only after a registration and which has an answer. */
  onMessage: ((method: string, params: Value, answer?: Answer) => void) | undefined;
  private onLoss: ((error: KazahanaError) => void) | undefined;

  /** A kept channel keeps the process alive until it is closed, any other only during calls. */
  constructor(
    socket: string | undefined,
    isSingle = false,
    private readonly isKept = false,
  ) {
    super(socket, isSingle);
  }

  /** From now on, or from the first connection on, a lost connection ends the channel and calls onLoss. */
  pin(onLoss: (error: KazahanaError) => void): void {
    this.onLoss = onLoss;
    this.endIfLost();
  }

  override close(reason?: KazahanaError): void {
    if (this.closedBy) return;
    super.close(reason);
    this.onLoss?.(this.closedBy!);
  }

  override opened(): void {
    super.opened();
    const connection = this.connection!;
    if (this.isKept) connection.socket.ref();
    connection.told = (method, params, msgid) => {
      const answer: Answer = (error, result) => {
        respond(connection, msgid!, error, result);
        connection.socket.write(connection.take());
      };
      this.onMessage?.(method, params, msgid === undefined ? undefined : answer);
    };
  }

  override answered(waiter: Waiter, error: KazahanaError | undefined, result: Value): void {
    if (this.onLoss && error instanceof ShuttingDownError) waiter.reject(error);
    else super.answered(waiter, error, result);
  }

  override closed(connection: Connection): void {
    super.closed(connection);
    this.endIfLost(connection.refusal);
  }

  private endIfLost(refusal?: KazahanaError): void {
    if (this.onLoss && this.wasConnected && this.lastFailure) this.close(refusal ?? this.lastFailure);
  }
}

/** Adds the answer to a request of the daemon: an error, by its text, or a result. */
export function respond(protocol: Protocol<unknown>, msgid: number, error: string | null, result: unknown): void {
  protocol.add(encode([1, msgid, error === null ? null : [0, error], result]));
}
