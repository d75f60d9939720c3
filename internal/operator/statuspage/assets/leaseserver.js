// The lease server's page.
import { bytes, clock, count, day, each, figure, instant, make, rate, say, showEvents, showFences, showOverload, span, tell, the } from './tools.js';
import { Rates, Refused, ask, keepAsking } from './live.js';
import { drawChart, makeChart } from './chart.js';
import { Slots, tellDetail, tellNothing } from './slots.js';

const chartSteps = 150;
const lookAfter = 60; // ms that the pointer must rest
const tokenKey = 'kazahana-token';
const rates = new Rates();
const grants = makeChart('Grants and refusals in the last five minutes');
the('grants').append(grants);

let token = sessionStorage.getItem(tokenKey) ?? '';
let chosen = ''; // pool
/** @type {any} */ let latest = null;
let drawn = ''; // what the map shows
let now = 0; // the server's clock

// ---- the map

/** @type {Map<string, any>} Answers to looks, as long as the map is the same. */
const looks = new Map();
let lookTimer = 0;
let looked = '';
const slots = new Slots(turnTo, () => { drawn = ''; asking.wake(); });

function chosenPool(st = latest) {
  return st?.pools.find((p) => p.pool === chosen) ?? st?.pools[0];
}

function service() {
  return encodeURIComponent(chosenPool()?.service ?? '');
}

function turnTo(from, last) {
  clearTimeout(lookTimer);
  looked = `${from} ${last}`;
  if (from < 0) {
    tellNothing('Point at a slot, or tap it, to see its holder.');
    return;
  }
  const known = looks.get(looked);
  if (known) {
    showHolders(from, last, known);
    return;
  }
  lookTimer = window.setTimeout(async () => {
    const wanted = looked;
    try {
      const answer = await ask(`leases/find?serviceId=${service()}&from=${from}&to=${last + 1}&limit=4`, token);
      looks.set(wanted, answer);
      if (wanted === looked) showHolders(from, last, answer);
    } catch (error) {
      if (wanted === looked) tellNothing(`This cannot be told now: ${error instanceof Error ? error.message : error}`);
    }
  }, lookAfter);
}

const bold = (text) => make('b', {}, text);

function showHolders(from, last, answer) {
  const title = bold(from === last ? `Machine ID ${from}` : `Machine IDs ${count(from)} to ${count(last)}`);
  if (answer.holders.length === 0) {
    tellDetail([title, ': free, never leased']);
    return;
  }
  const parts = [title, answer.holders.length > 1 || from !== last ? ': among others ' : ': '];
  answer.holders.forEach((h, i) => {
    if (i > 0) parts.push('; ');
    if (from !== last) parts.push(`${h.machineId}: `);
    parts.push(...describe(h));
  });
  if (answer.more) parts.push(', and more');
  tellDetail(parts);
}

/** A holder's metadata, in a line. */
function describe(h) {
  const who = [bold(h.host || 'a host without a name'), `${h.pid ? `, process ${h.pid}` : ''}, service ${h.service || 'default'}`];
  switch (h.state) {
    case 'leased': return ['leased to ', ...who, `, ends in ${span(h.expired - now)}`];
    case 'quarantined': return ['quarantined, of ', ...who, `; ended ${span(now - h.expired)} ago and was not handed back, free in ${span(h.freeAt - now)}`];
  }
  return ['free; was leased to ', ...who, ` until ${instant(Math.min(h.expired, h.freeAt))}`];
}

/** What the map of the pool shows; it need not be asked for again while that is the same. */
function mapKey(pool) {
  return [pool.pool, pool.listedAt, pool.fencedUntil > 0, slots.query()].join(' ');
}

function showMap(map, key, fenced) {
  drawn = key;
  looks.clear();
  say(the('map-title'), `Slots of pool ${map.pool}`);
  slots.show(map, fenced);
  if (slots.cell < 0) tellNothing('Point at a slot, or tap it, to see its holder.');
}

// ---- the rest

function lately(past, name) {
  return (past.grew[name]?.at(-1) ?? 0) * 1000 / past.step;
}

