import { closeSync, writeSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { Client } from './client.js';
import { InvalidParamsError, KazahanaError } from './errors.js';

const USAGE = `Usage: kazahana [-n COUNT] [--format int|string|external] [--service NAME] [--socket PATH]

Prints IDs of the kazahana daemon of this host, one a line.

  -n, --count COUNT   how many, 1 to 65536 (default 1)
  --format FORMAT     int and string print decimal, external 11 characters
  --service NAME      the daemon's service (default: the daemon's)
  --socket PATH       the daemon's socket (default: KAZAHANA_SOCKET, else the usual places)
`;

/** What a shell shows for a program that SIGPIPE ended. */
const PIPE = 128 + 13;
/** How long to wait for room in a pipe that does not block. */
const ROOM_MS = 10;

/** The command. It resolves to its exit code: 0 success, 1 failure, 2 wrong usage. */
export async function main(args: string[]): Promise<number> {
  let values;
  try {
    ({ values } = parseArgs({
      args,
      options: {
        count: { type: 'string', short: 'n', default: '1' },
        format: { type: 'string', default: 'string' },
        service: { type: 'string' },
        socket: { type: 'string' },
        help: { type: 'boolean', short: 'h' },
      },
    }));
    if (!/^[1-9]\d*$/.test(values.count)) throw new Error(`-n ${values.count}: write a number, 1 to 65536`);
    if (!['int', 'string', 'external'].includes(values.format)) throw new Error(`--format ${values.format}: there are int, string, external`);
  } catch (error) {
    process.stderr.write(`kazahana: ${(error as Error).message}\n\n${USAGE}`);
    return 2;
  }
  if (values.help) return print(USAGE);
  try {
    const client = new Client({ socket: values.socket, service: values.service });
    const ids = await client.nextIds(Number(values.count), { format: values.format === 'external' ? 'external' : 'string' });
    await client.close();
    return await print(ids.join('\n') + '\n');
  } catch (error) {
    if (!(error instanceof KazahanaError)) throw error;
    process.stderr.write(`kazahana: ${error.message}\n`);
    return error instanceof InvalidParamsError ? 2 : 1;
  }
}

/** Writes all of the text to stdout, and resolves to the exit code. process.stdout loses what a file system that is almost full did not take. */
async function print(text: string): Promise<number> {
  try {
    for (let rest = Buffer.from(text); rest.length > 0; ) {
      try {
        rest = rest.subarray(writeSync(1, rest));
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') throw error;
        await pause(ROOM_MS);
      }
    }
    closeSync(1); // some file systems report a failure only now
    return 0;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === 'EPIPE') return PIPE; // the reader has had enough
    process.stderr.write(`kazahana: stdout: ${message}: the output is incomplete\n`);
    return 1;
  }
}
