// Package kazahana asks the kazahana daemon of this host for IDs: 64 bits,
// unique, sortable by their time. It also takes locks and the values of
// sequences. Package placement, below this one, places actors on hosts.
//
//	client, err := kazahana.New()
//	if err != nil { ... }
//	defer client.Close()
//	id, err := client.NextID(ctx)
//
// # Connections
//
// A Client connects at its first call. A call takes an idle connection, or opens another, and
// puts it back; so there are as many connections as calls at the same time, and 64 of them are
// kept. When a connection is lost, or the daemon answers that it is stopping, the Client
// connects again and repeats the call, for as long as the context and the timeout allow. That
// is harmless: an ID in a lost answer leaves a gap, and a sequence recognises a repeated
// request by its request ID. So a restart of the daemon costs callers time, but no errors. A
// Client that has never reached a daemon gives up after a second. WithSingleAttempt switches
// all of this off.
//
// # Order
//
// An ID is greater than every ID that any process of this host received before the call.
// WithPrefetch trades this for speed: an ID may then be older than the call, by the
// maximal age at most, and is greater than the earlier IDs of this Client only.
//
// # Errors
//
// Errors have a Code, the same in all languages, for errors.Is. Errors with further facts
// have types of their own, for errors.As. See Code.
package kazahana
