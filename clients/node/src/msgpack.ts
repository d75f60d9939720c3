import { InvalidParamsError, ProtocolError } from './errors.js';

/** A decoded MessagePack value: an integer is a number if that is exact, else a bigint. */
export type Value = null | boolean | number | bigint | string | Uint8Array | Value[] | { [key: string]: Value };

/** The maximum nesting of values: more than any answer needs. */
export const MAX_DEPTH = 32;

const BYTES = Array.from({ length: 256 }, (_, byte) => Buffer.of(byte));

/** Encodes null, booleans, numbers, bigints of 64 bits, strings, bytes, arrays, and maps, whose undefined members are left out. */
export function encode(...values: unknown[]): Buffer {
  const parts: Uint8Array[] = [];
  for (const value of values) write(value, parts);
  return Buffer.concat(parts);
}

function write(v: unknown, parts: Uint8Array[]): void {
  if (v === null || v === undefined) parts.push(BYTES[0xc0]!);
  else if (typeof v === 'boolean') parts.push(BYTES[v ? 0xc3 : 0xc2]!);
  else if (typeof v === 'number') parts.push(number(v));
  else if (typeof v === 'bigint') parts.push(integer(v));
  else if (typeof v === 'string') parts.push(head(Buffer.byteLength(v), 0xa0, 31, 0xda), Buffer.from(v));
  else if (v instanceof Uint8Array) parts.push(head(v.length, 0, -1, 0xc5), v);
  else if (Array.isArray(v)) {
    parts.push(head(v.length, 0x90, 15, 0xdc));
    for (const member of v) write(member, parts);
  } else if (typeof v === 'object') {
    const members = Object.entries(v).filter(([, member]) => member !== undefined);
    parts.push(head(members.length, 0x80, 15, 0xde));
    for (const part of members.flat()) write(part, parts);
  } else throw new InvalidParamsError(`a ${typeof v} cannot be sent to the daemon`);
}

function number(n: number): Buffer {
  if (Number.isSafeInteger(n)) return n >= -32 && n < 128 ? BYTES[n & 0xff]! : integer(BigInt(n));
  const bytes = Buffer.alloc(9, 0xcb);
  bytes.writeDoubleBE(n, 1);
  return bytes;
}

function integer(n: bigint): Buffer {
  if (n >= 1n << 64n || n < -(1n << 63n)) throw new InvalidParamsError(`${n} is too large: integers have at most 64 bits`);
  const bytes = Buffer.allocUnsafe(9);
  bytes[0] = n < 0n ? 0xd3 : 0xcf;
  bytes.writeBigUInt64BE(BigInt.asUintN(64, n), 1);
  return bytes;
}

/** The head of a string, bytes, an array or a map: one byte for up to `most`, else `code` with 16 bits, or the next code with 32. */
function head(length: number, fixed: number, most: number, code: number): Buffer {
  if (length <= most) return BYTES[fixed | length]!;
  const width = length < 0x10000 ? 2 : 4;
  const bytes = Buffer.alloc(1 + width, width === 2 ? code : code + 1);
  bytes.writeUIntBE(length, 1, width);
  return bytes;
}

// For the codes 0xc0 to 0xdf: how many bytes follow that are a number or a length. No daemon sends those of -1.
const WIDTHS = [0, -1, 0, 0, 1, 2, 4, -1, -1, -1, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, -1, -1, -1, -1, -1, 1, 2, 4, 2, 4, 2, 4];
/** The upper half of the greatest integer that a number has exactly. */
const MAX_EXACT_HIGH = 0x1fffff;
// For the codes 0xca to 0xd3.
const NUMBERS = ['getFloat32', 'getFloat64', 'getUint8', 'getUint16', 'getUint32', 'getBigUint64', 'getInt8', 'getInt16', 'getInt32', 'getBigInt64'] as const;

/** An array or a map whose members still come. Those of a map are keys and values in turn. */
interface Container {
  members: Value[];
  left: number;
  isMap: boolean;
}

/** Finds messages in chunks of bytes, and looks at each byte once, however the chunks cut them. Values do not refer to the chunks. */
export class Decoder {
  private readonly open: Container[] = [];
  private top: Container | undefined; // the last of them
  private size = 0; // of the message so far
  private begun: Buffer[] = []; // the beginning of a value
  private missing = 0; // bytes of that value, at least
  private buf!: Buffer;
  private view!: DataView;

