import { InvalidParamsError, ProtocolError } from './errors.js';

/** A decoded MessagePack value: an integer of 64 bits is a bigint, however small it is, and any other one a number. */
export type Value = null | boolean | number | bigint | string | Uint8Array | Value[] | { [key: string]: Value };

/** The maximum nesting of values: more than any answer needs. */
export const MAX_DEPTH = 32;
/** The largest message that is accepted; 65,536 IDs as strings are 1.4 MB. */
export const MAX_MESSAGE = 4 << 20;
/** The largest request: the daemon would close the connection. */
const MAX_REQUEST = 256 << 10;
/** [0, msgid, ...: the channel writes the msgid. */
const HEAD = Buffer.of(0x94, 0, 0xce, 0, 0, 0, 0);
export const MSGID_AT = 3;

const BYTES = Array.from({ length: 256 }, (_, byte) => Buffer.of(byte));

/** The bytes of a request, without its msgid. */
export function encodeCall(method: string, params: readonly unknown[]): Buffer {
  const bytes = Buffer.concat([HEAD, ...encode(method), ...encode(params)]);
  if (bytes.length <= MAX_REQUEST) return bytes;
  throw new InvalidParamsError(`${method}: a request of ${bytes.length} bytes is too large: it has at most ${MAX_REQUEST}`);
}

/** The bytes, in pieces, of null, booleans, integers of 64 bits, strings, bytes, arrays, and maps, whose undefined members are left out. */
export function encode(value: unknown): Uint8Array[] {
  if (value === null || value === undefined) return [BYTES[0xc0]!];
  if (typeof value === 'boolean') return [BYTES[value ? 0xc3 : 0xc2]!];
  if (typeof value === 'bigint' || Number.isSafeInteger(value)) return [integer(value as bigint | number)];
  if (typeof value === 'string') return [head(Buffer.byteLength(value), 0xa0, 31, 0xdb), Buffer.from(value)];
  if (value instanceof Uint8Array) return [head(value.length, 0, -1, 0xc6), value];
  if (Array.isArray(value)) return [head(value.length, 0x90, 15, 0xdd)].concat(...value.map((member) => encode(member)));
  if (typeof value !== 'object') throw new InvalidParamsError(`${String(value)} cannot be sent to the daemon`);
  const members = Object.entries(value).filter(([, member]) => member !== undefined);
  return [head(members.length, 0x80, 15, 0xdf)].concat(...members.flat().map((part) => encode(part)));
}

function integer(n: bigint | number): Uint8Array {
  if (n >= -32 && n < 128) return BYTES[Number(n) & 0xff]!;
  if (n >= 0 && n < 2 ** 32) return head(Number(n), 0, -1, 0xce);
  if (n >= 1n << 64n || n < -(1n << 63n)) throw new InvalidParamsError(`${n} is too large: integers have at most 64 bits`);
  const bytes = Buffer.allocUnsafe(9);
  bytes[0] = n < 0 ? 0xd3 : 0xcf;
  bytes.writeBigUInt64BE(BigInt.asUintN(64, BigInt(n)), 1);
  return bytes;
}

/** A number, or the head of a string, bytes, an array or a map: one byte for up to `most`, else `code` and 32 bits. */
function head(length: number, fixed: number, most: number, code: number): Uint8Array {
  if (length <= most) return BYTES[fixed | length]!;
  const bytes = Buffer.from([code, 0, 0, 0, 0]);
  bytes.writeUInt32BE(length, 1);
  return bytes;
}

// For the codes 0xc0 to 0xdf: how many bytes follow that are a number or a length. No daemon sends those of -1.
const WIDTHS = [0, -1, 0, 0, 1, 2, 4, -1, -1, -1, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, -1, -1, -1, -1, -1, 1, 2, 4, 2, 4, 2, 4];
// For the codes 0xca to 0xd3.
const NUMBERS = ['getFloat32', 'getFloat64', 'getUint8', 'getUint16', 'getUint32', 'getBigUint64', 'getInt8', 'getInt16', 'getInt32', 'getBigInt64'] as const;

