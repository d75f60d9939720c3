// Package postgres is the provider on a PostgreSQL server, for all hosts that use it.
//
// Each operation is a transaction that runs the rules of package pool under an advisory
// lock, one for each pool. The rules read single rows, and write them with the commit.
// The clock is the server's. A server that may have forgotten grants is fenced: see
// package postgresconn.
//
// A grant is answered when its commit is. A repeated request is counted, so that its
// answer waits for a standby too where the first one's commit was not confirmed.
package postgres
