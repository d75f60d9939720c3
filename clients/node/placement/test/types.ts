// Compiled, never run: what users may write, and what they may not.
import { Client } from 'kazahana';
import { ActivationFailedError, Placement, type Activation, type Executor, type PlacementEvent, type PlacementSnapshot, type Resolution } from 'kazahana-placement';
import { FakePlacement } from 'kazahana-placement/testing';
import { FakeClient } from 'kazahana/testing';

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

export function errors(error: unknown): string {
  return error instanceof ActivationFailedError ? String(error.cause) : '';
}

// @ts-expect-error a FakeClient has no daemon: there is FakePlacement
export const unreal = new Placement(new FakeClient());

export const placed: Promise<PlacementSnapshot>[] = [placement(new Placement(new Client())), placement(new FakePlacement(new FakeClient()))];
