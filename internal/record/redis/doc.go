// Package redis keeps records on a Redis server, for all hosts that use it. A change is
// answered when the server has carried it out and min_replicas have confirmed it.
//
// # One round trip
//
// A rule runs in this process, on what the process remembers of the records or on their
// absence; see package turns. One Lua script then compares everything that the rule was
// shown and carries out its writes, or returns the present state, on which the rule runs
// again. The script knows no rules. It compares whether a term has ended by the server's
// own clock, and that clock stands still where it steps back, but in an area that follows it.
//
// That area is the one of leases. What frees there is sent once and waits for no replica, and
// a fence lasts at least for the longest lease that the process grants.
//
// # A server that may forget
//
// Redis acknowledges a write before it is on a disk or a replica. The store's record names
// the process (run ID) and the history of its data (replication ID) that the latest life
// belongs to. The text of the script contains both: another process does not know the
// script, and the same one compares its replication ID each time, since it may have been
// a replica in between. Where either has changed, or the store's record is missing, a new
// life begins (settle): View.Fence says what may be missing, until Init. An operator begins one by hand.
//
// # Keys, after the prefix and @AREA
//
//	/KEY      STRING  a record, see encode
//	          STRING  the area's record, see state
//	:list     ZSET    the keys of the records that lists show, in the order of their bytes
//	:due      ZSET    keys of records that Redis itself must not delete, by when they
//	                  may be deleted, or some time after that
//	:touch    STRING  written where nothing changes and replicas must confirm that
//
// Channels are called @AREA:tell:N. A message is the key of a record.
//
// Redis itself deletes a record of which nothing is left to do then: a record without a mark and
// watchers, and in no list.
package redis
