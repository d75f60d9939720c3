// The daemon's page.
import { bytes, count, day, each, figure, instant, make, rate, say, showEvents, showFences, showOverload, span, tell, the } from './tools.js';
import { Rates, ask, keepAsking } from './live.js';
import { drawChart, makeChart } from './chart.js';
import { showPlacement } from './placement.js';

const chartSteps = 150;
const kinds = ['regular', 'fallback_cached', 'fallback_cached_uncertain', 'fallback_random'];
const rates = new Rates();

const modes = {
  regular: ['good', 'Regular', 'IDs are made under a valid lease. ', 'regular'],
  starting: ['warn', 'Starting', 'The first lease is being acquired; requests wait for it. ', 'starting'],
  fallback_cached: ['warn', 'Fallback, from the last lease', 'There is no valid lease. IDs come from the slot of the last one, marked as fallback. ', 'cached fallback'],
  fallback_cached_uncertain: ['bad', 'Fallback, from the last lease, no longer certain', 'There is no valid lease, and the reservation of the last one has ended: another host may make the same fallback IDs. ', 'uncertain fallback'],
  fallback_random: ['warn', 'Fallback, random', 'There is no valid lease, and no cached one: fallback IDs are told apart by chance only. ', 'random fallback'],
  unavailable: ['bad', 'No IDs can be issued', 'There is no valid lease, and fallback is not allowed or not possible. ', 'unavailable'],
};

/** @param {string} mode */
function modeOf(mode) {
  const [tone, title, why, short] = modes[mode] ?? ['warn', mode, '', mode];
  return { tone, title, why, short };
}

function showMode(st) {
  const mode = modeOf(st.mode);
  the('mode').setAttribute('data-tone', mode.tone);
  say(the('mode-name'), mode.title);
  const worst = st.services.filter((s) => s.mode === st.mode).map((s) => s.service);
  const which = st.services.length > 1 && mode.tone !== 'good' ? `Service ${worst.join(', ')}. ` : '';
  say(the('mode-why'), `${which}${mode.why}Scope ${st.scope}: ${st.promise}.`);
  const cause = st.services.find((s) => s.mode === st.mode)?.cause ?? '';
  the('mode-cause').hidden = cause === '';
  say(the('mode-cause'), cause);
  document.title = `${mode.tone === 'good' ? '' : '⚠ '}${mode.short} · ${st.host} · kazahana`;
}

/** The last step's growth per second. */
function lately(past, names) {
  return names.reduce((sum, name) => sum + (past.grew[name]?.at(-1) ?? 0), 0) * 1000 / past.step;
}

function showFigures(st) {
  const ids = st.services.flatMap((s) => kinds.map((kind) => `${kind}:${s.service}`));
  const issued = st.services.reduce((sum, s) => sum + kinds.reduce((n, kind) => n + s.ids_issued[kind], 0), 0);
  // Files and fixed numbers have no clock but this host's.
  const ownClock = /^(redis|etcd|postgres|http)/.test(st.provider);
  const skews = st.services.map((s) => s.clock_skew_ms);
  const skew = skews.reduce((a, b) => (Math.abs(b) > Math.abs(a) ? b : a), 0);
  figure(the('figures'), [
    { name: 'IDs', value: rate(lately(st.history, ids)), unit: 'per s', note: `${count(issued)} since the start` },
    { name: 'Requests', value: rate(lately(st.history, ['requests'])), unit: 'per s', note: `${count(st.requests_total)} in all, ${count(st.in_flight)} waiting` },
    { name: 'Connections', value: count(st.connections) },
    ...(ownClock ? [{ name: 'Clock skew', value: `${skew > 0 ? '+' : ''}${count(skew)}`, unit: 'ms', note: "the provider's clock minus ours" }] : []),
    ...(st.features.includes('locks') ? [{ name: 'Locks held', value: count(sum(st, 'kazahana_locks_held')), note: keepingNote(st) }] : []),
    { name: 'Up', value: span(st.uptime_ms), note: `since ${instant(st.started_ms).replace('T', ' ').replace(/\.\d+Z/, 'Z')}` },
  ]);
}

function keepingNote(st) {
  return `${count(sum(st, 'kazahana_lock_waiters'))} waiting; ${count(sum(st, 'kazahana_sequence_values_total'))} values of sequences`;
}

function makeService(s) {
  return make('section', { class: 'card service', 'aria-label': `Service ${s.service}` },
    make('header', {}, make('h2', {}, `Service ${s.service}`), make('span', { class: 'pill' }), make('span', { class: 'now' }, make('b'), ' IDs per s')),
    makeChart(`IDs of service ${s.service} in the last five minutes`),
    make('h3', {}, 'Leases'), make('ul', { class: 'leases' }), make('p', { class: 'quiet' }, 'None.'), make('p', { class: 'quiet more-leases' }),
    make('p', { class: 'bar-note' }, make('span', { class: 'mark', 'aria-hidden': 'true' }), 'A lease is replaced once it has run down to the mark, at 90% of its term.'),
    make('h3', {}, 'More'), make('dl', { class: 'facts' }));
}