/** The pool that will be full first, and when. */
function soonest(pools) {
  const known = pools.filter((p) => p.forecast.fullAt !== null).sort((a, b) => a.forecast.fullAt - b.forecast.fullAt);
  if (known.length) {
    const [first] = known;
    return { value: first.free === 0 && first.listedAt ? 'now' : `in ${span(first.forecast.fullAt - now)}`, note: `pool ${first.pool}: ${first.forecast.note}` };
  }
  const unknown = pools.find((p) => p.forecast.note !== 'not filling up' && !p.forecast.note.startsWith('not within'));
  return unknown ? { value: '–', note: unknown.forecast.note } : { value: 'none', note: pools[0].forecast.note };
}

function showFigures(st) {
  const sum = (name) => st.pools.reduce((n, p) => n + p[name], 0);
  const total = st.pools.reduce((n, p) => n + p.end - p.low, 0);
  const known = st.pools.every((p) => p.listedAt > 0);
  figure(the('figures'), [
    { name: 'Leases granted', value: rate(lately(st.past, 'granted')), unit: 'per s' },
    { name: 'Refused', value: rate(lately(st.past, 'refused')), unit: 'per s' },
    { name: 'Leased', value: known ? count(sum('leased')) : '–', note: known ? `${rate(100 * sum('leased') / total)}% of ${count(total)}` : 'not known now' },
    { name: 'Free', value: known ? count(sum('free')) : '–', note: known ? `${count(sum('quarantined'))} quarantined` : 'not known now' },
    { name: 'Soonest full', ...soonest(st.pools) },
    { name: 'Up', value: span(now - st.started) },
  ]);
}

/** How worrying a pool's fullness is. */
function toneOf(p) {
  return { nearly_full: 'warn', almost_full: 'bad', full: 'bad' }[p.fullness] ?? 'good';
}

function showPools(st) {
  each(the('pools'), st.pools, (p) => p.pool, (p) => {
    const row = make('tr', {}, make('td', {}, make('button', { type: 'button' }, p.pool)),
      make('td', {}, make('div', { class: 'usage', role: 'meter', 'aria-valuemin': '0', 'aria-valuemax': '100' }, make('span', { 'data-kind': 'leased' }), make('span', { 'data-kind': 'quarantined' }))),
      make('td', { class: 'n' }), make('td', { class: 'n' }), make('td', { class: 'n' }), make('td'));
    row.addEventListener('click', () => {
      chosen = p.pool;
      slots.reset();
      drawn = '';
      asking.wake();
    });
    return row;
  }, (row, p) => {
    const size = p.end - p.low;
    row.setAttribute('aria-selected', String(p === chosenPool()));
    row.setAttribute('data-tone', toneOf(p));
    const [, usage, leased, quarantined, free, full] = row.children;
    const bar = /** @type {HTMLElement} */ (usage.firstElementChild);
    const shares = /** @type {HTMLCollectionOf<HTMLElement>} */ (bar.children);
    const words = p.listedAt ? `${rate(100 * (p.leased + p.quarantined) / size)}% taken` : p.problem;
    bar.setAttribute('aria-label', `Usage of pool ${p.pool}`);
    bar.setAttribute('aria-valuenow', String(Math.round(100 * (p.leased + p.quarantined) / size)));
    bar.setAttribute('aria-valuetext', words);
    bar.title = words;
    shares[0].style.width = `${100 * p.leased / size}%`;
    shares[1].style.width = `${100 * p.quarantined / size}%`;
    say(leased, p.listedAt ? count(p.leased) : '–');
    say(quarantined, p.listedAt ? count(p.quarantined) : '–');
    say(free, p.listedAt ? count(p.free) : '–');
    say(full, p.forecast.fullAt === null ? (p.problem || p.forecast.note) : p.free === 0 ? 'now' : `in ${span(p.forecast.fullAt - now)}`);
  });
}

