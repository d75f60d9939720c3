// What becomes of calls to a daemon that never answers, that is away, and that is there, with and without prefetch, and of a lock.
module.exports = async (kazahana, { silent, away, there }) => {
  const outcomes = [];
  for (const prefetch of [0, 8]) {
    for (const socket of [silent, away, there]) {
      const client = new kazahana.Client({ socket, prefetch, timeout: socket === silent ? 300 : 60_000 });
      outcomes.push(await client.nextId().then(() => 'an ID', (error) => error.code));
      await client.close();
    }
  }
  const client = new kazahana.Client({ socket: there });
  const { pid } = await client.status();
  const lock = await granted(() => client.lock('faked', { ttl: 2000 }));
  process.kill(Number(pid), 'SIGSTOP'); // a daemon that hangs confirms nothing
  await new Promise((resolve) => lock.lost.addEventListener('abort', resolve));
  process.kill(Number(pid), 'SIGCONT');
  outcomes.push(lock.lost.reason.code);
  await client.close();
  return outcomes;
};
module.exports.expected = [...Array(2).fill(['TIMEOUT', 'DAEMON_UNAVAILABLE', 'an ID']).flat(), 'LOCK_LOST'];

// Asks again where the machine was so busy that the short term ended before the answer came.
async function granted(ask) {
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (error.code !== 'LOCK_EXPIRED') throw error;
    }
  }
}
