// Package kazahana asks the kazahana daemon of this host for IDs: 64 bits,
// unique, sortable by their time. It also takes locks and the values of
// sequences, and places actors on hosts.
//
//	client, err := kazahana.New()
//	if err != nil { ... }
//	defer client.Close()
//	id, err := client.NextID(ctx)
//
// # Connections
//
// A Client connects with its first call, and has one connection that all
// goroutines share: their calls are pipelined. When the connection is lost, or
// the daemon says that it is stopping, the Client connects again and repeats the
// calls that were under way, for as long as the context and the timeout allow.
// That is harmless: an ID that nobody received is a gap, and a sequence knows
// the request by an ID that is sent with it. So a restart of the daemon costs a
// caller time, and no error. A Client that never reached a daemon gives up after
// a second. WithSingleAttempt has none of this.
//
// # Order
//
// An ID is greater than every ID that was returned, to whomever on this host,
// before the call for it. WithPrefetch trades this for speed: an ID is then up to
// its maximal age older than the call, and greater than those that this Client
// returned before.
//
// # Errors
//
// Errors have a Code, the same in all languages, for errors.Is; those that tell
// more are of a type of their own, for errors.As. See Code.
package kazahana