function showAnswers(st) {
  const answers = (st.counters['kazahana_server_requests_total'] ?? []).filter((c) => c.value > 0)
    .map((c) => ({ ...c.labels, total: c.value, now: rates.of(`${c.labels.route} ${c.labels.status}`, c.value) }));
  answers.sort((a, b) => b.total - a.total);
  each(the('answers'), answers, (a) => `${a.route} ${a.status}`,
    (a) => make('tr', {}, make('td', {}, a.route.replace('{$}', '')), make('td', {}, make('span', Number(a.status) < 400 ? {} : { class: 'pill', 'data-tone': 'warn' }, a.status)), make('td', { class: 'n' }), make('td', { class: 'n' })),
    (row, a) => { say(row.children[2], rate(a.now)); say(row.children[3], count(a.total)); });
}

/** The value of a metric without labels. */
function gauge(st, metric) {
  return st.counters[metric]?.[0]?.value ?? 0;
}

function showFacts(st, pool) {
  const results = {};
  for (const c of st.counters['kazahana_server_acquires_total'] ?? []) results[c.labels.result] = (results[c.labels.result] ?? 0) + c.value;
  const waiting = (st.counters['kazahana_server_lock_waiters'] ?? []).reduce((n, c) => n + c.value, 0);
  const acquires = Object.entries(results).filter(([, n]) => n > 0).map(([name, n]) => `${count(n)} ${name}`);
  tell(the('facts'), [
    ['Provider', `${st.provider}, scope ${st.scope}`],
    ['Acquires', acquires.join(', ') || 'none yet'],
    ['Lock waiters', count(waiting)],
    ['Memory of requests', `${bytes(gauge(st, 'kazahana_server_memory_reserved_bytes'))} of ${bytes(gauge(st, 'kazahana_server_memory_reservable_bytes'))}`],
    ['Pool', pool.pool + (pool.services.length ? `, of the services ${pool.services.join(', ')}` : '')],
    ['Machine IDs', `${count(pool.low)} to ${count(pool.end - 1)}, ${pool.bitId}/${pool.bitSeq} bits`],
    ['Term', `${span(pool.term)}, then ${span(pool.quarantine)} of quarantine unless handed back`],
    ['Layout', `${pool.bitTs} bits of time from ${day(pool.epoch)}, used up on ${day(pool.layoutEnds)}`, pool.layoutEnds - now < 366 * 86400e3],
    ['Looked at', pool.listedAt ? `${clock(pool.listedAt)}, as the store was then` : pool.problem, !pool.listedAt],
  ]);
}

function show({ st, map, key }) {
  latest = st;
  now = st.now;
  rates.turn(st.now);
  the('token').hidden = true;
  the('main').hidden = false;
  say(the('host'), `lease server on ${st.host}`);
  const held = st.fences.some((f) => f.until > st.now);
  const working = st.state === 'ready' && !held;
  const [fullest] = st.pools.filter((p) => toneOf(p) !== 'good').sort((a, b) => a.free / (a.end - a.low) - b.free / (b.end - b.low));
  const tone = !working ? 'bad' : fullest ? toneOf(fullest) : st.overload.length ? 'warn' : 'good';
  const ready = tone === 'good';
  the('state').setAttribute('data-tone', tone);
  say(the('state-name'), held ? 'Grants are held back' : !working ? 'Nothing can be granted' : fullest ? `Pool ${fullest.pool} is ${fullest.fullness.replace('_', ' ')}` :
    st.overload.length ? 'Ready, with a limit that is reached' : 'Ready');
  say(the('state-why'), st.state !== 'ready' ? st.state : fullest ? `${count(fullest.free)} of ${count(fullest.end - fullest.low)} machine IDs can be granted; grants from ${st.provider}` : `grants from ${st.provider}`);
  showFences(st.fences, st.now);
  showOverload(st.overload, st.now);
  document.title = `${ready ? '' : '⚠ '}${st.host} · kazahana lease server`;
  const pool = chosenPool();
  the('fence').hidden = the('legend-fenced').hidden = pool.fencedUntil === 0;
  say(the('fence'), `Fenced: the store may have forgotten grants of pool ${pool.pool}, and grants none until ${clock(pool.fencedUntil)} (for ${span(pool.fencedUntil - now)}). Leases that are held go on.`);
  showFigures(st);
  showPools(st);
  drawChart(grants, st.past, chartSteps, ['granted', 'refused'].map((kind) => ({ kind, grew: st.past.grew[kind] ?? [], total: st[kind] })));
  showAnswers(st);
  showFacts(st, pool);
  showEvents(st.events);
  if (map && map.pool === pool.pool) showMap(map, key, pool.fencedUntil > 0);
  each(the('footer'), [`version ${st.version}`, `process ${st.pid}`], (text) => text, (text) => make('span', {}, text), () => {});
}

