import { InvalidParamsError } from './errors.js';

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
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const isSame = a[i - 1]!.toLowerCase() === b[j - 1]!.toLowerCase();
      next.push(Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + (isSame ? 0 : 1)));
    }
    row = next;
  }
  return row[b.length]!;
}
