import { InvalidParamsError } from 'kazahana';
import { integer, LONG_AGO, map, milliseconds, Moment, steadyNow, type CallOptions, type Value } from 'kazahana/internal';
import { ActivationEndedError } from './errors.js';

export interface ResolveOptions extends CallOptions {
  /** Milliseconds to wait for an activation: 0 (no wait) to 600,000. Default 10,000. `timeout` comes on top. */
  wait?: number | undefined;
  /** Looks up the pid, version and token of a remote identity too. They are as old as `topology_interval` at most. Default false. */
  pid?: boolean | undefined;
}

/** Where an identity lives. */
export interface Resolution {
  kind: string;
  identity: string;
  /** host:port of its host: the `placement_authority` of the daemon there. */
  authority: string;
  locality: 'local' | 'remote';
  isLocal: boolean;
  /** The process's name for it. For a remote one it is '' unless asked for, and where it is not active or the store did not answer. */
  pid: string;
  /** Rises with each activation of the identity; 0n where pid is ''. */
  version: bigint;
  /** The fencing token: greater than that of every earlier activation; 0n where pid is ''. */
  token: bigint;
  /** When the daemon knew this, in Unix ms. */
  observedMs: number;
}

export interface PlacementSnapshotOptions extends CallOptions {
  /** The `kind/identity` of the last activation of the previous page. */
  after?: string | undefined;
  /** The size of a page: 0 to 1000 activations. Default 100. */
  limit?: number | undefined;
  /** Together with identity: select one identity. Nothing is activated. */
  kind?: string | undefined;
  identity?: string | undefined;
}

/** The state of placement as the daemon of this host sees it. Newer daemons have more fields. */
export interface PlacementSnapshot {
  state: 'stopped' | 'not_ready' | 'client' | 'member';
  authority: string;
  members: { authority: string; token: bigint; kinds: string[] }[];
  /** Kinds with an executor. */
  kinds: string[];
  /** Sorted by `kind/identity`. */
  activations: {
    kind: string;
    identity: string;
    /** The action under way; `resting`: none. */
    doing: string;
    active: boolean;
    pid: string;
    version: bigint;
    token: bigint;
    idleMs: number;
  }[];
  activationsTotal: number;
  ignoredResults: number;
  /** The selected identity: its authority, '' if there is none, and its record in the store. */
  key: {
    authority: string;
    locality: 'local' | 'remote';
    /** `owner` is the authority of the activation, '' for none. */
    record: { owner: string; pid: string; version: bigint; token: bigint; observedMs: number } | null;
  } | null;
  [key: string]: unknown;
}

/** An activation that this process runs for the daemon. */
export interface Activation {
  readonly kind: string;
  readonly identity: string;
  readonly version: bigint;
  /** The fencing token: send it with each write, so that the resource can refuse late writers. */
  readonly token: bigint;
  /** The last snapshot of a passivation. */
  readonly snapshot: Uint8Array | undefined;
  /**
   * Resolves if the activation is valid now: at once while the daemon's last promise lasts, else after a new one. It rejects with
   * ActivationEndedError if the activation has ended (for the daemon it has when passivate is called), or if the daemon does not answer in
   * time. Await it before each action that only one process may do.
   */
  check(options?: CallOptions): Promise<void>;
}

export interface Callbacks {
  /**
   * Starts the activation, and returns this process's name for it, of up to 256 bytes (default: the process ID). If it throws, the
   * activation has failed, and callers that resolve the identity get its message. The daemon waits 5 seconds.
   */
  activate: (activation: Activation) => string | undefined | Promise<string | undefined> | Promise<void>;
  /**
   * Stops the activation, and returns the snapshot for the next one, of up to 64 KiB; without one the previous snapshot is kept.
   * Afterwards the activation has ended, even if this throws. The daemon waits 5 seconds.
   */
  passivate: (activation: Activation) => Uint8Array | null | undefined | Promise<Uint8Array | null | undefined> | Promise<void>;
  /** Called instead of passivate when the daemon is gone: stop the activation, since another process may run it already. */
  ended?: ((activation: Activation) => unknown) | undefined;
}

export interface RegisterOptions extends CallOptions, Callbacks {
  /** The kinds that this process can activate: 1 to 64 kinds, of 1 to 64 bytes each, without slash. */
  kinds: readonly string[];
}

/** The registration of this process, until close(). It keeps the process alive. */
export interface Executor extends AsyncDisposable {
  readonly kinds: readonly string[];
  /** The activations of this process. */
  readonly activations: readonly Activation[];
  /** Passivates everything, accepts nothing more, and closes the connection. Activations that are not passivated in time are ended. */
  close(): Promise<void>;
}

export const EXACT: readonly string[] = ['version', 'token'];

/** A map of placement, whose versions and tokens, at every level, are bigints. */
export function withTokens(value: Value | undefined): Record<string, Value> {
  return exact(map(value)) as Record<string, Value>;
}

function exact(value: Value): Value {
  if (Array.isArray(value)) return value.map(exact);
  if (typeof value !== 'object' || value === null || value instanceof Uint8Array) return value;
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, EXACT.includes(name) ? integer(member) : exact(member)]));
}

/** The daemon ignores later answers. */
const ANSWER_WITHIN_MS = 5000;
const MAX_PID = 256;
const MAX_SNAPSHOT = 64 << 10;

export type Details = Pick<Activation, 'kind' | 'identity' | 'version' | 'token'>;

