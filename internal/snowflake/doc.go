// Package snowflake holds what an ID is: a pure value, its split into
// timestamp, machine ID and sequence, the range of low bits that a lease
// covers, the range of IDs that an interval of time can have, and the
// spelling of IDs for the outside. It reads no clock and does no I/O.
package snowflake
