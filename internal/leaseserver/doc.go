// Package leaseserver is the HTTP front of any provider: it grants leases over
// the network on the terms that its operator configured. Beside them it serves
// locks, sequences and the activation records of placement from their stores. api/openapi.yaml describes all that it
// answers; the tests hold every answer to it.
//
// # What keeps tenants apart
//
// A request acts for the tenant and the owner of its credential, which nothing
// in the request can change.
//
//   - A tenant's services are its own: service S of tenant T is T/S in the services
//     map, and one that the map does not have is refused. The tenant default uses
//     names without a slash, configured or not; those that are not have the terms of
//     the provider URL.
//   - A request ID reaches the provider as a digest of tenant, owner and ID, so that
//     guessing another's request ID gives nobody its lease. Instances in front of one
//     store compute the same, and a repetition may reach another instance.
//   - Lists hold the caller's tenant's records only, short of the scope admin.
//
// A lease itself is guarded by its secret, whoever asks.
//
// Locks, sequences and activation records are their tenant's. What its daemons hold
// for placement is an area of its own in stores, for credentials with that scope. A lock's owner is the credential, or
// begins with it and a slash; request IDs reach the stores behind a mark of the
// credential.
//
// # Waiting for locks
//
// Who waits stands in the line of lock.Host, and gives its place among the
// requests under way back. Waiters have a limit of their own, which leaves
// connections for others. The wait ends with the client's connection, and when
// the server is told to stop.
//
// # Looking at pools
//
// The status page, its searches and the metrics go by views: what a pool's records
// were a moment ago, without their meta. However many look, a pool is listed once
// at a time, and a large one seldom. What must be of now (GET /leases, acquires)
// asks the store.
//
// # Order of checks
//
// In-flight limit, credential, rate limit, scope, body, service; then the provider
// is called, under a deadline. What is refused before that was certainly not done,
// and its code says so. Health endpoints stand outside all of it.
//
// # Stopping
//
// When Serve is told to stop, /readyz fails at once and connections are closed
// after their next answer; the listener stays open for the drain delay, so that
// whoever balances load hears of it first. Then no connection is accepted, and what
// is under way is answered within the drain timeout.
package leaseserver
