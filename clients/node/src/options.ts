import { InvalidParamsError } from './errors.js';

export const MAX_TIMEOUT_MS = 3_600_000;

/** Returns a number of milliseconds, or throws if it is out of range. */
export function milliseconds(name: string, ms: number, least = 1, most = MAX_TIMEOUT_MS): number {
  if (ms >= least && ms <= most) return ms;
  throw new InvalidParamsError(`${name} of ${ms}: ${least} to ${most} milliseconds are right`);
}

/** Returns the options, or throws if one of them does not exist: plain JavaScript has no compiler that would tell. */
export function known<T extends object>(options: T, names: readonly string[]): T {
  const wrong = Object.keys(options).find((name) => !names.includes(name));
  if (wrong === undefined) return options;
  const [nearest] = [...names].sort((a, b) => likeness(wrong, b) - likeness(wrong, a));
  throw new InvalidParamsError(`there is no option ${JSON.stringify(wrong)}: did you mean ${nearest}? There are ${names.join(', ')}`);
}

/** How many letters are at the same place, counted from either end; letters that differ only in case are the same. */
function likeness(a: string, b: string): number {
  const [letters, others] = [Array.from(a.toLowerCase()), Array.from(b.toLowerCase())];
  const longer = others.length - letters.length;
  return letters.filter((letter, i) => letter === others[i] || letter === others[i + longer]).length - Math.abs(longer);
}