function showService(element, s, st) {
  const mode = modeOf(s.mode);
  const pill = element.querySelector('.pill');
  pill.setAttribute('data-tone', mode.tone);
  say(pill, mode.short);
  say(element.querySelector('.now b'), rate(lately(st.history, kinds.map((kind) => `${kind}:${s.service}`))));
  drawChart(element.querySelector('.chart-box'), st.history, chartSteps, kinds.map((kind) => ({
    kind, grew: st.history.grew[`${kind}:${s.service}`] ?? [], total: s.ids_issued[kind],
  })));
  const also = s.cached_lease;
  const isCached = (l) => also !== null && l.machine_id === also.machine_id && l.bit_seq === also.bit_seq && l.created_ms === also.created_ms;
  const leases = s.leases.filter((l) => !isCached(l)).map((l) => ({ ...l, cached: false }));
  if (also) leases.push({ ...also, cached: true });
  // Until the next one is granted, the lease that ended last stays where it was.
  const last = leases.filter((l) => l.remaining_ms === 0).sort((a, b) => b.expired_ms - a.expired_ms)[0];
  if (last && !also && s.mode.startsWith('fallback_cached')) last.cached = true;
  element.querySelector('.leases + p').hidden = leases.length > 0;
  const more = element.querySelector('.more-leases');
  more.hidden = s.leases_unlisted === 0;
  say(more, `And ${count(s.leases_unlisted)} more. Of ${count(s.leases_held)} in all, ${count(s.leases_usable)} are usable; the last of them ends in ${span(s.leases_end_ms - st.clock_ms)}.`);
  element.querySelector('.bar-note').hidden = leases.length === 0;
  each(element.querySelector('.leases'), leases, (l) => `${l.cached} ${l.machine_id} ${l.bit_seq} ${l.created_ms}`, makeLease, (e, l) => showLease(e, l, st.clock_ms));
  showServiceFacts(element.querySelector('.facts'), s, st);
}

function makeLease() {
  return make('li', { class: 'lease' }, make('div', { class: 'line' }, make('b'), make('span', { class: 'quiet' }), make('span', { class: 'left' })),
    make('div', { class: 'bar', role: 'meter', 'aria-valuemin': '0', 'aria-valuemax': '100' },
      make('div', { class: 'fill moves' }), make('span', { class: 'mark', 'aria-hidden': 'true' })));
}

function showLease(element, l, now) {
  const term = l.expired_ms - l.created_ms;
  const share = Math.min(1, Math.max(0, (l.expired_ms - now) / term));
  const renews = l.created_ms + 0.9 * term - now;
  let state = 'held';
  let left = `ends in ${span(l.remaining_ms)}, is replaced in ${span(renews)}`;
  if (l.cached) {
    state = 'cached';
    left = `cached for fallback; ended ${span(now - l.expired_ms)} ago` + (now < l.reserved_until_ms ? `, kept free of others for ${span(l.reserved_until_ms - now)}` : '');
  } else if (l.remaining_ms === 0) {
    state = 'over';
    left = `ended ${span(now - l.expired_ms)} ago`;
  } else if (!l.usable) {
    left = `not usable for another ${span(l.created_ms - now)}`;
  } else if (renews <= 0) {
    state = 'renewing';
    left = `ends in ${span(l.remaining_ms)}, is due to be replaced`;
  }
  element.setAttribute('data-state', state);
  const [name, layout, end] = element.querySelectorAll('.line > *');
  say(name, `Machine ID ${l.machine_id}`);
  say(layout, `${l.bit_id}/${l.bit_seq} bits, ${count(2 ** l.bit_seq)} IDs per ms`);
  say(end, left);
  const bar = element.querySelector('.bar');
  bar.setAttribute('aria-label', `Time left of the lease of machine ID ${l.machine_id}`);
  bar.setAttribute('aria-valuenow', String(Math.round(share * 100)));
  bar.setAttribute('aria-valuetext', left);
  bar.querySelector('.fill').style.width = `${(share * 100).toFixed(2)}%`;
}

/** The samples of a metric that have the service. */
function of(st, metric, service) {
  return (st.counters[metric] ?? []).filter((c) => c.labels.service === service && c.value > 0);
}

