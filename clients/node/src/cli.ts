import { parseArgs } from 'node:util';
import { Client } from './client.js';
import { KazahanaError } from './errors.js';

const USAGE = `Usage: kazahana [-n COUNT] [--format int|string|external] [--service NAME] [--socket PATH]

Prints IDs of the kazahana daemon of this host, one a line.

  -n, --count COUNT   how many, 1 to 65536 (default 1)
  --format FORMAT     int and string print decimal, external 11 characters
  --service NAME      the daemon's service (default: the daemon's)
  --socket PATH       the daemon's socket (default: KAZAHANA_SOCKET, else the usual places)
`;

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
  if (values.help) {
    process.stdout.write(USAGE);
    return 0;
  }
  try {
    const client = new Client({ socket: values.socket, service: values.service });
    const ids = await client.nextIds(Number(values.count), { format: values.format === 'external' ? 'external' : 'string' });
    await client.close();
    process.stdout.write(ids.join('\n') + '\n');
    return 0;
  } catch (error) {
    if (!(error instanceof KazahanaError)) throw error;
    process.stderr.write(`kazahana: ${error.message}\n`);
    return 1;
  }
}
