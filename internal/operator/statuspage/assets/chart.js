// A small chart of what grew in the last minutes, stacked.
import { clock, count, each, make, rate, say } from './tools.js';

const height = 132;
const names = { regular: 'regular', fallback_cached: 'cached fallback', fallback_cached_uncertain: 'uncertain cached fallback', fallback_random: 'random fallback', granted: 'granted', refused: 'refused' };

/**
 * An element of SVG.
 * @param {string} name
 * @param {Record<string, string | number>} attributes
 */
export function draw(name, attributes) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  return element;
}

/** The least of 1, 2, 5, 10, ... that is no less. @param {number} n */
function roundUp(n) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(n, 1)));
  for (const step of [1, 2, 5, 10]) if (n <= step * unit) return step * unit;
  return 10 * unit;
}

/** A chart with its legend, to be put into the page. @param {string} label */
export function makeChart(label) {
  return make('figure', { class: 'chart-box' }, make('div', { class: 'chart', 'data-label': label }), make('ul', { class: 'legend' }));
}

/**
 * Draws the kinds, given as counts per step, the latest last.
 * @param {HTMLElement} box made by makeChart
 * @param {{step: number, ends: number}} past
 * @param {number} steps how many the chart has room for
 * @param {Array<{kind: string, grew: number[], total: number}>} kinds
 */
export function drawChart(box, past, steps, kinds) {
  const perSecond = 1000 / past.step;
  const columns = [];
  for (let i = 0; i < steps; i++) {
    columns.push(kinds.map(({ grew }) => (grew[grew.length - steps + i] ?? 0) * perSecond));
  }
  const known = Math.min(steps, Math.max(...kinds.map((k) => k.grew.length)));
  const top = roundUp(Math.max(...columns.map((c) => c.reduce((a, b) => a + b, 0))));
  const chart = /** @type {HTMLElement} */ (box.firstChild);
  const label = chart.getAttribute('data-label');
  const svg = draw('svg', { viewBox: `0 0 ${steps} ${height}`, preserveAspectRatio: 'none', role: 'img',
    'aria-label': `${label}: ${kinds.map((k) => `${names[k.kind]} ${rate((k.grew.at(-1) ?? 0) * perSecond)} per second`).join(', ')}` });
  for (const part of [0, 0.5, 1]) {
    svg.append(draw('line', { class: 'grid', x1: 0, x2: steps, y1: height * part, y2: height * part }));
  }
  const base = columns.map(() => 0);
  kinds.forEach(({ kind }, k) => {
    const upper = [];
    const lower = [];
    columns.forEach((column, i) => {
      if (i < steps - known) return;
      const y = (n) => (height - n / top * height).toFixed(2);
      lower.push(`${i},${y(base[i])}`, `${i + 1},${y(base[i])}`);
      base[i] += column[k];
      upper.push(`${i},${y(base[i])}`, `${i + 1},${y(base[i])}`);
    });
    if (upper.length) {
      const area = draw('path', { 'data-kind': kind, d: `M${upper.join('L')}L${lower.reverse().join('L')}Z` });
      svg.append(area);
    }
  });
  const seconds = steps * past.step / 1000;
  const cursor = hoverOf(chart);
  if (cursor !== null) {
    svg.append(draw('line', { class: 'cursor', x1: cursor * steps, x2: cursor * steps, y1: 0, y2: height }));
  }
  const scales = [[top, 0], [top / 2, height / 2]].map(([n, y]) => {
    const scale = make('span', { class: 'scale' }, rate(n));
    scale.style.top = `${y}px`;
    return scale;
  });
  const axis = make('div', { class: 'axis', 'aria-hidden': 'true' }, make('span', {}, `${Math.round(seconds / 60)} min ago`), make('span', {}, 'per second'), make('span', {}, 'now'));
  chart.replaceChildren(svg, ...scales, axis);
  showLegend(box, past, steps, kinds, columns, cursor);
}

function showLegend(box, past, steps, kinds, columns, cursor) {
  const at = cursor === null ? steps - 1 : Math.min(steps - 1, Math.floor(cursor * steps));
  const when = cursor === null ? '' : ` at ${clock(past.ends - (steps - 1 - at) * past.step)}`;
  each(box.lastChild, kinds.map((kind, k) => ({ ...kind, now: columns[at][k] })), (k) => k.kind,
    (k) => make('li', { 'data-kind': k.kind }, make('span', { class: 'key', 'aria-hidden': 'true' }), make('span'), make('b'), make('span', { class: 'quiet' })),
    (element, k) => {
      const [, name, now, total] = element.children;
      say(name, names[k.kind]);
      say(now, `${rate(k.now)}/s${when}`);
      say(total, `${count(k.total)} in all`);
    });
}

/** Where the pointer is, from 0 to 1. @param {HTMLElement} chart @returns {number | null} */
function hoverOf(chart) {
  if (!chart.dataset.watched) {
    chart.dataset.watched = 'yes';
    chart.addEventListener('pointermove', (event) => {
      const area = chart.getBoundingClientRect();
      chart.dataset.at = String(Math.min(0.999, Math.max(0, (event.clientX - area.left) / area.width)));
    });
    chart.addEventListener('pointerleave', () => { delete chart.dataset.at; });
  }
  return chart.dataset.at === undefined ? null : Number(chart.dataset.at);
}
