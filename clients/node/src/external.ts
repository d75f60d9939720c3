import { hkdfSync } from 'node:crypto';
import { InvalidExternalIdError, InvalidParamsError } from './errors.js';

const KEY_INFO = 'kazahana external id v1';
const LENGTH = 11;
const MASK = (1n << 64n) - 1n;

// Multipliers of moremur (Pelle Evensen, 2019), a permutation of 64 bits, and their inverses modulo 2^64.
const A = 0x3c79ac492ba7b653n;
const B = 0x1c69b3f74ac4ae35n;
const A_INVERSE = 0xc09c5fe5bd6dfddbn;
const B_INVERSE = 0xc47c8f6b6bafb41dn;

const XTEA_CYCLES = 32;
const XTEA_DELTA = 0x9e3779b9;

/**
 * Turns IDs into external IDs and back, without a daemon: 64 bits, permuted, as 11 characters of base64url.
 * Anyone who knows the secret can decode every external ID.
 */
export class ExternalCodec {
  private key: Uint32Array | undefined;

  /**
   * A codec with a service's secret: its bytes, or a string's UTF-8; for the daemon's secret file, without one trailing newline.
   * The service is part of the key, so that services that share a secret cannot be linked.
   */
  constructor(secret: string | Uint8Array, service = 'default') {
    if (secret.length === 0) throw new InvalidParamsError('the secret for external IDs is empty');
    const key = new DataView(hkdfSync('sha256', secret, '', service === 'default' ? KEY_INFO : `${KEY_INFO}/${service}`, 16));
    this.key = Uint32Array.from([0, 4, 8, 12], (at) => key.getUint32(at));
  }

  /** The codec without a secret. It hides the sequence from a casual look; it is not encryption, and anyone can decode its external IDs. */
  static plain(): ExternalCodec {
    const codec = new ExternalCodec('none');
    codec.key = undefined;
    return codec;
  }

  /** Returns the external ID of an ID from 0 to 2^63 - 1. */
  encode(id: bigint): string {
    if (typeof id !== 'bigint' || id < 0n || id >> 63n) throw new InvalidParamsError(`${String(id)} is no ID: those are bigints from 0 to 2^63 - 1`);
    const bytes = Buffer.allocUnsafe(8);
    bytes.writeBigUInt64BE(this.key ? encrypt(id, this.key) : moremur(id));
    return bytes.toString('base64url');
  }

  /** Returns the ID. It throws InvalidExternalIdError for a string that encode cannot have made; about half of all forged strings pass. */
  decode(external: string): bigint {
    const wrong = (why: string) => new InvalidExternalIdError(`${JSON.stringify(String(external).slice(0, 64))} is not an external ID: ${why}`);
    if (typeof external !== 'string' || external.length !== LENGTH) throw wrong(`${LENGTH} characters are right`);
    const bytes = Buffer.from(external, 'base64url');
    if (bytes.length !== 8 || bytes.toString('base64url') !== external) throw wrong('it is not base64url in its one spelling');
    const block = bytes.readBigUInt64BE();
    const id = this.key ? decrypt(block, this.key) : unmoremur(block);
    if (id >> 63n) throw wrong('it does not decode to an ID');
    return id;
  }
}

function moremur(x: bigint): bigint {
  x ^= x >> 27n;
  x = (x * A) & MASK;
  x ^= x >> 33n;
  x = (x * B) & MASK;
  return x ^ (x >> 27n);
}

function unmoremur(x: bigint): bigint {
  x = (unshift(x) * B_INVERSE) & MASK;
  x ^= x >> 33n;
  return unshift((x * A_INVERSE) & MASK);
}

/** Inverts x ^= x >> 27. */
function unshift(x: bigint): bigint {
  return x ^ (x >> 27n) ^ (x >> 54n);
}

function half(v: number): number {
  return ((v << 4) ^ (v >>> 5)) + v;
}

function encrypt(block: bigint, key: Uint32Array): bigint {
  let [high, low, sum] = [Number(block >> 32n), Number(block & 0xffffffffn), 0];
  for (let i = 0; i < XTEA_CYCLES; i++) {
    high = (high + (half(low) ^ (sum + key[sum & 3]!))) >>> 0;
    sum = (sum + XTEA_DELTA) >>> 0;
    low = (low + (half(high) ^ (sum + key[(sum >>> 11) & 3]!))) >>> 0;
  }
  return (BigInt(high) << 32n) | BigInt(low);
}

function decrypt(block: bigint, key: Uint32Array): bigint {
  let [high, low, sum] = [Number(block >> 32n), Number(block & 0xffffffffn), Math.imul(XTEA_DELTA, XTEA_CYCLES) >>> 0];
  for (let i = 0; i < XTEA_CYCLES; i++) {
    low = (low - (half(high) ^ (sum + key[(sum >>> 11) & 3]!))) >>> 0;
    sum = (sum - XTEA_DELTA) >>> 0;
    high = (high - (half(low) ^ (sum + key[sum & 3]!))) >>> 0;
  }
  return (BigInt(high) << 32n) | BigInt(low);
}
