import { DaemonUnavailableError, type Client } from 'kazahana';
import { insideFake, type CallOptions, type FakeInside, type Inside, type Value } from 'kazahana/internal';
import type { FakeClient } from 'kazahana/testing';
import { ActivationEndedError, ActivationFailedError, PlacementUnservedError } from './errors.js';
import { EventQueue, type PlacementEventName, type PlacementEventOptions, type PlacementEvents } from './events.js';
import { checkRegistration } from './executor.js';
import { Placement } from './index.js';
import { Host, HostedActivation, type Details, type Executor, type PlacementSnapshotOptions, type RegisterOptions, type Source } from './host.js';

const AUTHORITY = 'localhost:1';
const VALID_MS = 3000;
const ALL_BUT_RESOLVED: readonly PlacementEventName[] = ['lock_denied', 'activated', 'activation_failed', 'passivated'];

interface FakeExecutor {
  kinds: readonly string[];
  host: Host;
  source: { isOver: boolean } & Source;
}

interface Placed {
  executor: FakeExecutor;
  details: Details;
  pid: string;
}

/** The placement of one host without a daemon: its executors are in this process. */
class FakeHost {
  private readonly executors = new Set<FakeExecutor>();
  private readonly active = new Map<string, Placed>();
  private readonly activating = new Map<string, Promise<Placed>>();
  private readonly snapshots = new Map<string, Uint8Array>();
  private readonly versions = new Map<string, bigint>();
  private readonly watchers = new Set<{ queue: EventQueue; events: readonly PlacementEventName[] }>();
  private tokens = 0n;

  constructor(private readonly nowMs: number) {}

  async resolve(kind: string, identity: string): Promise<Value> {
    const key = `${kind}/${identity}`;
    let placed = this.active.get(key);
    if (!placed) {
      const activating = this.activating.get(key) ?? this.activate(key, kind, identity).finally(() => this.activating.delete(key));
      this.activating.set(key, activating);
      placed = await activating;
    }
    const { pid, details } = placed;
    this.tell('resolved', details, pid);
    return { kind, identity, authority: AUTHORITY, locality: 'local', pid, version: details.version, token: details.token, observed_ms: this.nowMs };
  }

  private async activate(key: string, kind: string, identity: string): Promise<Placed> {
    const [executor] = [...this.executors].filter(({ kinds }) => kinds.includes(kind)).sort((a, b) => this.load(a) - this.load(b));
    if (!executor) throw new PlacementUnservedError(`no process of any host has registered for this kind: "${kind}"`);
    const details = { kind, identity, version: (this.versions.get(key) ?? 0n) + 1n, token: ++this.tokens, snapshot: this.snapshots.get(key) ?? null };
    this.versions.set(key, details.version);
    try {
      const pid = await executor.host.activate(new HostedActivation(details, executor.source));
      const placed = { executor, details, pid };
      this.active.set(key, placed);
      this.tell('activated', details, pid);
      return placed;
    } catch (error) {
      const cause = error instanceof Error ? error.message : String(error);
      this.tell('activation_failed', { ...details, version: 0n, token: 0n }, '', cause);
      throw failed(cause);
    }
  }

  private load(executor: FakeExecutor): number {
    return [...this.active.values()].filter((placed) => placed.executor === executor).length;
  }

  register(options: RegisterOptions & { timeout: number }): Executor {
    const host = new Host(options);
    const executor = { kinds: [...options.kinds], host, source: this.source(options.timeout) };
    this.executors.add(executor);
    const close = async () => {
      if (!this.executors.delete(executor)) return;
      await Promise.allSettled(this.activating.values());
      for (const [key, placed] of [...this.active]) if (placed.executor === executor) await this.passivate(key);
      executor.source.isOver = true;
      host.end(executor.source);
    };
    return {
      kinds: executor.kinds,
      get activations() {
        return host.activations;
      },
      close,
      [Symbol.asyncDispose]: close,
    };
  }

  private source(timeout: number): FakeExecutor['source'] {
    const check = async ({ kind, identity, token }: Details) => {
      const key = `${kind}/${identity}`;
      if (this.active.get(key)?.details.token === token || this.activating.has(key)) return VALID_MS;
      throw new ActivationEndedError(`the activation of token ${token} has ended`);
    };
    return { isOver: false, timeout, check };
  }

