// Package leaseserver is the HTTP front of any provider: it grants leases over the
// network on the terms that its operator configured. It also serves locks, sequences and
// the activation records of placement from their stores. api/openapi.yaml describes all
// answers; the tests check every answer against it.
//
// # What keeps tenants apart
//
// A request acts for the tenant and the owner of its credential, which nothing in the
// request can change.
//
//   - A tenant has services of its own: service S of tenant T is T/S in the services
//     map, and a service that is not in the map is refused. The tenant default uses
//     names without a slash; names that are not configured have the terms of the provider
//     URL.
//   - A request ID reaches the provider as a digest of tenant, owner and ID, so that a
//     client that guesses another's request ID does not get its lease. All instances in
//     front of one store compute the same digest, so that a repetition may reach another
//     instance.
//   - Lists hold only records of the caller's tenant, except with the scope admin.
//
// A lease itself is guarded by its secret.
//
// Locks, sequences and activation records belong to their tenant. Locks of placement are
// in an area of their own, for credentials with that scope. A lock's owner is the
// credential, or begins with it and a slash; request IDs reach the stores with a mark of
// the credential.
//
// # Waiting for locks
//
// A request that waits for a lock stands in the queue of lock.Host and does not count
// among the requests under way. Waiters have a limit of their own, which leaves
// connections for others. The wait ends with the client's connection, and when the
// server stops.
//
// # Views of pools
//
// The status page, its searches and the metrics use views: a pool's records of a moment
// ago, without their meta. However many clients ask, a pool is listed once at a time,
// and a large one seldom. Requests that need the present state (GET /leases, acquires)
// ask the store.
//
// # Order of checks
//
// In-flight limit, credential, rate limit, scope, body, service; then the provider is
// called, under a deadline. A request that was refused before that was certainly not
// carried out, and its code says so. Health endpoints skip all checks.
//
// # Stopping
//
// When Serve is told to stop, /readyz fails at once and connections are closed after
// their next answer. The listener stays open for the drain delay, so that load balancers
// notice first. Then no connection is accepted, and requests under way are answered
// within the drain timeout.
package leaseserver