/** The origin of an activation. */
export interface Source {
  /** Set when its activations have ended. */
  readonly isOver: boolean;
  readonly timeout: number;
  /** Asks for a promise of the activation, in milliseconds counted from before the request. */
  check(details: Details, options: { timeout: number; signal: AbortSignal | undefined }): Promise<number>;
}

export class HostedActivation implements Activation {
  readonly kind: string;
  readonly identity: string;
  readonly version: bigint;
  readonly token: bigint;
  readonly snapshot: Uint8Array | undefined;
  isOver = false;
  private until = LONG_AGO; // the end of the daemon's promise

  constructor(
    details: Details & { snapshot: Uint8Array | null },
    readonly source: Source,
  ) {
    this.kind = details.kind;
    this.identity = details.identity;
    this.version = details.version;
    this.token = details.token;
    this.snapshot = details.snapshot ?? undefined;
  }

  get key(): string {
    return `${this.kind}/${this.identity}`;
  }

  async check(options: CallOptions = {}): Promise<void> {
    const { timeout = this.source.timeout, signal } = options;
    const end = steadyNow() + milliseconds('timeout', timeout);
    signal?.throwIfAborted();
    for (let cause: unknown; ; ) {
      if (this.isOver || this.source.isOver) throw new ActivationEndedError(`the activation of ${this.key} has ended`, { cause });
      if (this.until.left > 0) return;
      const [asked, now] = [new Moment(), steadyNow()];
      if (now >= end) throw new ActivationEndedError(`the daemon does not tell whether ${this.key} is still active`, { cause });
      try {
        const valid = await this.source.check(this, { timeout: Math.max(end - now, 1), signal });
        const until = asked.plus(valid);
        if (until.left > this.until.left) this.until = until;
      } catch (error) {
        if (signal?.aborted || error instanceof ActivationEndedError) throw error;
        throw new ActivationEndedError(`the daemon does not tell whether ${this.key} is still active`, { cause: error });
      }
    }
  }
}

/** Calls the callbacks of an executor, and knows what is active: those of one key in order, those of different keys at the same time. */
export class Host {
  private readonly live = new Map<string, HostedActivation>();
  private readonly turns = new Map<string, Promise<unknown>>(); // by key: when everything so far is done

  constructor(private readonly callbacks: Callbacks) {}

  get activations(): HostedActivation[] {
    return [...this.live.values()];
  }

  /** Activates, and gives the pid. */
  activate(activation: HostedActivation): Promise<string> {
    const { key, source } = activation;
    const came = steadyNow();
    const isLost = () => source.isOver;
    return this.inTurn(key, async () => {
      const before = this.live.get(key);
      if (before) await this.tellEnded(before); // the daemon knows of none
      if (isLost()) throw new ActivationEndedError('the connection to the daemon was lost before its turn');
      if (steadyNow() - came >= ANSWER_WITHIN_MS) throw new ActivationEndedError('its turn came too late');
      let pid: unknown;
      try {
        pid = (await this.callbacks.activate(activation)) ?? String(process.pid);
      } catch (error) {
        activation.isOver = true;
        throw error;
      }
      const wrong = typeof pid !== 'string' || Buffer.byteLength(pid) > MAX_PID;
      if (isLost() || wrong) {
        await this.tellEnded(activation);
        throw wrong ? new InvalidParamsError(`activate gave no string of up to ${MAX_PID} bytes`) : new ActivationEndedError('the connection to the daemon was lost');
      }
      this.live.set(key, activation);
      return pid as string;
    });
  }

  /** Passivates, and gives the snapshot, if there is one. What is not active here leaves none. */
  passivate({ kind, identity, token }: Details): Promise<Uint8Array | null> {
    const key = `${kind}/${identity}`;
    return this.inTurn(key, async () => {
      const activation = this.live.get(key);
      if (activation?.token !== token) return null;
      this.live.delete(key);
      try {
        const snapshot: unknown = (await this.callbacks.passivate(activation)) ?? null;
        if (snapshot === null || (snapshot instanceof Uint8Array && snapshot.length <= MAX_SNAPSHOT)) return snapshot;
        throw new InvalidParamsError(`passivate gave no Uint8Array of up to ${MAX_SNAPSHOT} bytes`);
      } catch (error) {
        warn('passivate', activation, error);
        throw error;
      } finally {
        activation.isOver = true;
      }
    });
  }

  /** Ends what came from a source, which is over. */
  end(source: Source): void {
    for (const activation of this.activations) {
      if (activation.source !== source) continue;
      activation.isOver = true;
      this.live.delete(activation.key);
      void this.inTurn(activation.key, () => this.tellEnded(activation));
    }
  }

  private async tellEnded(activation: HostedActivation): Promise<void> {
    activation.isOver = true;
    if (this.live.get(activation.key) === activation) this.live.delete(activation.key);
    try {
      await this.callbacks.ended?.(activation);
    } catch (error) {
      warn('ended', activation, error);
    }
  }

  private inTurn<T>(key: string, act: () => Promise<T>): Promise<T> {
    const result = (this.turns.get(key) ?? Promise.resolve()).then(act);
    const done = result.then(forget, forget);
    const turns = this.turns;
    function forget(): void {
      if (turns.get(key) === done) turns.delete(key);
    }
    turns.set(key, done);
    return result;
  }
}

/** Tells of an error that no caller gets to see. */
function warn(callback: string, { key }: HostedActivation, error: unknown): void {
  process.emitWarning(`${callback} of ${key} failed: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`, 'KazahanaWarning');
}
