// Package daemon answers MessagePack-RPC on a listener it is given.
//
// A Server accepts connections and dispatches requests to the services that package
// issuer has assembled. The goroutine or the thread that serves a connection answers
// requests in order. It writes when nothing more is waiting to be read, so that
// pipelined requests share a write.
//
// # Two engines
//
// A goroutine can serve a connection through everything that happens to it
// (conn.go). On Linux connections that rest are parked on the fast path, where one
// thread in an event loop serves them all (fastpath_linux.go): it answers whole
// requests and lets them wait for IDs, and gives a connection a goroutine for
// anything else, until it rests again. Other systems do without.
//
// # The way of a NextID
//
// eventloop/loop_linux.go finds which sockets can be read, and calls fastpath_linux.go for each.
// wire/plain.go recognises the request, and responder.go passes it to
// generator/generator.go. That cuts the ID from the run that its queue.go and core.go
// keep, at the time of clock/believed.go. For the first ID of a millisecond,
// generator/supply.go opens a run, snowflake/layout.go places the bits, and
// state/state.go raises the mark. wire/outbox.go encodes the answer.
//
// # Guarantees
//
//   - The request path touches the generator only: no network, no wait for the
//     keeper.
//   - Nothing a peer sends holds memory beyond the limits: messages are bounded
//     by the wire, connections and waiting requests by the configuration, a peer that
//     does not read is cut off, and a peer that is gone waits for nothing.
//   - Stopping reverses the flow: no new connections, then requests under way
//     are answered and the rest told SHUTTING_DOWN, then the generators stop,
//     then the leases go back.
package daemon
