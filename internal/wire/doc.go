// Package wire speaks MessagePack-RPC, both sides, over io.Reader and io.Writer.
//
// Messages follow each other with no framing:
//
//	request       [0, msgid, method, params]
//	response      [1, msgid, error, result]
//	notification  [2, method, params]
//
// The package knows the form of a message, and nothing of its meaning: no sockets, no
// leases, no IDs. Its server side reads no clock and starts no goroutine.
//
// # Layers
//
// Each layer is usable without the one above it, so that an event loop can
// take the place of a goroutine per connection and keep the codec:
//
//	Splitter    where a message ends: a pure state machine over bytes
//	Inbox       a growing and shrinking buffer around a Splitter
//	Request     one delimited message: its header, and a cursor over its params
//	Outbox      the replies, encoded into one buffer
//	ServerConn  Inbox, Outbox, and blocking reads and writes
//	Client      concurrent calls over one stream
//
// # Accepted messages
//
// For the sake of real clients: msgid 0 is valid; a method and a name may come
// as str or bin; a float that is a whole number is accepted wherever an
// integer is due, the message type and the msgid included.
//
// Bytes that do not begin a MessagePack array, the byte 0xc1, a message that
// is too large or too deep, and an array that is not a message (wrong length,
// unknown type, a msgid that is no integer, a method that is no string) give a
// *ParseError. Nothing after such a message can be trusted to be a message, so
// the error stays: the caller sends one error response with msgid 0
// ([ServerConn.Refuse]) and closes. Params of the wrong shape are no parse
// error: the message is delimited, and the request is answered with
// INVALID_PARAMS.
//
// # Limits and invariants
//
//   - A length is held against the limit before anything is allocated for it.
//     Every value that is still due counts as one byte, so an array of four
//     billion elements is refused with its header.
//   - A buffer grows with the bytes that have come, never with the bytes that
//     were announced, and never beyond the largest message.
//   - Looking for the end of a message costs O(its length) in total, however
//     the reads cut it.
//   - Nesting is bounded by [MaxDepth], so is every recursion over a message.
//   - What a Request hands out are slices of the connection's buffer: they
//     live until the next Read.
//   - From reading a NextID-like request to its reply nothing is allocated.
//   - A reply holds at most [HighWater] bytes of buffer before it goes out,
//     except a single string or map that is larger than that by itself.
//   - An idle connection holds two buffers of 256 bytes; larger ones go back
//     once they are not needed.
//
// # Errors on the wire
//
// An error is [kind, text], see [Error] for the text's form. The client turns
// it into an *Error again.
package wire
