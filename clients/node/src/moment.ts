import * as os from 'node:os';
import { steadyNow } from './system.js';

/** The resolution of os.uptime(). */
const UPTIME_STEP_MS = process.platform === 'linux' ? 10 : 1000;

/** A moment, by default now, on two clocks: only one counts the time while the machine is suspended, only the other is fine enough. */
export class Moment {
  constructor(
    private readonly steady = steadyNow(),
    private readonly uptime = os.uptime() * 1000,
  ) {}

  plus(ms: number): Moment {
    return new Moment(this.steady + ms, this.uptime + ms);
  }

  /** The milliseconds that are left until then: 0 or less once it may be over. The uptime counts where it differs by more than its resolution. */
  get left(): number {
    const [steady, uptime] = [this.steady - steadyNow(), this.uptime - os.uptime() * 1000];
    return uptime + UPTIME_STEP_MS < steady ? uptime - UPTIME_STEP_MS : steady;
  }
}

export const LONG_AGO = new Moment(-Infinity, -Infinity);
