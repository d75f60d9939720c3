// What the tests share, besides what they share with those of the client.
import { FakeClient } from '../../dist/testing.js';
import { Placement } from '../dist/index.js';
import { FakePlacement } from '../dist/testing.js';

export * from '../../test/support.mjs';

const places = new WeakMap();

/** The placement of a client, real or fake. */
export function place(client) {
  if (!places.has(client)) places.set(client, client instanceof FakeClient ? new FakePlacement(client) : new Placement(client));
  return places.get(client);
}
