// Compiled, never run: what users may write, and what they may not.
import {
  Client, ClockBackwardError, ExternalCodec, KazahanaError,
  type Inspection, type KazahanaClient, type Lock,
} from 'kazahana';
import { FakeClient } from 'kazahana/testing';

const client = new Client({ socket: '/run/k.sock', service: 'orders', timeout: 1000, prefetch: 64, maxAge: 50 });

export async function ids(): Promise<void> {
  const one: bigint = await client.nextId();
  const many: bigint[] = await client.nextIds(3, { regularOnly: true, signal: new AbortController().signal });
  const text: string = await client.nextId({ format: 'string' });
  const texts: string[] = await client.nextIds(3, { format: 'external' });
  const perhaps: bigint | undefined = client.tryNextId();
  const format = (Math.random() > 2 ? 'int' : 'string') as 'int' | 'string';
  const either: bigint | string = await client.nextId({ format });
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
  // @ts-expect-error an ID is no date
  await client.inspect(new Date());
  // @ts-expect-error there are versions 4 and 7
  await client.uuid(5);
  console.log(one, many, text, texts, perhaps, either, rounded, wrong);
}

export async function others(any: KazahanaClient): Promise<Inspection> {
  const [smallest, largest]: [bigint, bigint] = await any.bounds(new Date(), Date.now());
  const next: bigint = await any.nextSequence('invoices');
  await using lock: Lock = await any.lock('reports', { ttl: 30_000, wait: 5000 });
  const token: bigint = lock.token;
  lock.lost.addEventListener('abort', () => console.log(smallest, largest, next, token));
  // @ts-expect-error a token is given, not set
  lock.token = 5n;
  return any.inspect('SoAkz6KzylI');
}

export function errors(error: unknown): number | string {
  if (error instanceof ClockBackwardError) return error.backwardMs;
  if (error instanceof KazahanaError) return error.code;
  return '';
}

export const codecs: ExternalCodec[] = [ExternalCodec.plain(), new ExternalCodec('secret'), new ExternalCodec(new Uint8Array(4))];
// @ts-expect-error without a secret there is ExternalCodec.plain()
export const none = new ExternalCodec();

export const clients: Promise<Inspection>[] = [others(client), others(new FakeClient({ fallback: true }))];
