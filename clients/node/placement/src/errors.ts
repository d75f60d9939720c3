import type { KazahanaError } from 'kazahana';
import * as internal from 'kazahana/internal';

/** Its type names the package, which the declarations then import. */
const coded: (code: string) => typeof KazahanaError = internal.coded;

/** The daemon places no actors now; `state` is `off` (not configured), `stopped`, `not_ready` or `client`. */
export class PlacementNotReadyError extends coded('PLACEMENT_NOT_READY') {
  readonly state: string | undefined = this.details['state'];
}
/** The wait is over, and the activation, or the passivation before it, is still under way. */
export class PlacementPendingError extends coded('PLACEMENT_PENDING') {}
/** No process of any host has registered for the kind. */
export class PlacementUnservedError extends coded('PLACEMENT_UNSERVED') {}
/** No process of the host could activate the identity; `cause` is the process's error. */
export class ActivationFailedError extends coded('ACTIVATION_FAILED') {}
/** The activation may not be relied upon any more. */
export class ActivationEndedError extends coded('ACTIVATION_ENDED') {}
/** No more events come, and some may be missing; `reason`: too_slow, stopping or disconnected. */
export class WatchEndedError extends coded('WATCH_ENDED') {
  readonly reason = this.details['reason'] ?? '';
}
