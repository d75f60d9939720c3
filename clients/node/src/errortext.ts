import * as errors from './errors.js';
import type { Value } from './wire.js';

/** The classes of errors on the wire. Modules with more of them add theirs. */
export const known: (typeof errors.KazahanaError)[] = Object.values(errors);

/** Turns an error on the wire, [kind, text], into an error of the class for its code. The text is `CODE: message key=value key="a value"`. */
export function errorOf(error: Value): errors.KazahanaError {
  const text = Array.isArray(error) && typeof error[1] === 'string' ? error[1] : 'the daemon sent an error that is not [kind, text]';
  const [, code, message] = /^([A-Z][A-Z0-9_]*):(?: |$)(.*)$/s.exec(text) ?? ['', errors.ProtocolError.code, text];
  const details = parseDetails(message);
  const type = known.find((type) => type.code === code) ?? errors.KazahanaError;
  return new type(message, { code, details, cause: details['cause'] });
}

/** A longer text is not from a daemon: its details are not parsed. */
const MAX_TEXT = 64 << 10;

/** Reads the longest tail of the text that consists of details, in one pass. */
function parseDetails(text: string): Record<string, string> {
  let details: Record<string, string> = {};
  if (text.length > MAX_TEXT) return details;
  const words = /(?!$)(?:([a-z][a-z0-9_]*)=(?:"((?:[^"\\]|\\.)*)"|([^" ][^ ]*))|[^ ]*)(?: |$)/g;
  for (const [, key, quoted, bare = ''] of text.matchAll(words)) {
    if (key === undefined) details = {};
    else if (!Object.hasOwn(details, key)) details[key] = quoted === undefined ? bare : unquote(quoted);
  }
  return details;
}

const ESCAPES: Record<string, string> = { a: '\x07', b: '\b', f: '\f', n: '\n', r: '\r', t: '\t', v: '\v' };

/** Undoes the escapes of a Go string, with which the daemon quotes values. */
function unquote(quoted: string): string {
  return quoted.replace(/\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)/g, (_, escape: string) => {
    if (escape.length === 1) return ESCAPES[escape] ?? escape;
    const point = parseInt(escape.slice(1), 16);
    return point <= 0x10ffff ? String.fromCodePoint(point) : '\uFFFD';
  });
}
