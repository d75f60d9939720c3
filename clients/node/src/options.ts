import { InvalidParamsError } from './errors.js';

export const MAX_TIMEOUT_MS = 3_600_000;

/** Returns a number of milliseconds, or throws if it is out of range. */
export function milliseconds(name: string, ms: number, least = 1, most = MAX_TIMEOUT_MS): number {
  if (ms >= least && ms <= most) return ms;
  throw new InvalidParamsError(`${name} of ${ms}: ${least} to ${most} milliseconds are right`);
}

/** Returns the options, or throws if one of them does not exist: plain JavaScript has no compiler that would tell. */
export function known<T extends object>(options: T, names: readonly string[]): T {
  for (const name of Object.keys(options)) {
    if (names.includes(name)) continue;
    const [nearest] = [...names].sort((a, b) => distance(name, a) - distance(name, b));
    throw new InvalidParamsError(`there is no option ${JSON.stringify(name)}: did you mean ${nearest}? There are ${names.join(', ')}`);
  }
  return options;
}

/** How many letters must be changed, added or left out; letters that differ only in case are the same. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (const [i, letter] of Array.from(a.toLowerCase()).entries()) {
    const next = [i + 1];
    for (let j = 0; j < b.length; j++) {
      const change = letter === b[j]!.toLowerCase() ? 0 : 1;
      next.push(Math.min(row[j + 1]! + 1, next[j]! + 1, row[j]! + change));
    }
    row = next;
  }
  return row[b.length]!;
}
