import { InvalidParamsError } from './errors.js';

export const MAX_TIMEOUT_MS = 3_600_000;

/** Returns a number of milliseconds, or throws if it is out of range. */
export function milliseconds(name: string, ms: number, least = 1, most = MAX_TIMEOUT_MS): number {
  if (ms >= least && ms <= most) return ms;
  throw new InvalidParamsError(`${name} of ${ms}: ${least} to ${most} milliseconds are right`);
}