  async passivate(key: string): Promise<void> {
    const placed = this.active.get(key);
    if (!placed) return;
    this.active.delete(key);
    const { executor, details, pid } = placed;
    let reason = '';
    try {
      const snapshot = await executor.host.passivate(details);
      if (snapshot) this.snapshots.set(key, snapshot);
    } catch (error) {
      reason = String(error);
    }
    this.tell('passivated', details, pid, reason);
  }

  /** Acts like a daemon that was killed and restarted: all activations end, and the executors register again. */
  restart(): void {
    this.active.clear();
    for (const { queue } of [...this.watchers]) queue.end({ error: new DaemonUnavailableError('the connection to the daemon was lost') });
    for (const executor of this.executors) {
      const { host, source } = executor;
      source.isOver = true;
      executor.source = this.source(source.timeout);
      host.end(source);
    }
  }

  watch({ events = ALL_BUT_RESOLVED, signal }: PlacementEventOptions): PlacementEvents {
    const queue = new EventQueue(signal, () => this.watchers.delete(watcher));
    const watcher = { queue, events };
    this.watchers.add(watcher);
    return Object.assign(queue, { ready: Promise.resolve() });
  }

  private tell(event: PlacementEventName, { kind, identity, version, token }: Details, pid: string, reason = ''): void {
    const told = { event, kind, identity, authority: AUTHORITY, pid, version, token, reason, observedMs: this.nowMs };
    for (const { queue, events } of [...this.watchers]) if (events.includes(event)) queue.push({ ...told });
  }

  snapshot({ after = '', limit = 100, kind, identity }: PlacementSnapshotOptions): Value {
    const wanted = kind === undefined ? undefined : `${kind}/${identity}`;
    const keys = [...this.active.keys()].filter((key) => (wanted === undefined ? key > after : key === wanted)).sort();
    const row = (key: string) => {
      const { details, pid } = this.active.get(key)!;
      return { kind: details.kind, identity: details.identity, doing: 'resting', active: true, pid, version: details.version, token: details.token, idle_ms: 0 };
    };
    const placed = wanted === undefined ? undefined : this.active.get(wanted);
    const record = placed ? { owner: AUTHORITY, pid: placed.pid, version: placed.details.version, token: placed.details.token, observed_ms: this.nowMs } : null;
    const kinds = [...new Set([...this.executors].flatMap((executor) => executor.kinds))].sort();
    return {
      state: 'member', authority: AUTHORITY, members: [{ authority: AUTHORITY, token: 1n, kinds }], kinds,
      activations: keys.slice(0, limit).map(row), activations_total: this.active.size, ignored_results: 0,
      key: wanted === undefined ? null : { authority: AUTHORITY, locality: 'local', record },
    };
  }
}

/** The placement of a FakeClient: it is the only host, and activates by the callbacks of its own executors. */
export class FakePlacement extends Placement {
  private readonly host: FakeHost;
  private readonly fake: FakeInside;

  constructor(client: FakeClient) {
    const fake = insideFake(client);
    const request: Inside['request'] = (method, params, options) => this.answer(method, params, options);
    const answered: unknown = { request, timeout: fake.timeout };
    super(answered as Client);
    this.fake = fake;
    this.host = new FakeHost(fake.start);
  }

  override async register(options: RegisterOptions): Promise<Executor> {
    checkRegistration(options);
    this.fake.begin('Placement.Register', options.signal);
    return this.host.register({ ...options, timeout: options.timeout ?? this.fake.timeout });
  }

  override events(options: PlacementEventOptions = {}): PlacementEvents {
    this.fake.begin('Placement.Watch', options.signal);
    return this.host.watch(options);
  }

  /** Passivates the active actors, as the daemon does when the identity moves to another host. */
  passivate(kind: string, identity: string): Promise<void> {
    return this.host.passivate(`${kind}/${identity}`);
  }

  /** Ends all activations and events, as a daemon does that dies and is started again: `ended` is called, and the executors live on. */
  restart(): void {
    this.host.restart();
  }

  private async answer(method: string, [first, second]: unknown[], { signal }: CallOptions): Promise<Value> {
    this.fake.begin(method, signal);
    return method === 'Placement.Resolve' ? this.host.resolve(first as string, second as string) : this.host.snapshot(first as PlacementSnapshotOptions);
  }
}

function failed(cause: string): ActivationFailedError {
  return new ActivationFailedError('the activation has failed', { cause, details: { cause } });
}
