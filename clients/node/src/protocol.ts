import { errorFromText, InvalidParamsError, ProtocolError, type KazahanaError } from './errors.js';
import { encode, Reader, Splitter, type Value } from './msgpack.js';

/** The largest answer that is accepted; 65,536 IDs as strings are 1.4 MB. */
export const MAX_RESPONSE = 4 << 20;
/** The largest request: the daemon would close the connection. */
const MAX_REQUEST = 1 << 20;

const EMPTY = Buffer.alloc(0);
const CHUNK = 16 << 10;
const HEAD = 7; // [0, msgid, ...: the array's head, the type, and a msgid of 5 bytes

/** The method and the params of a request, encoded once for every time that it is sent. */
export function encodeCall(method: string, params: readonly unknown[]): Buffer {
  const bytes = encode(method, params);
  if (bytes.length > MAX_REQUEST - HEAD) throw new InvalidParamsError(`${method}: a request of ${bytes.length} bytes is too large: it has at most ${MAX_REQUEST}`);
  return bytes;
}

/** What a Protocol tells of the messages that came. */
export interface Receiver<Call> {
  answered(call: Call, error: KazahanaError | null, result: Value): void;
  /** The daemon answered what it could not read: its last word. */
  refused(error: KazahanaError): void;
  notified(method: string, params: Value): void;
  /** The daemon asks something: respond() with the same msgid. */
  requested(msgid: number, method: string, params: Value): void;
}

/** One connection's MessagePack-RPC, without I/O: requests become bytes, and chunks of bytes become answers, matched by msgid. */
export class Protocol<Call> {
  private readonly waiting = new Map<number, Call>();
  private lastId = 0;
  private out = Buffer.allocUnsafe(CHUNK);
  private taken = 0;
  private end = 0;
  private readonly splitter = new Splitter(MAX_RESPONSE);
  private kept = EMPTY; // with the beginning of a message, of keptLength
  private keptLength = 0;

  constructor(private readonly receiver: Receiver<Call>) {}

  get pending(): number {
    return this.waiting.size;
  }

  /** Adds a request to the bytes that take() gives, and returns its msgid. */
  request(body: Uint8Array, call: Call): number {
    // The daemon answers with msgid 0 what it could not read.
    do this.lastId = (this.lastId + 1) >>> 0;
    while (this.lastId === 0 || this.waiting.has(this.lastId));
    this.waiting.set(this.lastId, call);
    const end = this.room(HEAD + body.length);
    const { out, lastId } = this;
    out[end] = 0x94;
    out[end + 1] = 0;
    out[end + 2] = 0xce;
    out[end + 3] = lastId >>> 24;
    out[end + 4] = lastId >>> 16;
    out[end + 5] = lastId >>> 8;
    out[end + 6] = lastId;
    out.set(body, end + HEAD);
    return lastId;
  }

  /** Adds the answer to a request of the daemon: an error, by its text, or a result. */
  respond(msgid: number, error: string | null, result: unknown): void {
    const answer = encode([1, msgid, error === null ? null : [0, error], result]);
    const at = this.room(answer.length);
    this.out.set(answer, at);
  }

  /** Makes room for so many bytes and returns where they go. */
  private room(size: number): number {
    if (this.end + size > this.out.length) {
      // What was taken may still be on its way out: it is never written again.
      const next = Buffer.allocUnsafe(Math.max(CHUNK, 2 * (this.end - this.taken + size)));
      this.out.copy(next, 0, this.taken, this.end);
      this.end -= this.taken;
      this.taken = 0;
      this.out = next;
    }
    this.end += size;
    return this.end - size;
  }

  /** The bytes of the requests and answers since the last call. */
  take(): Buffer {
    const bytes = this.out.subarray(this.taken, this.end);
    this.taken = this.end;
    return bytes;
  }

  /** Gives up waiting: an answer that still comes is ignored. */
  forget(msgid: number): void {
    this.waiting.delete(msgid);
  }

  /** The calls that still wait, in the order of their requests; they are forgotten. */
  drain(): Call[] {
    const calls = [...this.waiting.values()];
    this.waiting.clear();
    return calls;
  }

  /** Takes in bytes, which it does not keep. A ProtocolError is final: no later byte can be trusted. */
  feed(chunk: Buffer): void {
    let [buf, length] = [chunk, chunk.length];
    if (this.keptLength > 0) {
      this.keep(chunk);
      [buf, length] = [this.kept, this.keptLength];
    }
    const reader = new Reader(buf);
    let at = 0;
    for (let end: number; at < length && (end = this.splitter.end(buf, at, length)) >= 0; at = end) this.message(reader.valueAt(at));
    if (buf === chunk) {
      if (at < length) this.keep(chunk.subarray(at));
    } else {
      this.kept.copyWithin(0, at, length);
      this.keptLength = length - at;
    }
    if (this.keptLength === 0) this.kept = EMPTY;
  }

  private keep(bytes: Buffer): void {
    const length = this.keptLength + bytes.length;
    if (length > this.kept.length) {
      const larger = Buffer.allocUnsafe(2 * length);
      this.kept.copy(larger, 0, 0, this.keptLength);
      this.kept = larger;
    }
    bytes.copy(this.kept, this.keptLength);
    this.keptLength = length;
  }

  private message(message: Value): void {
    if (!Array.isArray(message)) throw new ProtocolError('the daemon sent no MessagePack-RPC: is another program behind the socket?');
    const [type, id, error, result] = message;
    if (type === 2 && message.length === 3 && typeof id === 'string') return this.receiver.notified(id, error as Value);
    if (type === 0 && message.length === 4 && Number.isInteger(id) && typeof error === 'string') return this.receiver.requested(id as number, error, result as Value);
    if (type !== 1 || message.length !== 4 || !Number.isInteger(id)) throw new ProtocolError('the daemon sent an array that is no message');
    const failure = error === null ? null : errorOf(error as Value);
    if (id === 0 && failure) return this.receiver.refused(failure);
    const call = this.waiting.get(id as number);
    if (call === undefined) return; // forgotten
    this.waiting.delete(id as number);
    this.receiver.answered(call, failure, result as Value);
  }
}

/** An error is [kind, text]; other servers send a text alone. */
function errorOf(error: Value): KazahanaError {
  const text = Array.isArray(error) ? error[1] : error;
  if (typeof text === 'string') return errorFromText(text);
  throw new ProtocolError('an error of the daemon is neither a text nor [kind, text]');
}
