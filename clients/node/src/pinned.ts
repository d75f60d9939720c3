import { Channel } from './channel.js';
import type { KazahanaError } from './errors.js';
import { encode, type Value } from './wire.js';

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

  /** From now on, or from the first connection on, a lost connection ends the channel and calls onLoss, and no call is repeated. */
  pin(onLoss: (error: KazahanaError) => void): void {
    this.onLoss = onLoss;
    this.isSingle ||= this.wasConnected;
    this.endIfLost();
  }

  override close(reason?: KazahanaError): void {
    if (this.closedBy) return;
    super.close(reason);
    this.onLoss?.(this.closedBy!);
  }

  protected override opened(): void {
    super.opened();
    if (this.isKept) this.socket!.ref();
    this.isSingle ||= this.onLoss !== undefined;
  }

  protected override told(method: string, params: Value, msgid?: number): void {
    const answer: Answer = (error, result) => {
      if (this.socket?.writable) this.socket.write(response(msgid!, error, result));
    };
    this.onMessage?.(method, params, msgid === undefined ? undefined : answer);
  }

  protected override failed(failure: KazahanaError): void {
    super.failed(failure);
    this.endIfLost();
  }

  private endIfLost(): void {
    if (this.onLoss && this.wasConnected && this.lastFailure) this.close(this.lastFailure);
  }
}

/** The answer to a request of the daemon: an error, by its text, or a result. */
export function response(msgid: number, error: string | null, result: unknown): Buffer {
  return Buffer.concat(encode([1, msgid, error === null ? null : [0, error], result]));
}