  constructor(
    private readonly limit: number,
    private readonly deliver: (message: Value) => void,
  ) {}

  feed(chunk: Buffer): void {
    this.missing -= chunk.length;
    if (this.begun.length > 0 && this.missing > 0) return void this.begun.push(Buffer.from(chunk));
    const buf = this.begun.length > 0 ? Buffer.concat([...this.begun.splice(0), chunk]) : chunk;
    this.buf = buf;
    this.view = new DataView(buf.buffer, buf.byteOffset, buf.length);
    for (let at = 0, end; at < buf.length; at = end) {
      end = this.value(at);
      const size = this.size + end - at;
      if (size + (this.top?.left ?? 0) > this.limit) throw new ProtocolError(`a message is larger than ${this.limit} bytes`);
      if (end > buf.length) {
        this.missing = end - buf.length;
        return void this.begun.push(Buffer.from(buf.subarray(at)));
      }
      this.size = this.top ? size : 0;
    }
  }

  /** Takes in the value at a position, and returns its end. If that lies beyond the buffer, nothing is taken in. */
  private value(at: number): number {
    const { buf, top } = this;
    let end = at;
    // IDs in a row are most of what comes, up to the last value of an array, which completes it.
    for (; top && top.left > 1 && buf[end] === 0xcf && end + 9 <= buf.length; end += 9, top.left--) {
      top.members.push(this.number(0xcf, end + 1));
    }
    if (end > at) return end;
    const code = buf[at]!;
    if (code < 0x80 || code >= 0xe0) return this.add(this.view.getInt8(at), at + 1);
    if (code < 0x90) return this.begin(2 * (code & 15), true, at + 1);
    if (code < 0xa0) return this.begin(code & 15, false, at + 1);
    if (code < 0xc0) return this.bytes(true, at + 1, code & 31);
    const width = WIDTHS[code - 0xc0]!;
    if (width < 0) throw new ProtocolError(`the daemon sent the byte 0x${code.toString(16)}, which begins no value`);
    end = at + 1 + width;
    if (end > buf.length) return end;
    if (code >= 0xc7 && code < 0xd9) return this.add(this.number(code, at + 1), end);
    if (code < 0xc4) return this.add(code === 0xc0 ? null : code === 0xc3, end);
    const length = buf.readUIntBE(at + 1, width);
    if (code >= 0xde) return this.begin(2 * length, true, end);
    if (code >= 0xdc) return this.begin(length, false, end);
    return this.bytes(code >= 0xd9, end, length);
  }

  private number(code: number, at: number): number | bigint {
    if (code === 0xcf && this.view.getUint32(at) > MAX_EXACT_HIGH) return this.view.getBigUint64(at); // an ID
    const n = this.view[NUMBERS[code - 0xca]!](at);
    return typeof n === 'bigint' && n >= Number.MIN_SAFE_INTEGER && n <= Number.MAX_SAFE_INTEGER ? Number(n) : n;
  }

  private bytes(isText: boolean, at: number, length: number): number {
    const end = at + length;
    if (end > this.buf.length) return end;
    return this.add(isText ? this.buf.toString('utf8', at, end) : Uint8Array.from(this.buf.subarray(at, end)), end);
  }

  private begin(left: number, isMap: boolean, end: number): number {
    if (this.open.length === MAX_DEPTH) throw new ProtocolError(`values nest deeper than ${MAX_DEPTH}`);
    if (left === 0) return this.add(isMap ? {} : [], end);
    this.top = { members: [], left, isMap };
    this.open.push(this.top);
    return end;
  }

  /** Adds a value to what is open, and closes what that completes. */
  private add(value: Value, end: number): number {
    for (; this.top; this.top = this.open.at(-1)) {
      this.top.members.push(value);
      if (--this.top.left > 0) return end;
      value = this.top.isMap ? mapOf(this.top.members) : this.top.members;
      this.open.pop();
    }
    this.deliver(value);
    return end;
  }
}

function mapOf(members: Value[]): { [key: string]: Value } {
  const keys = members.filter((_, i) => i % 2 === 0);
  if (!keys.every((key) => typeof key === 'string')) throw new ProtocolError('the key of a map is no string');
  return Object.fromEntries(keys.map((key, i) => [key, members[2 * i + 1]!]));
}
