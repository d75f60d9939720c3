import * as os from 'node:os';
import { performance } from 'node:perf_hooks';
import { checkTimeout, type CallOptions } from './calls.js';
import { ActivationEndedError, InvalidParamsError } from './errors.js';

export interface ResolveOptions extends CallOptions {
  /** Milliseconds to wait for an activation: 0, for what is there now, to 600,000. Default 10,000. `timeout` comes on top. */
  wait?: number | undefined;
}

/** Where an identity lives. */
export interface Resolution {
  kind: string;
  identity: string;
  /** host:port of the host that has it, as its daemon's `placement_authority` says. */
  authority: string;
  locality: 'local' | 'remote';
  isLocal: boolean;
  /** How the process there calls it; '' of a remote one. */
  pid: string;
  /** Rises with each activation of the identity; 0n of a remote one. */
  version: bigint;
  /** The fencing token: greater than that of every earlier activation; 0n of a remote one. */
  token: bigint;
  /** When the daemon knew this, in Unix ms. */
  observedMs: number;
}

export interface PlacementSnapshotOptions extends CallOptions {
  /** The `kind/identity` of the last one that the page before told of. */
  after?: string | undefined;
  /** How many activations at most: 0 to 1000. Default 100. */
  limit?: number | undefined;
  /** Together with identity: what is known of one. Nothing is activated. */
  kind?: string | undefined;
  identity?: string | undefined;
}

/** What the daemon of this host knows. Newer daemons tell more. */
export interface PlacementSnapshot {
  state: 'stopped' | 'not_ready' | 'client' | 'member';
  authority: string;
  members: { authority: string; token: bigint }[];
  /** For which there is an executor. */
  kinds: string[];
  /** By `kind/identity`, in order. */
  activations: {
    kind: string;
    identity: string;
    /** What is under way; `resting`: nothing. */
    doing: string;
    active: boolean;
    pid: string;
    version: bigint;
    token: bigint;
    idleMs: number;
  }[];
  activationsTotal: number;
  ignoredResults: number;
  /** Where the one that was asked for belongs, '' if nowhere, and what the store has of it. */
  key: {
    authority: string;
    locality: 'local' | 'remote';
    /** `owner` is the authority that has it activated, '' for none. */
    record: { owner: string; pid: string; version: bigint; token: bigint } | null;
  } | null;
  [key: string]: unknown;
}

/** What the daemon gave this process to run. */
export interface Activation {
  readonly kind: string;
  readonly identity: string;
  readonly version: bigint;
  /** The fencing token: give it to whatever the activation writes to, to refuse late writers. */
  readonly token: bigint;
  /** What the last passivation that left something left behind. */
  readonly snapshot: Uint8Array | undefined;
  /**
   * Resolves while the activation may be relied upon: at once for as long as the daemon's last answer is good for, else when the daemon
   * says so again. It rejects with ActivationEndedError if the activation has ended, which it has for the daemon when passivate is called,
   * or the daemon does not tell in time. To be awaited before each act that matters.
   */
  check(options?: CallOptions): Promise<void>;
}

export interface Callbacks {
  /**
   * Starts what was activated, and gives the name by which this process calls it, of up to 256 bytes (default: the process ID). When it
   * throws the activation has failed, and those who resolve hear its message. The daemon waits 5 seconds.
   */
  activate: (activation: Activation) => string | undefined | Promise<string | undefined> | Promise<void>;
  /**
   * Stops what was activated, and gives the snapshot for the next activation, of up to 64 KiB; without one the snapshot before it is kept.
   * Afterwards the activation has ended, also when this throws. The daemon waits 5 seconds.
   */
  passivate: (activation: Activation) => Uint8Array | null | undefined | Promise<Uint8Array | null | undefined> | Promise<void>;
  /** Stops what was activated: the daemon is gone, and has it activated elsewhere or anew. Called instead of passivate. */
  ended?: ((activation: Activation) => unknown) | undefined;
}

export interface RegisterOptions extends CallOptions, Callbacks {
  /** What this process can activate: 1 to 64 kinds, of 1 to 64 bytes each, without slash. */
  kinds: readonly string[];
}

/** This process as one that activates, until close(). It keeps the process alive. */
export interface Executor extends AsyncDisposable {
  readonly kinds: readonly string[];
  /** What is active here. */
  readonly activations: readonly Activation[];
  /** Has everything passivated, takes nothing more, and closes the connection. What the daemon does not get passivated in time is ended. */
  close(): Promise<void>;
}

/** The daemon ignores later answers. */
const ANSWER_WITHIN_MS = 5000;
const MAX_PID = 256;
const MAX_SNAPSHOT = 64 << 10;
/** In how large steps os.uptime() goes on. */
const UPTIME_STEP_MS = process.platform === 'linux' ? 10 : 1000;

export type Details = Pick<Activation, 'kind' | 'identity' | 'version' | 'token'>;

/** Where an activation came from. */
export interface Source {
  /** Set when whatever came from it has ended. */
  readonly isOver: boolean;
  readonly timeout: number;
  /** Asks for how many milliseconds from before the question the activation may be relied upon. */
  check(details: Details, options: { timeout: number; signal: AbortSignal | undefined }): Promise<number>;
}

export class HostedActivation implements Activation {
  readonly kind: string;
  readonly identity: string;
  readonly version: bigint;
  readonly token: bigint;
  readonly snapshot: Uint8Array | undefined;
  isOver = false;
  // The activation may be relied upon until then, on both clocks: only one counts a suspend, only the other is fine enough.
  private until = -Infinity; // in performance.now()
  private uptimeUntil = -Infinity; // in uptimeMs()

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

  async check({ timeout = this.source.timeout, signal }: CallOptions = {}): Promise<void> {
    const end = performance.now() + checkTimeout(timeout);
    signal?.throwIfAborted();
    for (let cause: unknown; ; ) {
      if (this.isOver || this.source.isOver) throw new ActivationEndedError(`the activation of ${this.key} has ended`, { cause });
      const [now, uptime] = [performance.now(), uptimeMs()];
      if (now < this.until && uptime + UPTIME_STEP_MS < this.uptimeUntil) return;
      if (now >= end) throw new ActivationEndedError(`the daemon does not tell whether ${this.key} is still active`, { cause });
      try {
        const valid = await this.source.check(this, { timeout: Math.max(end - now, 1), signal });
        this.until = Math.max(this.until, now + valid);
        this.uptimeUntil = Math.max(this.uptimeUntil, uptime + valid);
      } catch (error) {
        if (signal?.aborted || error instanceof ActivationEndedError) throw error;
        throw new ActivationEndedError(`the daemon does not tell whether ${this.key} is still active`, { cause: error });
      }
    }
  }
}

function uptimeMs(): number {
  return os.uptime() * 1000;
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
    const came = performance.now();
    const isLost = () => source.isOver;
    return this.inTurn(key, async () => {
      const before = this.live.get(key);
      if (before) await this.tellEnded(before); // the daemon knows of none
      if (isLost()) throw new ActivationEndedError('the connection to the daemon was lost before its turn');
      if (performance.now() - came >= ANSWER_WITHIN_MS) throw new ActivationEndedError('its turn came too late');
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