function showServiceFacts(list, s, st) {
  const acquires = of(st, 'kazahana_lease_acquires_total', s.service).map((c) => `${count(c.value)} ${c.labels.result}`);
  const lost = of(st, 'kazahana_leases_lost_total', s.service).map((c) => `${count(c.value)} ${c.labels.reason.replace('_', ' ')}`);
  const left = s.layout_exhausted_ms - st.clock_ms;
  tell(list, [
    ['Throughput', `${count(s.throughput_per_ms)} of at most ${count(s.max_throughput_per_ms)} IDs per ms; ${count(s.sequence_exhaustions)} ms used up`],
    ['Acquires', (acquires.join(', ') || 'none yet') + (s.failures ? `; ${count(s.failures)} failed in a row, next try in ${span(s.retry_in_ms)}` : ''), s.failures > 0],
    ['Leases lost', lost.join(', ') || 'none', lost.length > 0],
    ['Clock behind', s.clock_backward_events ? `${count(s.clock_backward_events)} times` : 'never', s.clock_backward_events > 0],
    ['Fallback', s.fallback === 'none' ? 'not allowed' : s.fallback.replace('+', ', then ')],
    ['Layout', `${s.bit_ts} bits of time from ${day(s.epoch_ms)}, used up on ${day(s.layout_exhausted_ms)} (in ${span(left)})`, left < 366 * 86400e3],
    s.offered_epoch_ms === null ? null : ['Refused', `a lease with epoch ${instant(s.offered_epoch_ms)}: see kazahanad state accept-epoch`, true],
  ]);
}

function showAnswers(st) {
  const answers = (st.counters['kazahana_rpc_requests_total'] ?? []).filter((c) => c.value > 0)
    .map((c) => ({ method: c.labels.method, code: c.labels.code, total: c.value, now: rates.of(`${c.labels.method} ${c.labels.code}`, c.value) }));
  answers.sort((a, b) => b.total - a.total);
  the('no-answers').hidden = answers.length > 0;
  the('answers').closest('table').hidden = answers.length === 0;
  each(the('answers'), answers, (a) => `${a.method} ${a.code}`,
    (a) => make('tr', {}, make('td', {}, a.method), make('td', {}, make('span', a.code === 'ok' ? {} : { class: 'pill', 'data-tone': 'warn' }, a.code)), make('td', { class: 'n' }), make('td', { class: 'n' })),
    (row, a) => { say(row.children[2], rate(a.now)); say(row.children[3], count(a.total)); });
}

/** The sum of a metric's samples. */
function sum(st, metric) {
  return (st.counters[metric] ?? []).reduce((n, c) => n + c.value, 0);
}

function showFacts(st) {
  const forward = sum(st, 'kazahana_clock_forward_events_total');
  const accepted = sum(st, 'kazahana_clock_forward_accepted_total');
  const calls = (st.counters['kazahana_provider_request_duration_seconds_count'] ?? []);
  const took = st.counters['kazahana_provider_request_duration_seconds_sum'] ?? [];
  const mean = calls.filter((c) => c.value > 0).map((c) => {
    const total = took.find((t) => t.labels.op === c.labels.op)?.value ?? 0;
    return `${c.labels.op} ${rate(total / c.value * 1000)} ms`;
  });
  const failed = sum(st, 'kazahana_state_errors_total');
  const unlogged = sum(st, 'kazahana_log_dropped_total');
  tell(the('facts'), [
    ['Wall clock', st.clock_off_ms === 0 ? 'on its course' : `${st.clock_off_ms > 0 ? '+' : ''}${count(st.clock_off_ms)} ms off its course`, st.clock_off_ms !== 0],
    ['Jumps ahead', forward ? `${count(forward)} not believed, ${count(accepted)} of them accepted later` : 'none', forward > 0],
    ['Provider', st.provider],
    ['Provider calls', mean.length ? `on average ${mean.join(', ')}` : 'none yet'],
    ['State', st.state_dir || 'none kept'],
    ['Leases and marks', st.survives_kill ? `in ${st.live_dir}, which survives kill -9` : 'do not survive kill -9', !st.survives_kill],
    ['State disk', st.state_error || (st.state_stalled_ms > 5000 ? `has kept a write waiting for ${span(st.state_stalled_ms)}` : 'answers'), st.state_error !== '' || st.state_stalled_ms > 5000],
    ['State errors', failed ? count(failed) : 'none', failed > 0],
    ['Log lines dropped', unlogged ? count(unlogged) : 'none', unlogged > 0],
    ['Memory of clients', `${bytes(st.memory.reserved)} of ${bytes(st.memory.reservable)}` + (st.memory.ended ? `; ${count(st.memory.ended)} connections ended for want of room` : ''), st.memory.ended > 0],
    ['Socket', st.socket],
    ['Features', st.features.join(', ')],
  ]);
}

function show(st) {
  rates.turn(st.started_ms + st.uptime_ms);
  the('main').hidden = false;
  say(the('host'), `daemon on ${st.host}`);
  showMode(st);
  showFences(st.fences.map((f) => ({ ...f, until: f.until_ms })), st.clock_ms);
  showOverload(st.overload, st.started_ms + st.uptime_ms);
  showFigures(st);
  each(the('services'), st.services, (s) => s.service, makeService, (element, s) => showService(element, s, st));
  showAnswers(st);
  showFacts(st);
  showPlacement(st.placement);
  showEvents(st.events);
  each(the('footer'), [`version ${st.version}`, st.go_version, `process ${st.pid}`, st.commit.slice(0, 12)], (text) => text,
    (text) => make('span', {}, text), () => {});
}

keepAsking(() => ask('status.json'), show);
