// A client in the form that the design gives for the HTTP provider: it knows
// nothing of this server but the two requests, the lease's fields, and how a
// release is signed.
import { createHmac } from 'node:crypto';

class HttpLeaseProvider {
  constructor(endpoint) {
    this.endpoint = endpoint;
  }

  async acquire(options) {
    const res = await fetch(`${this.endpoint}/lease`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify(options),
    });
    if (!res.ok) throw new Error(`acquire failed: ${res.status}`);
    return res.json();
  }

  async release(options) {
    const { id, signature, timestamp } = options;
    const res = await fetch(`${this.endpoint}/lease/${id}`, {
      method: 'DELETE',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ signature, timestamp }),
    });
    if (!res.ok) throw new Error(`release failed: ${res.status}`);
  }
}

const check = (ok, what) => {
  if (!ok) throw new Error(what);
};

const provider = new HttpLeaseProvider(process.argv[2]);
const { leases } = await provider.acquire({
  serviceId: 'orders', meta: { host: 'node', pid: String(process.pid) }, throughputPerMs: 1024,
});
check(leases.length === 4, `4 leases are needed for 1024 IDs per millisecond, got ${leases.length}`);
check(leases.reduce((sum, l) => sum + (1 << l.bitSeq), 0) >= 1024, 'the throughput is not reached');
for (const l of leases) {
  for (const name of ['id', 'created', 'expired', 'customEpoch', 'bitReserve', 'bitTs', 'bitId', 'bitSeq']) {
    check(Number.isSafeInteger(l[name]), `${name} is ${l[name]}`);
  }
  check(l.bitReserve + l.bitTs + l.bitId + l.bitSeq === 64, 'the layout has not 64 bits');
  check(l.id < 1 << (l.bitId - 1), 'the machine ID is one of fallback');
  check(l.created < l.expired, 'the lease is no interval');

  const sign = (secret, timestamp) => createHmac('sha256', secret).update(`${l.id}:${timestamp}`).digest('hex');
  const refused = await provider.release({ id: l.id, signature: sign('x', Date.now()), timestamp: Date.now() })
    .then(() => 'accepted', (e) => e.message);
  check(refused === 'release failed: 403', `a forged release was ${refused}`);
  const timestamp = Date.now();
  await provider.release({ id: l.id, signature: sign(l.secret, timestamp), timestamp });
}
const { leases: byDefault } = await provider.acquire({});
check(byDefault.length === 1, `${byDefault.length} leases by default`);
console.log('ok');
