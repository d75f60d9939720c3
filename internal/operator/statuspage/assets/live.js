// Asking the server again and again, and being honest about how that goes.
import { clock, say, span, the } from './tools.js';

const visibleEvery = 1000;
const hiddenEvery = 15000;
const answerWithin = 8000;
const longestPause = 10000;

/**
 * What an answer that is no success says.
 */
export class Refused extends Error {
  /** @param {number} status @param {string} detail */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/**
 * Asks for JSON once.
 * @param {string} path
 * @param {string} [token]
 */
export async function ask(path, token) {
  const headers = token ? { Authorization: 'Bearer ' + token } : undefined;
  const answer = await fetch(path, { headers, cache: 'no-store', signal: AbortSignal.timeout(answerWithin) });
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new Refused(answer.status, body?.detail ?? `the server answered with status ${answer.status}`);
  if (body === null) throw new Error('the answer is no JSON');
  return body;
}

/**
 * Keeps asking: every second while the page is seen, seldom while it is not, and
 * less and less often while there is no answer. `handle` is given each turn's
 * answer. `refuse` may take a refusal for
 * itself by returning true, which stops the asking until wake is called.
 * @param {() => Promise<any>} turn
 * @param {(answer: any) => void} handle
 * @param {(refusal: Refused) => boolean} [refuse]
 * @returns {{wake: () => void}}
 */
export function keepAsking(turn, handle, refuse = () => false) {
  let failures = 0;
  let lostSince = 0;
  let nextAt = 0;
  let timer = 0;
  let busy = false;
  let again = false; // woken while busy

  /** @param {number} pause */
  function later(pause) {
    clearTimeout(timer);
    nextAt = Date.now() + pause;
    timer = window.setTimeout(run, pause);
  }

  async function run() {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    again = false;
    let answer = null;
    try {
      answer = await turn();
      failures = 0;
      lostSince = 0;
      later(document.hidden ? hiddenEvery : visibleEvery);
    } catch (error) {
      if (error instanceof Refused && refuse(error)) {
        lostSince = 0;
        nextAt = 0;
      } else {
        failures++;
        lostSince ||= Date.now();
        later(document.hidden ? hiddenEvery : Math.min(longestPause, visibleEvery * 2 ** Math.min(failures - 1, 5)));
        reason = error instanceof Refused ? error.message : '';
      }
    }
    busy = false;
    if (again) later(0);
    show();
    if (answer !== null) handle(answer);
  }

  let reason = '';
  function show() {
    const live = the('live');
    const lost = lostSince > 0;
    live.setAttribute('data-state', lost ? 'lost' : nextAt ? 'live' : 'waiting');
    say(the('live-text'), lost ? 'connection lost' : nextAt ? 'live' : 'waiting for a token');
    the('page').classList.toggle('stale', lost);
    the('lost').hidden = !lost;
    if (lost) {
      const wait = Math.max(0, nextAt - Date.now());
      say(the('lost'), `Connection lost since ${clock(lostSince)}, retrying ${wait > 999 ? 'in ' + span(wait) : 'now'}. ` +
        (reason ? `The server says: ${reason}.` : 'What is shown below is what was known then.'));
    }
  }
  setInterval(() => { if (lostSince) show(); }, 1000);

  const wake = () => { later(0); };
  document.addEventListener('visibilitychange', () => { if (!document.hidden && nextAt) wake(); });
  window.addEventListener('online', () => { if (nextAt) wake(); });
  run();
  return { wake };
}

/**
 * Growth per second of counters between answers.
 */
export class Rates {
  constructor() {
    /** @type {Map<string, number>} */ this.before = new Map();
    /** @type {Map<string, number>} */ this.now = new Map();
    this.beforeAt = 0;
    this.at = 0;
  }

  /** A new answer, of this time. @param {number} atMS */
  turn(atMS) {
    this.before = this.now;
    this.beforeAt = this.at;
    this.now = new Map();
    this.at = atMS;
  }

  /** Per second; 0 while that is not known. @param {string} name @param {number} total */
  of(name, total) {
    this.now.set(name, total);
    const before = this.before.get(name);
    // A counter that begins again is another process's.
    if (before === undefined || total < before || this.at <= this.beforeAt) return 0;
    return (total - before) * 1000 / (this.at - this.beforeAt);
  }
}
