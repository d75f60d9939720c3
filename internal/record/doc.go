// Package record is the contract of a record store: named values that change by
// pure rules. Locks, sequences and activation records state their rules once, over
// records, and every backend runs the same rules.
//
// # Changes
//
// Store.Change shows a Rule the records that an Ask names, and carries
// out the writes that the rule decides on, all of them or none. A change takes
// effect as if it ran alone: the view that the rule was shown is still true at the
// commit. That includes whether a record's term had ended, and which records were absent.
// A rule may therefore run several times, and under the store's lock: it does no I/O,
// keeps no state between its runs, and does not change its view.
//
// The runs of one call come one after the other. Where Change returns no error, or
// ErrUnconfirmed, the store has carried out the writes of the last run, and no run comes later: a
// caller may take its answer from that run. After any other error a run may still be under way or
// begin, and after an error that leaves the outcome open its writes may be carried out. So a rule
// that leaves something behind for its caller does so in one step, and what it leaves counts only
// where Change has returned.
//
// A rule that returns an error, or no writes, changes nothing. Change then returns
// the rule's error as it is, and the rule has seen the store as it was at a moment
// during the call.
//
// # Terms
//
// A record's term belongs to the store. It lasts for Write.TermMS from the commit,
// by the store's own judgement, and Record.Over says that it has ended. No clock of
// a caller takes part. A store may end a term late, by a fifth of it and some
// seconds at most, and never early: a clock that steps back makes terms longer.
// View.NowMS, Record.EndMS and the time that Change returns may be a clock of the caller's
// host. They decide about no term: what a caller may rely on is Record.LeftMS. A rule may
// use View.NowMS where a wrong clock does no harm, as locks do to forget old requests.
//
// A write replaces the term of the record before: without TermMS, the record has
// none.
//
// # Areas
//
// An Area is an instance of a store, and several may be in one place: one Redis server, one
// etcd cluster, one PostgreSQL database. In memory each instance is an area of its own, and on
// SQLite each file. Records, lists, tokens of watches, the floor, the life and the fence belong
// to an area, and Init ends the fence of one. So a grant in one area holds back nothing in
// another one.
//
// A fence lasts at least as long as the longest GrantMS that the area knows of, and knows it
// before it is granted. Where the area does not know how long its grants last, the fence lasts
// for Area.MaxGrantMS, and so no write may have a longer GrantMS. A term that grants nothing to
// anyone may be longer: nothing is at risk when it is forgotten.
//
// # The present time
//
// A rule may keep times in its values and compare them with View.NowMS, if it asks with
// Ask.Fresh. Every run is then shown a time that was read after the call began, and the
// moment of the commit, by the same clock, is not before the time that the last run was
// shown. So a time that the rule found to have ended has ended at the commit. Read always
// shows such a time.
//
// PostgreSQL and Redis use the server's clock, and each first run costs a round trip more; a
// SQLite file uses the clock of the process that has the file's lock, and memory the
// process's. It does not go back from one commit to the next; on Redis it may, by a second.
// etcd has no clock: each run reads the clock of the caller's host, and two hosts may differ
// by any amount. There the safety of a rule may rest on the order of the times in its
// values, and on nothing else. etcd itself measures that a fence lasts long enough.
//
// In an area with FollowsClock the store holds no time back. View.NowMS of a rule that asks with
// Ask.Fresh, and of Read, is what the clock shows during the call, also where an earlier commit
// has a later time; and a commit may have an earlier moment than the one before it. Within a
// call nothing changes: its commit is not before the time that its last run was shown, and
// where the clock steps back between the two, the rule runs again. A fence does not follow the
// clock back: it is counted from the latest moment that any commit had, as far as the
// store knows it, since a grant of that moment ends that much later. Rules of such an area
// write no TermMS, and KeepMS may be counted by any time that the clock has shown.
//
// # Deletions and the floor
//
// A write with a nil Value deletes. A record that was written with a TermMS or a
// KeepMS may be deleted by the store itself, once both have passed. Without them it
// stays until a rule deletes it.
//
// The floor is a number that only rises: when a record is deleted, to at least its
// Mark; and when a life begins in which something may be missing, to at least the time
// in microseconds. So a number that must never come twice, such as a lock's token, survives
// its record: a rule that finds no record, or one from another life, continues above
// View.Floor. A change that relies on the absence of a record relies on the floor too.
//
// # Unknown outcomes
//
// An error that is neither the rule's nor ErrInvalid leaves open whether the change
// was carried out, unless it wraps ErrBusy, ErrCrowded or ErrTerm. Where the answer of a commit was
// lost on the way, and the store is there, the error is ErrOutrun, unless the store recognises its
// own write, as etcd does. A caller that must know keeps receipts in its values and asks again.
//
// Each call has a version of its own, drawn at random. Were versions derived from a
// request, a request that is sent again could write the same version with another
// value, and a decision on the value before would pass the comparison.
package record
