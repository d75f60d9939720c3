import * as errors from './errors.js';

const BY_CODE = new Map<string, typeof errors.KazahanaError>();

/** Makes errors of the wire with the codes of a module's classes errors of these classes. */
export function know(classes: Record<string, typeof errors.KazahanaError>): void {
  for (const type of Object.values(classes)) BY_CODE.set(type.code, type);
}
know(errors);

/** Turns the text of an error on the wire, `CODE: message key=value key="a value"`, into an error of the class for its code. */
export function errorFromText(text: string): errors.KazahanaError {
  const head = /^([A-Z][A-Z0-9_]*):(?: |$)/.exec(text);
  const code = head?.[1] ?? errors.ProtocolError.code;
  const message = text.slice(head?.[0].length ?? 0);
  const details = parseDetails(message);
  const type = BY_CODE.get(code) ?? errors.KazahanaError;
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
  return quoted.replace(/\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))/g, (_, ...[x, u, U, plain]: string[]) => {
    if (plain !== undefined) return ESCAPES[plain] ?? plain;
    const point = parseInt(x ?? u ?? U ?? '', 16);
    return point <= 0x10ffff ? String.fromCodePoint(point) : '\uFFFD';
  });
}
