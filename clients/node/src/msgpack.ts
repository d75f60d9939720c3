import { InvalidParamsError, ProtocolError } from './errors.js';

/** A decoded MessagePack value: an integer is a number if that is exact, else a bigint. */
export type Value = null | boolean | number | bigint | string | Uint8Array | Extension | Value[] | { [key: string]: Value };

export interface Extension {
  type: number;
  data: Uint8Array;
}

/** The maximum nesting of values: more than any answer needs, and no danger to the stack. */
export const MAX_DEPTH = 32;

/** Encodes values one after another: null, booleans, numbers, bigints of 64 bits, strings, bytes, arrays, and maps, whose undefined members are left out. */
export function encode(...values: unknown[]): Buffer {
  const out = new Writer();
  for (const value of values) out.value(value);
  return out.bytes();
}

class Writer {
  private buf = Buffer.allocUnsafe(128);
  private end = 0;

  bytes(): Buffer {
    return this.buf.subarray(0, this.end);
  }

  /** Makes room for n bytes and returns their position. */
  private room(n: number): number {
    const at = this.end;
    this.end += n;
    if (this.end > this.buf.length) {
      const larger = Buffer.allocUnsafe(this.end * 2);
      this.buf.copy(larger, 0, 0, at);
      this.buf = larger;
    }
    return at;
  }

  private byte(b: number): void {
    const at = this.room(1);
    this.buf[at] = b;
  }

  /** The head of a string, bytes, an array or a map: in one byte up to `most`, else code with 16 bits, or the next code with 32. */
  header(length: number, fixed: number, most: number, code: number): void {
    if (length <= most) return this.byte(fixed | length);
    const at = this.room(length < 0x10000 ? 3 : 5);
    this.buf[at] = length < 0x10000 ? code : code + 1;
    if (length < 0x10000) this.buf.writeUInt16BE(length, at + 1);
    else this.buf.writeUInt32BE(length, at + 1);
  }

  private integer(n: bigint): void {
    if (n >= 1n << 64n || n < -(1n << 63n)) throw new InvalidParamsError(`${n} is too large: integers have at most 64 bits`);
    const at = this.room(9);
    this.buf[at] = n < 0n ? 0xd3 : 0xcf;
    this.buf.writeBigUInt64BE(BigInt.asUintN(64, n), at + 1);
  }

  private number(n: number): void {
    if (Number.isInteger(n) && n >= -32 && n < 128) return this.byte(n & 0xff);
    if (Number.isSafeInteger(n)) return this.integer(BigInt(n));
    const at = this.room(9);
    this.buf[at] = 0xcb;
    this.buf.writeDoubleBE(n, at + 1);
  }

  private string(s: string): void {
    const length = Buffer.byteLength(s);
    this.header(length, 0xa0, 31, 0xda);
    const at = this.room(length);
    this.buf.write(s, at, 'utf8');
  }

  private binary(bytes: Uint8Array): void {
    this.header(bytes.length, 0, -1, 0xc5);
    const at = this.room(bytes.length);
    this.buf.set(bytes, at);
  }

  value(v: unknown): void {
    if (v === null || v === undefined) return this.byte(0xc0);
    if (typeof v === 'boolean') return this.byte(v ? 0xc3 : 0xc2);
    if (typeof v === 'number') return this.number(v);
    if (typeof v === 'bigint') return this.integer(v);
    if (typeof v === 'string') return this.string(v);
    if (Array.isArray(v)) {
      this.header(v.length, 0x90, 15, 0xdc);
      for (const element of v) this.value(element);
      return;
    }
    if (v instanceof Uint8Array) return this.binary(v);
    if (typeof v !== 'object') throw new InvalidParamsError(`a ${typeof v} cannot be sent to the daemon`);
    const members = Object.entries(v).filter(([, member]) => member !== undefined);
    this.header(members.length, 0x80, 15, 0xde);
    for (const [key, member] of members) {
      this.string(key);
      this.value(member);
    }
  }
}

// For the codes 0xc0 to 0xdf: how many bytes follow, and how many bytes of
// length come first. 0xc1 is never used.
const FOLLOW = [0, -1, 0, 0, 0, 0, 0, 1, 1, 1, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17, 0, 0, 0, 0, 0, 0, 0];
const LENGTH = [0, 0, 0, 0, 1, 2, 4, 1, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 2, 4, 2, 4];

/** Finds the ends of messages. It examines each byte once, however the reads cut the messages. */
export class Splitter {
  private at = 0; // position in the message: everything before it is known
  private due = 1; // values still to come

  constructor(private readonly limit: number) {}

