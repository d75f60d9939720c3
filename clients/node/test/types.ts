// Compiled, never run: what users may write, and what they may not.
import {
  Client, ClockBackwardError, ExternalCodec, KazahanaError,
  type Inspection, type KazahanaClient, type Lock,
} from 'kazahana';
import { ActivationFailedError, Placement, type Activation, type Executor, type PlacementEvent, type PlacementSnapshot, type Resolution } from 'kazahana/placement';
import { FakePlacement } from 'kazahana/placement/testing';
import { FakeClient } from 'kazahana/testing';

const client = new Client({ socket: '/run/k.sock', service: 'orders', timeout: 1000, prefetch: 64, maxAge: 50 });

export async function ids(): Promise<void> {
  const one: bigint = await client.nextId();
  const many: bigint[] = await client.nextIds(3, { regularOnly: true, signal: new AbortController().signal });
  const text: string = await client.nextId({ format: 'string' });
  const texts: string[] = await client.nextIds(3, { format: 'external' });
  const perhaps: bigint | undefined = client.tryNextId();
  const number: number = await client.nextId({ format: 'number' });
  const numbers: number[] = await client.nextIds(3, { format: 'number' });
  const format = (Math.random() > 2 ? 'int' : 'string') as 'int' | 'string';
  const either: bigint | number | string = await client.nextId({ format });
  // @ts-expect-error an ID is no number: it would be rounded
  const rounded: number = await client.nextId();
  // @ts-expect-error text is asked for
  const wrong: bigint = await client.nextId({ format: 'string' });
  // @ts-expect-error there is no such format
  await client.nextId({ format: 'roman' });
  // @ts-expect-error there is no such option
  await client.nextId({ sevice: 'orders' });
  // @ts-expect-error a count is needed
  await client.nextIds();
  await client.inspect(number);
  // @ts-expect-error an ID is no date
  await client.inspect(new Date());
  // @ts-expect-error a number is asked for
  const large: bigint = await client.nextId({ format: 'number' });
  // @ts-expect-error there are versions 4 and 7
  await client.uuid(5);
  console.log(numbers, large, one, many, text, texts, perhaps, either, rounded, wrong);
}

export async function others(any: KazahanaClient): Promise<Inspection> {
  const [smallest, largest]: [bigint, bigint] = await any.bounds(new Date(), Date.now());
  const next: bigint = await any.nextSequence('invoices');
  await using lock: Lock = await any.lock('reports', { ttl: 30_000, wait: 5000, hold: 'connection' });
  const token: bigint = lock.token;
  lock.lost.addEventListener('abort', () => console.log(smallest, largest, next, token));
  // @ts-expect-error a token is given, not set
  lock.token = 5n;
  return any.inspect('SoAkz6KzylI');
}

export async function placement(any: Placement): Promise<PlacementSnapshot> {
  const { version, pid, isLocal }: Resolution = await any.resolve('room', 'lobby', { wait: 5000, signal: new AbortController().signal });
  const stop = async (activation: Activation): Promise<void> => activation.check({ timeout: 1000 });
  await using executor: Executor = await any.register({
    kinds: ['room'],
    activate: async ({ snapshot, token }) => {
      const size: number | undefined = snapshot?.length;
      const next: bigint = token + 1n;
      console.log(size, next);
    },
    passivate: stop,
    ended: stop,
  });
  await any.register({ kinds: executor.kinds, activate: () => 'me', passivate: () => Buffer.from('left') });
  await any.register({ kinds: ['room'], activate: async () => 'me', passivate: async () => new Uint8Array(4) });
  await any.register({ kinds: ['room'], activate: () => {}, passivate: () => {} });
  // @ts-expect-error a pid is text
  await any.register({ kinds: ['room'], activate: () => 5, passivate: stop });
  // @ts-expect-error a snapshot is bytes
  await any.register({ kinds: ['room'], activate: stop, passivate: async () => 'left' });
  // @ts-expect-error it must know how to stop
  await any.register({ kinds: ['room'], activate: stop });
  // @ts-expect-error there is no such event
  any.events({ events: ['danced'] });
  for await (const { event, token, observedMs } of any.events({ events: ['activated', 'resolved'] })) {
    const told: [PlacementEvent['event'], bigint, number] = [event, token, observedMs];
    console.log(told, version, pid, isLocal);
  }
  // @ts-expect-error what is active is the executor's business
  executor.activations = [];
  return any.snapshot({ after: 'room/lobby', limit: 10 });
}

export function errors(error: unknown): number | string {
  if (error instanceof ClockBackwardError) return error.backwardMs;
  if (error instanceof ActivationFailedError) return String(error.cause);
  if (error instanceof KazahanaError) return error.code;
  return '';
}

export const codecs: ExternalCodec[] = [ExternalCodec.plain(), new ExternalCodec('secret'), new ExternalCodec(new Uint8Array(4))];
// @ts-expect-error without a secret there is ExternalCodec.plain()
export const none = new ExternalCodec();

// @ts-expect-error a FakeClient has no daemon: there is FakePlacement
export const unreal = new Placement(new FakeClient());

export const placed: Promise<PlacementSnapshot>[] = [placement(new Placement(client)), placement(new FakePlacement(new FakeClient()))];
export const clients: Promise<Inspection>[] = [others(client), others(new FakeClient({ fallback: true }))];
