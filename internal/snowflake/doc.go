// Package snowflake defines IDs: how their bits are split into timestamp, machine ID and
// sequence, which low bits a lease covers, which IDs an interval of time can have, and
// how IDs are spelled. It reads no clock and does no I/O.
package snowflake
