import { DaemonUnavailableError, InvalidParamsError, ShuttingDownError, UnknownMethodError } from 'kazahana';
import {
  delay, encodeCall, integer, map, milliseconds, PinnedChannel, steadyNow, type Answer, type Value,
} from 'kazahana/internal';
import { Host, HostedActivation, withTokens, type Activation, type Details, type Executor, type RegisterOptions, type Source } from './host.js';

/** Between attempts to register again. */
const BACKOFF_MS = 5;
const MAX_BACKOFF_MS = 1000;
const MAX_ERROR_TEXT = 1000;

/** Registers this process as an executor, on a connection of its own. */
export async function register(options: RegisterOptions & { timeout: number }, socket: string | undefined): Promise<Executor> {
  checkRegistration(options);
  const executor = new ConnectedExecutor(options, socket);
  await executor.begin(milliseconds('timeout', options.timeout), options.signal);
  return executor;
}

/** Throws if the options are not those of register(). */
export function checkRegistration(options: RegisterOptions): void {
  for (const name of ['activate', 'passivate'] as const) {
    if (typeof options[name] !== 'function') throw new InvalidParamsError(`${name} must be a function`);
  }
  if (!Array.isArray(options.kinds)) throw new InvalidParamsError('kinds must be an array');
}

/** A registered connection. Its activations end with it. */
class Session implements Source {
  isOver = false;
  readonly channel: PinnedChannel;
  readonly over: Promise<void>;

  constructor(
    socket: string | undefined,
    readonly timeout: number,
    private readonly host: Host,
  ) {
    this.channel = new PinnedChannel(socket, false, true);
    this.channel.onMessage = (method, params, answer) => void (answer && this.serve(method, params, answer));
    this.over = new Promise((resolve) => {
      this.channel.pin(() => {
        this.isOver = true;
        host.end(this);
        resolve();
      });
    });
  }

  async check({ kind, identity, token }: Details, { timeout, signal }: { timeout: number; signal: AbortSignal | undefined }): Promise<number> {
    const answer = map(await this.channel.call(encodeCall('Placement.Check', [kind, identity, token]), timeout, signal));
    return Number(integer(answer['validMs']));
  }

  /** Answers a request of the daemon. */
  private async serve(method: string, params: Value, answer: Answer): Promise<void> {
    try {
      if (method !== 'Activate' && method !== 'Passivate') throw new UnknownMethodError(`an executor has no method ${method}`);
      const details = withTokens(Array.isArray(params) ? params[0] : null) as Details & { snapshot: Uint8Array | null };
      if (method === 'Activate') answer(null, { pid: await this.host.activate(new HostedActivation(details, this)) });
      else answer(null, { snapshot: await this.host.passivate(details) });
    } catch (error) {
      const text = error instanceof Error ? error.message || error.name : String(error);
      answer(text.slice(0, MAX_ERROR_TEXT), null);
    }
  }
}

class ConnectedExecutor implements Executor {
  readonly kinds: readonly string[];
  private readonly timeout: number;
  private readonly host: Host;
  private readonly ending = new AbortController();
  private session!: Session; // the last registered one
  private closing: Promise<void> | undefined;

  constructor(
    options: RegisterOptions & { timeout: number },
    private readonly socket: string | undefined,
  ) {
    this.kinds = [...options.kinds];
    this.timeout = options.timeout;
    this.host = new Host(options);
  }

  get activations(): readonly Activation[] {
    return this.host.activations;
  }

  /** Registers for the first time. If the daemon is restarting, it waits up to the timeout. */
  async begin(timeout: number, signal: AbortSignal | undefined): Promise<void> {
    const end = steadyNow() + timeout;
    const left = () => Math.max(end - steadyNow(), 1);
    const passes = (error: unknown, wasConnected: boolean) =>
      steadyNow() < end && (error instanceof ShuttingDownError || (error instanceof DaemonUnavailableError && wasConnected));
    await this.register(left, passes, signal);
    void this.keep();
  }

  close(): Promise<void> {
    return (this.closing ??= this.end());
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  private async end(): Promise<void> {
    this.ending.abort();
    const { channel } = this.session;
    // The daemon passivates everything before it answers. Without an answer, closing the channel ends the rest.
    await channel.call(encodeCall('Placement.Unregister', []), this.timeout).catch(() => undefined);
    channel.close();
  }

  /** Registers again whenever the connection is lost. */
  private async keep(): Promise<void> {
    const { signal } = this.ending;
    while (!signal.aborted) {
      await this.session.over;
      let isTold = false;
      const tell = (error: unknown) => {
        if (!isTold && !(error instanceof DaemonUnavailableError || error instanceof ShuttingDownError)) {
          process.emitWarning(`the executor for ${this.kinds.join(', ')} cannot register again yet: ${String(error)}`, 'KazahanaWarning');
          isTold = true;
        }
        return true;
      };
      await this.register(() => this.timeout, tell, signal).catch(() => undefined); // closed
    }
  }

  /** Tries until it is registered, or an error is final. */
  private async register(left: () => number, passes: (error: unknown, wasConnected: boolean) => boolean, signal: AbortSignal | undefined): Promise<void> {
    for (let pause = BACKOFF_MS; ; pause = Math.min(2 * pause, MAX_BACKOFF_MS)) {
      const session = new Session(this.socket, this.timeout, this.host);
      try {
        await session.channel.call(encodeCall('Placement.Register', [this.kinds]), left(), signal);
        signal?.throwIfAborted();
        this.session = session;
        return;
      } catch (error) {
        session.channel.close();
        if (signal?.aborted || !passes(error, session.channel.wasConnected)) throw error;
      }
      // After an abort the next attempt throws.
      await delay(pause * (0.5 + Math.random() / 2), undefined, { ...(signal && { signal }) }).catch(() => undefined);
    }
  }
}