// ---- the search

const hints = { id: 'ID: decimal, 0x…, or external', machine: 'machine ID', host: 'a part of the host\u2019s name' };
the('search-what').addEventListener('change', () => { the('search-text').placeholder = hints[the('search-what').value]; });

the('search-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const text = the('search-text').value.trim();
  const what = the('search-what').value;
  const answer = the('search-answer');
  try {
    if (what === 'id') {
      const maker = await ask(`leases/maker?serviceId=${service()}&id=${encodeURIComponent(text)}`, token);
      const title = make('p', {}, bold(`${maker.id}`), ` is a ${maker.kind} ID of ${maker.time}, machine ID ${maker.machineId}, sequence ${maker.sequence}.`);
      answer.replaceChildren(title, ...(maker.holders.length ? [holderTable(maker.holders)] : []), make('p', { class: 'quiet' }, maker.note));
    } else {
      const query = what === 'host' ? `host=${encodeURIComponent(text)}` : `from=${encodeURIComponent(text)}&to=${encodeURIComponent(String(Number(text) + 1))}`;
      const found = await ask(`leases/find?serviceId=${service()}&limit=100&${query}`, token);
      const title = found.holders.length ? `${found.more ? 'More than ' : ''}${count(found.holders.length)} found in pool ${chosenPool().pool}.` :
        what === 'machine' ? 'It was never leased.' : 'Nobody found.';
      answer.replaceChildren(make('p', {}, title), ...(found.holders.length ? [holderTable(found.holders)] : []));
    }
  } catch (error) {
    answer.replaceChildren(make('p', {}, error instanceof Refused ? `The server says: ${error.message}` : 'There is no connection now.'));
  }
});

function holderTable(holders) {
  const rows = holders.map((h) => {
    const show = make('button', { type: 'button', title: 'Show it in the map' }, String(h.machineId));
    show.addEventListener('click', () => slots.goTo(h.machineId));
    return make('tr', {}, make('td', {}, show), make('td', {}, bold(h.host || '–')), make('td', {}, h.pid || '–'), make('td', {}, h.service || 'default'),
      make('td', {}, instant(h.created)), make('td', {}, h.released ? `handed back, free from ${instant(h.freeAt)}` : instant(h.expired)), make('td', {}, h.state));
  });
  const head = ['machine ID', 'host', 'process', 'service', 'from', 'to', 'now'].map((name) => make('th', { scope: 'col' }, name));
  return make('div', { class: 'scroll' }, make('table', {}, make('thead', {}, make('tr', {}, ...head)), make('tbody', {}, ...rows)));
}

// ---- the token

the('token-form').addEventListener('submit', (event) => {
  event.preventDefault();
  token = the('token-text').value.trim();
  sessionStorage.setItem(tokenKey, token);
  the('token-text').value = '';
  asking.wake();
});

/** Asks for a token where it is missing. @param {Refused} refusal */
function refused(refusal) {
  if (refusal.status !== 401 && refusal.status !== 403) return false;
  the('main').hidden = true;
  the('token').hidden = false;
  say(the('token-why'), token ? refusal.message : 'It is kept in this tab only, until the tab is closed, and sent to this server only.');
  sessionStorage.removeItem(tokenKey);
  the('token-text').focus();
  return true;
}

const asking = keepAsking(async () => {
  const st = await ask('status.json', token);
  const pool = chosenPool(st);
  const key = mapKey(pool);
  const wanted = key !== drawn && pool.listedAt > 0;
  const map = wanted ? await ask(`leases/map?serviceId=${encodeURIComponent(pool.service)}&${slots.query()}`, token) : null;
  return { st, map, key };
}, show, refused);
