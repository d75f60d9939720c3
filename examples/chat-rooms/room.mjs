/**
 * A process of chat rooms. room.py is the same in Python; one host may run several of both.
 *
 *     node room.mjs SOCKET STORE
 *
 * SOCKET is that of the host's kazahanad, STORE the URL of ../fenced-store. The process prints the events of its
 * rooms, a line of JSON each, and shuts down when its standard input ends.
 */
/* global fetch */
import { createServer } from 'node:http';
import { text as textOf } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
// In a program of your own: from 'kazahana'.
import { Client } from '../../clients/node/dist/index.mjs';
import { Placement } from '../../clients/node/placement/dist/index.mjs';

const KEPT = 1000; // messages of a room
const HOPS = 4; // limit for a message: rooms may move meanwhile
const TIMEOUT_MS = 10_000; // for answers of others
const DOOR_RETRY_MS = 500;

const [, , SOCKET, STORE] = process.argv;
const client = new Client({ socket: SOCKET, timeout: TIMEOUT_MS });
const placement = new Placement(client);
const rooms = new Map();
let own; // the address of this process

/** The room is not, or no longer, here. */
class MovedError extends Error {}

/** One activation of a room. */
class Room {
  isOpen = true;
  messages = undefined; // as in the store; undefined: not read yet
  turn = Promise.resolve(); // one message at a time

  constructor(activation) {
    this.activation = activation;
  }

  /** Appends a message, if there is one, and returns all. */
  use(text) {
    const result = this.turn.then(() => this.append(text));
    this.turn = result.catch(() => undefined);
    return result;
  }

  async append(text) {
    if (!this.isOpen) throw new MovedError('the room is on the move');
    // Reading with the token shuts out earlier activations.
    let messages = this.messages ?? JSON.parse((await this.askStore('GET')) || '[]');
    const relied = Number(process.hrtime.bigint());
    await this.activation.check(); // another activation may have written since
    if (text !== undefined) {
      this.messages = undefined; // if this fails, the content of the store is unknown
      messages = [...messages, text].slice(-KEPT);
      await this.askStore('PUT', JSON.stringify(messages));
      tell('wrote', this.activation, { relied });
    }
    this.messages = messages;
    return messages;
  }

  async askStore(method, body) {
    const { identity, token } = this.activation;
    const headers = { 'Fencing-Token': String(token), Writer: own };
    const answer = await fetch(`${STORE}/${identity}`, { method, body, headers, signal: AbortSignal.timeout(TIMEOUT_MS) });
    const text = await answer.text();
    if (answer.ok) return text;
    tell('refused', this.activation, { why: text.trim() });
    throw new MovedError('the room is on the move');
  }

  async close() {
    this.isOpen = false;
    await this.turn; // wait for the write under way
  }
}

function activate(activation) {
  tell('activated', activation);
  rooms.set(activation.identity, new Room(activation));
  return own; // callers that resolve the room send its messages there
}

async function leave(did, activation) {
  const room = rooms.get(activation.identity);
  rooms.delete(activation.identity);
  await room.close();
  tell(did, activation);
}

function tell(did, activation, more) {
  const about = { at: Number(process.hrtime.bigint()), did, ...more };
  if (activation) Object.assign(about, { room: activation.identity, version: Number(activation.version), token: Number(activation.token) });
  process.stdout.write(`${JSON.stringify(about)}\n`);
}

/** GET /ROOM returns its messages, POST /ROOM appends the body as one. Any process finds out where the room is. */
async function door(request, response) {
  let status = 503;
  let answer;
  try {
    const text = request.method === 'POST' ? await textOf(request) : undefined;
    [status, answer] = await deliver(request.url.slice(1), text, Number(request.headers.hops ?? 0));
  } catch (error) {
    answer = `try again: ${error.message}\n`;
  }
  response.writeHead(status, { 'Content-Length': Buffer.byteLength(answer) }).end(answer);
}

async function deliver(name, text, hops) {
  const where = await placement.resolve('room', name);
  if (where.isLocal && where.pid === own) {
    const room = rooms.get(name);
    if (!room) throw new MovedError('the room is on the move');
    const messages = await room.use(text);
    return [200, text === undefined ? messages.map((message) => `${message}\n`).join('') : ''];
  }
  // To the process on this host that has the room, or to the room's host, which knows the process.
  if (hops >= HOPS) throw new MovedError('the room is on the move');
  const to = where.isLocal ? where.pid : where.authority;
  const answer = await fetch(`http://${to}/${name}`, {
    method: text === undefined ? 'GET' : 'POST',
    body: text,
    headers: { Hops: String(hops + 1) },
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  return [answer.status, await answer.text()];
}

function serve(host, port) {
  return new Promise((resolve, reject) => {
    const server = createServer(door).once('error', reject);
    server.listen(port, host, () => resolve(server.address().port));
  });
}

/** Listens on the host's public address: one of its processes does, and another one when that is gone. */
async function keepDoor(authority) {
  const colon = authority.lastIndexOf(':');
  for (;;) {
    try {
      await serve(authority.slice(0, colon), Number(authority.slice(colon + 1)));
      return tell('has the door', undefined, { address: authority });
    } catch {
      await delay(DOOR_RETRY_MS);
    }
  }
}

own = `127.0.0.1:${await serve('127.0.0.1', 0)}`;
const executor = await placement.register({
  kinds: ['room'],
  activate,
  passivate: (activation) => leave('passivated', activation),
  ended: (activation) => leave('ended', activation), // the daemon is gone, and another host may have the room by now
});
const { authority } = await placement.snapshot({ limit: 0 });
void keepDoor(authority);
tell('ready', undefined, { address: own });
process.stdin.resume().once('end', async () => {
  await executor.close();
  await client.close();
  process.exit();
});
