import { InvalidParamsError, ProtocolError, type KazahanaError } from './errors.js';
import { errorFromText } from './errortext.js';
import { Decoder, encode, type Value } from './msgpack.js';

/** The largest answer that is accepted; 65,536 IDs as strings are 1.4 MB. */
export const MAX_RESPONSE = 4 << 20;
/** The largest request: the daemon would close the connection. */
const MAX_REQUEST = 256 << 10;
/** [0, msgid, ...: ask() writes the msgid. */
const HEAD = Buffer.of(0x94, 0, 0xce, 0, 0, 0, 0);
const MSGID_AT = 3;
const CHUNK = 16 << 10;

/** The bytes of a request, without its msgid: encoded once for every time that it is sent. */
export function encodeCall(method: string, params: readonly unknown[]): Buffer {
  const bytes = Buffer.concat([HEAD, encode(method, params)]);
  if (bytes.length <= MAX_REQUEST) return bytes;
  throw new InvalidParamsError(`${method}: a request of ${bytes.length} bytes is too large: it has at most ${MAX_REQUEST}`);
}

/** One connection's MessagePack-RPC, without I/O: requests become bytes, and chunks of bytes become answers, matched by msgid. */
export abstract class Protocol<Waiter> {
  /** Who waits for an answer, by msgid. Any other answer is ignored. */
  readonly waiting = new Map<number, Waiter>();
  private lastId = 0;
  private out = Buffer.allocUnsafe(CHUNK);
  /** The number of bytes that take() gives. */
  size = 0;
  /** Takes in bytes, which it does not keep. A ProtocolError is final: no later byte can be trusted. */
  readonly decoder = new Decoder(MAX_RESPONSE, (message) => this.message(message));

  /** Without a waiter: the daemon answers what it could not read, which is its last word. */
  protected abstract answered(waiter: Waiter | undefined, error: KazahanaError | undefined, result: Value): void;
  /** The daemon tells something, or asks: then it gets an answer with the msgid. */
  declare told?: (method: string, params: Value, msgid?: number) => void;

  /** Adds a request to the bytes that take() gives, and returns its msgid. */
  ask(request: Buffer, waiter: Waiter): number {
    // The daemon answers with msgid 0 what it could not read.
    do this.lastId = (this.lastId + 1) >>> 0;
    while (this.lastId === 0 || this.waiting.has(this.lastId));
    this.waiting.set(this.lastId, waiter);
    const at = this.add(request);
    this.out.writeUInt32BE(this.lastId, at + MSGID_AT);
    return this.lastId;
  }

  /** Adds bytes to what take() gives, and returns where they are. */
  add(bytes: Buffer): number {
    const begin = this.size;
    this.size += bytes.length;
    if (this.size > this.out.length) this.out = Buffer.concat([this.out.subarray(0, begin)], Math.max(CHUNK, 2 * this.size));
    this.out.set(bytes, begin);
    return begin;
  }

  /** The bytes of the requests and answers since the last call. */
  take(): Buffer {
    const bytes = this.out.subarray(0, this.size);
    this.out = this.out.subarray(this.size); // what is taken may still be on its way out: it is never written again
    this.size = 0;
    return bytes;
  }

  private message(message: Value): void {
    if (!Array.isArray(message)) throw new ProtocolError('the daemon sent no MessagePack-RPC: is another program behind the socket?');
    const [type, id, third, last] = message as [Value, Value, Value, Value];
    if (type === 2 && message.length === 3 && typeof id === 'string') return this.told?.(id, third);
    const isRequest = type === 0 && typeof third === 'string';
    if (message.length !== 4 || !Number.isInteger(id) || (type !== 1 && !isRequest)) {
      throw new ProtocolError('the daemon sent an array that is no message');
    }
    if (isRequest) return this.told?.(third, last, id as number);
    const error = third === null ? undefined : errorOf(third);
    const waiter = this.waiting.get(id as number);
    this.waiting.delete(id as number);
    if (waiter !== undefined || (id === 0 && error)) this.answered(waiter, error, last);
  }
}

/** An error is [kind, text]. */
function errorOf(error: Value): KazahanaError {
  if (Array.isArray(error) && typeof error[1] === 'string') return errorFromText(error[1]);
  throw new ProtocolError('an error of the daemon is not [kind, text]');
}
