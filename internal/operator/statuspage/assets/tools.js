// Making and changing elements, and writing numbers and times for people.

/**
 * An element with attributes and children; strings become text, never markup.
 * @param {string} name
 * @param {Record<string, string>} [attributes]
 * @param {...(Node | string)} children
 * @returns {HTMLElement}
 */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/**
 * The element of the page with the id.
 * @param {string} id
 * @returns {any}
 */
export function the(id) {
  return document.getElementById(id);
}

/**
 * Sets the text only if it is another, so that selections and screen readers are
 * left alone.
 * @param {Node} element
 * @param {string} text
 */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Has the parent's children be one for each item, in order; those of items that
 * were there before are kept, with their focus.
 * @template T
 * @param {HTMLElement} parent
 * @param {T[]} items
 * @param {(item: T) => string} key
 * @param {(item: T) => HTMLElement} create
 * @param {(element: HTMLElement, item: T) => void} update
 */
export function each(parent, items, key, create, update) {
  const before = new Map([...parent.children].map((child) => [child.getAttribute('data-key'), child]));
  let previous = null;
  for (const item of items) {
    const name = key(item);
    let element = /** @type {HTMLElement | undefined} */ (before.get(name));
    before.delete(name);
    if (!element) {
      element = create(item);
      element.setAttribute('data-key', name);
    }
    update(element, item);
    const due = previous ? previous.nextSibling : parent.firstChild;
    if (element !== due) parent.insertBefore(element, due);
    previous = element;
  }
  for (const left of before.values()) left.remove();
}

/**
 * A list of facts: pairs of a name and a value, and whether it is worrying.
 * @param {HTMLElement} list
 * @param {Array<[string, string, boolean?] | null>} facts
 */
export function tell(list, facts) {
  const rows = facts.filter((fact) => fact !== null);
  each(list, rows.flatMap(([name, value, warn]) => [{ name, tag: 'dt', text: name, warn: false }, { name, tag: 'dd', text: value, warn }]),
    (row) => row.tag + row.name, (row) => make(row.tag),
    (element, row) => { say(element, row.text); element.classList.toggle('warn', Boolean(row.warn)); });
}

/**
 * The large figures: a name, a value, its unit, and a note below.
 * @param {HTMLElement} list
 * @param {Array<{name: string, value: string, unit?: string, note?: string}>} figures
 */
export function figure(list, figures) {
  each(list, figures, (f) => f.name,
    (f) => make('div', {}, make('dt', {}, f.name), make('dd', {}, make('span'), make('small'), make('span', { class: 'note' }))),
    (element, f) => {
      const [value, unit, note] = element.querySelectorAll('dd > *');
      say(value, f.value);
      say(unit, f.unit ? ' ' + f.unit : '');
      say(note, f.note ?? '');
    });
}

const whole = new Intl.NumberFormat('en');
const few = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 });
const tenths = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });

/** @param {number} n */
export function count(n) {
  return whole.format(Math.round(n));
}

/** A rate: all digits while they fit a glance. @param {number} n */
export function rate(n) {
  if (n >= 1e6) return few.format(n / 1e6) + ' M';
  return n >= 10 ? whole.format(Math.round(n)) : tenths.format(n);
}

/** An amount of memory. @param {number} n */
export function bytes(n) {
  return n < 2 ** 20 ? `${count(n / 1024)} KiB` : n < 2 ** 40 ? `${rate(n / 2 ** 20)} MiB` : 'any amount';
}

/** How long, in two units at most. @param {number} ms */
export function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  const two = (large, unit, small, less) => `${large} ${unit}` + (small ? ` ${small} ${less}` : '');
  if (s < 3600) return two(Math.floor(s / 60), 'min', s % 60, 's');
  if (s < 86400) return two(Math.floor(s / 3600), 'h', Math.floor((s % 3600) / 60), 'min');
  const days = Math.floor(s / 86400);
  if (days < 730) return two(days, 'd', Math.floor((s % 86400) / 3600), 'h');
  return `${few.format(days / 365.25)} years`;
}

/** The time of day, here. @param {number} ms */
export function clock(ms) {
  return new Date(ms).toLocaleTimeString('en-GB');
}

/** The day, in UTC as in log lines. @param {number} ms */
export function day(ms) {
  const at = new Date(ms);
  return Number.isNaN(at.getTime()) ? 'beyond the calendar' : at.toISOString().slice(0, 10);
}

/** Date and time in UTC as in log lines. @param {number} ms */
export function instant(ms) {
  const at = new Date(ms);
  return Number.isNaN(at.getTime()) ? 'beyond the calendar' : at.toISOString().replace('.000Z', 'Z');
}

/**
 * The files that are held back because they may have forgotten something.
 * @param {Array<{file: string, until: number, reason: string, sequences: boolean}>} fences
 * @param {number} now
 */
export function showFences(fences, now) {
  each(the('fences'), fences, (f) => f.file, () => make('li', {}, make('b'), make('p'), make('p', { class: 'details' })),
    (element, f) => {
      const held = f.until > now;
      say(element.children[0], held ? `Grants are held back until ${clock(f.until)}, for ${span(f.until - now)}` : 'Sequences are held back');
      say(element.children[1], f.sequences ? `${f.file}. Sequences that were used before hand out nothing until an operator says how they go on.` : f.file);
      say(element.children[2], f.reason);
    });
}

/**
 * The limits that refused something in the last minute.
 * @param {Array<{limit: string, refused: number, last_ms: number}>} limits
 * @param {number} now
 */
export function showOverload(limits, now) {
  each(the('overload'), limits, (l) => l.limit, () => make('li', {}, make('b'), make('p')),
    (element, l) => {
      say(element.children[0], `${l.limit} is reached`);
      say(element.children[1], `${count(l.refused)} refused since the start, the last ${span(now - l.last_ms)} ago. The log says who has used it up.`);
    });
}

/**
 * The events of a log.
 * @param {Array<{at: number, first: number, count: number, level: string, component: string, message: string, details: string}>} events
 */
export function showEvents(events) {
  the('no-events').hidden = events.length > 0;
  each(the('events'), events, (e) => `${e.level} ${e.component} ${e.message}`,
    () => make('li', {}, make('time'), make('span', { class: 'level' }), make('div', {}, make('p'), make('p', { class: 'details' }))),
    (element, e) => {
      const [time, level, body] = /** @type {HTMLCollectionOf<HTMLElement>} */ (element.children);
      time.setAttribute('datetime', new Date(e.at).toISOString());
      time.title = e.count > 1 ? `${e.count} times since ${instant(e.first)}` : instant(e.at);
      say(time, clock(e.at));
      level.setAttribute('data-level', e.level);
      say(level, e.level);
      say(body.children[0], (e.component ? e.component + ': ' : '') + e.message + (e.count > 1 ? ` (${count(e.count)} times)` : ''));
      say(body.children[1], e.details);
    });
}