  /** Returns the end of the message that begins at `start`, or -1 if it is incomplete. `start` must stay at the same message until then. */
  end(buf: Buffer, start: number, length: number): number {
    let at = start + this.at;
    let due = this.due;
    while (due > 0 && at < length) {
      const code = buf[at]!;
      let [size, children] = [1, 0];
      if (code >= 0x80 && code < 0x90) children = 2 * (code & 15);
      else if (code >= 0x90 && code < 0xa0) children = code & 15;
      else if (code >= 0xa0 && code < 0xc0) size += code & 31;
      else if (code >= 0xc0 && code < 0xe0) {
        const lengthBytes = LENGTH[code - 0xc0]!;
        if (FOLLOW[code - 0xc0]! < 0) throw new ProtocolError('the byte 0xc1 is not MessagePack');
        if (at + 1 + lengthBytes > length) break;
        const n = lengthBytes > 0 ? buf.readUIntBE(at + 1, lengthBytes) : 0;
        size += lengthBytes + FOLLOW[code - 0xc0]!;
        if (code >= 0xde) children = 2 * n;
        else if (code >= 0xdc) children = n;
        else size += n;
      }
      at += size;
      due += children - 1;
      if (at - start + due > this.limit) throw new ProtocolError(`a message is larger than ${this.limit} bytes`);
    }
    const whole = due === 0 && at <= length;
    this.at = whole ? 0 : at - start;
    this.due = whole ? 1 : due;
    return whole ? at : -1;
  }
}

/** Reads values of a whole message. The results do not refer to the bytes. */
export class Reader {
  private readonly view: DataView;
  private at = 0;

  constructor(private readonly buf: Buffer) {
    this.view = new DataView(buf.buffer, buf.byteOffset, buf.byteLength);
  }

  valueAt(at: number): Value {
    this.at = at;
    return this.value(0);
  }

  private value(depth: number): Value {
    const code = this.buf[this.at++]!;
    if (code < 0x80) return code;
    if (code >= 0xe0) return code - 256;
    if (code < 0x90) return this.map(code & 15, depth);
    if (code < 0xa0) return this.array(code & 15, depth);
    if (code < 0xc0) return this.string(code & 31);
    if (code < 0xc4 || (code >= 0xca && code < 0xd4)) return this.scalar(code);
    const lengthBytes = LENGTH[code - 0xc0]!;
    const length = lengthBytes > 0 ? this.buf.readUIntBE(this.at, lengthBytes) : FOLLOW[code - 0xc0]! - 1;
    this.at += lengthBytes;
    if (code >= 0xde) return this.map(length, depth);
    if (code >= 0xdc) return this.array(length, depth);
    if (code >= 0xd9) return this.string(length);
    if (code < 0xc7) return this.binary(length);
    const type = this.view.getInt8(this.at++);
    return { type, data: this.binary(length) };
  }

  private scalar(code: number): Value {
    const at = this.at;
    this.at += FOLLOW[code - 0xc0]!;
    switch (code) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xca: return this.view.getFloat32(at);
      case 0xcb: return this.view.getFloat64(at);
      case 0xcc: return this.view.getUint8(at);
      case 0xcd: return this.view.getUint16(at);
      case 0xce: return this.view.getUint32(at);
      case 0xcf: return exact(this.view.getUint32(at), this.view.getUint32(at + 4)) ?? this.view.getBigUint64(at);
      case 0xd0: return this.view.getInt8(at);
      case 0xd1: return this.view.getInt16(at);
      case 0xd2: return this.view.getInt32(at);
      default: return exact(this.view.getInt32(at), this.view.getUint32(at + 4)) ?? this.view.getBigInt64(at);
    }
  }

  private string(length: number): string {
    this.at += length;
    return this.buf.toString('utf8', this.at - length, this.at);
  }

  private binary(length: number): Uint8Array {
    this.at += length;
    return Uint8Array.from(this.buf.subarray(this.at - length, this.at));
  }

  private array(length: number, depth: number): Value[] {
    if (depth >= MAX_DEPTH) throw new ProtocolError(`values nest deeper than ${MAX_DEPTH}`);
    const values = new Array<Value>(length);
    for (let i = 0; i < length; i++) values[i] = this.value(depth + 1);
    return values;
  }

  private map(length: number, depth: number): { [key: string]: Value } {
    if (depth >= MAX_DEPTH) throw new ProtocolError(`values nest deeper than ${MAX_DEPTH}`);
    const members: { [key: string]: Value } = {};
    for (let i = 0; i < length; i++) {
      const name = this.value(depth + 1);
      if (name !== null && typeof name === 'object') throw new ProtocolError('the key of a map is an array, a map or bytes');
      const key = String(name);
      const value = this.value(depth + 1);
      // Assigning to __proto__ would not create a member.
      if (key === '__proto__') Object.defineProperty(members, key, { value, enumerable: true, configurable: true, writable: true });
      else members[key] = value;
    }
    return members;
  }
}

/** An integer of two 32-bit halves, if a number can hold it exactly. */
function exact(high: number, low: number): number | undefined {
  return high < 0x200000 && high >= -0x200000 ? high * 0x1_0000_0000 + low : undefined;
}
