import type { Client } from 'kazahana';
import { inside, known, MAX_TIMEOUT_MS, milliseconds, type Inside } from 'kazahana/internal';
import * as errors from './errors.js';
import { watch, type PlacementEventOptions, type PlacementEvents } from './events.js';
import { register } from './executor.js';
import {
  withTokens, type Executor, type PlacementSnapshot, type PlacementSnapshotOptions, type RegisterOptions, type Resolution, type ResolveOptions,
} from './host.js';

export * from './errors.js';
export type { PlacementEvent, PlacementEventName, PlacementEventOptions, PlacementEvents } from './events.js';
export type { Activation, Executor, PlacementSnapshot, PlacementSnapshotOptions, RegisterOptions, Resolution, ResolveOptions } from './host.js';

known.push(...Object.values(errors));

const MAX_WAIT_MS = 600_000;

/** Placement of actors by the daemon of a client: at most one process of all hosts runs each. Experimental. */
export class Placement {
  private readonly client: Inside;

  /** Executors and events have connections of their own, which the client's close() leaves alone. */
  constructor(client: Client) {
    this.client = inside(client);
  }

  /** Returns where an identity lives. If it is not active, a process on its host that has registered for its kind activates it. */
  async resolve(kind: string, identity: string, options: ResolveOptions = {}): Promise<Resolution> {
    const { wait = 10_000, pid, timeout = this.client.timeout, signal } = options;
    milliseconds('timeout', timeout);
    milliseconds('wait', wait, 0, MAX_WAIT_MS);
    const params = [kind, identity, { wait_ms: Math.floor(wait), pid: pid || undefined }];
    const found = await this.client.request('Placement.Resolve', params, { timeout: Math.min(wait + timeout, MAX_TIMEOUT_MS), signal });
    const resolution = withTokens(found) as Omit<Resolution, 'isLocal'>;
    return { ...resolution, isLocal: resolution.locality === 'local' };
  }

  /** Registers this process to activate identities of some kinds. It resolves when the daemon has accepted that. */
  register(options: RegisterOptions): Promise<Executor> {
    return register({ ...options, timeout: options.timeout ?? this.client.timeout }, this.client.socket);
  }

  /** Events of activations on this host, from now on. */
  events(options: PlacementEventOptions = {}): PlacementEvents {
    return watch({ ...options, timeout: options.timeout ?? this.client.timeout }, this.client.socket);
  }

  /** The members, and the activations on this host; with `kind` and `identity` only that one, with its record in the store. */
  async snapshot(options: PlacementSnapshotOptions = {}): Promise<PlacementSnapshot> {
    const { after, limit, kind, identity } = options;
    const found = await this.client.request('Placement.Snapshot', [{ after, limit, kind, identity }], options);
    return withTokens(found) as PlacementSnapshot;
  }
}