/** Thrown where the bytes end before the message does. */
const SHORT = new Error('the message is not whole');

/**
 * Reads the messages in chunks of bytes, and keeps no chunk. A message that is not whole is read again from its beginning, but only when as
 * many bytes have come as it certainly lacks: its pieces cost little, however small they are.
 */
export class Decoder {
  private held: Buffer[] = []; // the beginning of a message
  private missing = 0; // how many bytes it lacks at least
  private bytes!: Buffer;
  private view!: DataView;
  private begin = 0; // of the message
  private at = 0; // the next byte
  private left = 0; // how many values the open arrays and maps still need, each of a byte at least

  feed(chunk: Buffer, deliver: (message: Value) => void): void {
    this.missing -= chunk.length;
    if (this.missing > 0) return void this.held.push(Buffer.from(chunk));
    this.bytes = this.held.length > 0 ? Buffer.concat([...this.held.splice(0), chunk]) : chunk;
    this.view = new DataView(this.bytes.buffer, this.bytes.byteOffset, this.bytes.length);
    for (this.at = 0; this.at < this.bytes.length; ) {
      [this.begin, this.left] = [this.at, 0];
      try {
        deliver(this.value(0));
      } catch (error) {
        if (error !== SHORT) throw error;
        this.missing = this.at + this.left - this.bytes.length;
        return void this.held.push(Buffer.from(this.bytes.subarray(this.begin)));
      }
    }
  }

  /** Takes so many bytes, and returns where they begin. */
  private take(length: number): number {
    const at = this.at;
    this.at += length;
    if (this.at + this.left - this.begin > MAX_MESSAGE) throw new ProtocolError(`a message is larger than ${MAX_MESSAGE} bytes`);
    if (this.at > this.bytes.length) throw SHORT;
    return at;
  }

  private value(depth: number): Value {
    const code = this.bytes[this.take(1)]!;
    if (code === 0xcf) return this.view.getBigUint64(this.take(8)); // an ID: most of what comes
    if (code < 0x80) return code;
    if (code < 0x90) return this.map(code & 15, depth);
    if (code < 0xa0) return this.array(code & 15, depth);
    if (code < 0xc0) return this.slice(code & 31).toString();
    if (code >= 0xe0) return code - 0x100;
    const width = WIDTHS[code - 0xc0]!;
    if (width < 0) throw new ProtocolError(`the daemon sent the byte 0x${code.toString(16)}, which begins no value`);
    if (width === 0) return code === 0xc0 ? null : code === 0xc3;
    const at = this.take(width);
    if (code >= 0xca && code < 0xd4) return this.view[NUMBERS[code - 0xca]!](at);
    const length = this.bytes.readUIntBE(at, width);
    if (code >= 0xde) return this.map(length, depth);
    if (code >= 0xdc) return this.array(length, depth);
    return code >= 0xd9 ? this.slice(length).toString() : Uint8Array.from(this.slice(length));
  }

  /** Takes so many bytes, as a part of the chunk. */
  private slice(length: number): Buffer {
    return this.bytes.subarray(this.take(length), this.at);
  }

  private array(length: number, depth: number): Value[] {
    if (depth === MAX_DEPTH) throw new ProtocolError(`values nest deeper than ${MAX_DEPTH}`);
    const members: Value[] = [];
    for (this.left += length; length > 0; length--) {
      this.left--;
      members.push(this.value(depth + 1));
    }
    return members;
  }

  private map(length: number, depth: number): { [key: string]: Value } {
    const members = this.array(2 * length, depth);
    const keys = members.filter((_, i) => i % 2 === 0);
    if (!keys.every((key) => typeof key === 'string')) throw new ProtocolError('the key of a map is no string');
    return Object.fromEntries(keys.map((key, i) => [key, members[2 * i + 1]!]));
  }
}
