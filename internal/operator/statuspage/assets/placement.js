// The part of the daemon's page about placement.
import { clock, count, each, instant, make, say, tell, the } from './tools.js';

const placementStates = {
  member: ['good', 'member', 'Actors live on this host.'],
  client: ['good', 'client', 'This host resolves actors, and none live here.'],
  not_ready: ['warn', 'not ready', "There are no members, they are not known yet, or this host's membership has ended."],
  stopped: ['warn', 'stopped', 'The daemon starts or stops.'],
};

const placementEvents = {
  activated: ['info', 'activated'],
  passivated: ['info', 'passivated'],
  activation_failed: ['warn', 'failed'],
  lock_denied: ['info', 'denied'],
  unserved: ['warn', 'unserved'],
};

/** Names are of processes' choice: isolated, they cannot turn the text around them. */
const own = (text) => make('bdi', {}, text);

/**
 * @param {null | {state: string, authority: string, members: Array<{authority: string, token: number, kinds: string[]}>, members_total: number,
 *   kinds: Array<{kind: string, executors: number, activations: number}>, kinds_total: number, activations_total: number,
 *   lately: Array<{serial: number, at: number, event: string, kind: string, identity: string, token: number, reason: string}>}} p
 */
export function showPlacement(p) {
  the('placement').hidden = p === null;
  if (p === null) return;
  const [tone, short, why] = placementStates[p.state] ?? ['warn', p.state, ''];
  const pill = the('placement-state');
  pill.setAttribute('data-tone', tone);
  say(pill, short);
  tell(the('placement-facts'), [
    ['State', why],
    ['This host', p.authority || 'has no name: no actors live here'],
    ['Members', count(p.members_total) + (p.members_total > p.members.length ? `, of which ${count(p.members.length)} are shown` : ''), p.members_total === 0],
    ['Actors here', count(p.activations_total)],
  ]);
  each(the('placement-members'), p.members, (m) => m.authority,
    (m) => make('li', {}, own(m.authority), make('span', { class: 'quiet' }), make('b')),
    (element, m) => {
      say(element.children[1], ` token ${m.token}`);
      say(element.children[2], m.authority === p.authority ? ' this host' : '');
    });
  the('placement-kinds').closest('table').hidden = p.kinds.length === 0;
  the('no-kinds').hidden = p.kinds.length > 0;
  each(the('placement-kinds'), p.kinds, (k) => k.kind,
    (k) => make('tr', {}, make('td', {}, own(k.kind)), make('td', { class: 'n' }), make('td', { class: 'n' })),
    (row, k) => { say(row.children[1], count(k.executors)); say(row.children[2], count(k.activations)); });
  the('more-kinds').hidden = p.kinds_total === p.kinds.length;
  say(the('more-kinds'), `and ${count(p.kinds_total - p.kinds.length)} more kinds`);
  the('no-placed').hidden = p.lately.length > 0;
  each(the('placed'), p.lately, (e) => String(e.serial), makePlacementEvent, () => {});
}

function makePlacementEvent(e) {
  const [level, word] = placementEvents[e.event] ?? ['info', e.event];
  return make('li', {},
    make('time', { datetime: new Date(e.at).toISOString(), title: instant(e.at) }, clock(e.at)),
    make('span', { class: 'level', 'data-level': level }, word),
    make('div', {}, make('p', {}, own(`${e.kind}/${e.identity}`), e.token ? `, token ${e.token}` : ''),
      make('p', { class: 'details' }, own(e.reason))));
}
