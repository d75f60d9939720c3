import { performance } from 'node:perf_hooks';
import * as timers from 'node:timers';
import { promisify } from 'node:util';

/** What fake timers keep, if some are installed already: those of Sinon, Jest and Vitest are alike. */
function real<T, K extends keyof T & string>(owner: T, name: K): T[K] {
  const found = owner[name];
  return (found as { clock?: Record<string, T[K] | undefined> }).clock?.[`_${name}`] ?? found;
}

// A fake is a property of the object itself. In Bun, the real one is too.
interface Clock { now: (this: typeof performance) => number }
const now = (Object.getPrototypeOf(performance) as Partial<Clock>).now ?? (performance as Clock).now;
const date = real(globalThis, 'Date');

// The clocks and timers of all waits. They are taken when this package is loaded: with the fake timers that a test installs later, a call
// would wait for ever. Tests of this package replace them here.
export const steadyNow = now.bind(performance);
export const wallNow = () => date.now();
export const setTimer = real(timers, 'setTimeout');
export const clearTimer = real(timers, 'clearTimeout');
export const nextTick = real(process, 'nextTick');
export const delay = promisify(setTimer);
