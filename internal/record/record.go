package record

import (
	"context"
	"errors"
	"fmt"
)

// Area is an instance of a record store, beside others in the same place. See "Areas" on the
// package's page.
type Area struct {
	// Name is part of the names of all that the area keeps: lower-case letters, and other ones
	// than those of the other areas in the place.
	Name string
	// MaxGrantMS is the longest GrantMS of a write; 0: MaxTermMS. All who open the area should
	// have the same, or a process with longer grants makes a longer fence.
	MaxGrantMS int64
	// FollowsClock: the store's time is what its clock shows, also where that has stepped back.
	// The rules of the area rest on the order of the times in their values, and on nothing else. See
	// "The present time" on the package's page.
	FollowsClock bool
}

// Record is a value and the store's word about its term.
type Record struct {
	Value []byte // never nil
	// Over: the record had a term, which has ended.
	Over bool
	// EndMS is when the term ends or has ended: the moment that Change returned, and
	// the term. 0: the record has none. It is for people.
	EndMS int64
	// LeftMS is how long the term lasts from the moment of the view, and never more
	// than that: a holder may rely on it. An error may rest on an estimate. During the
	// term it is at least 1.
	LeftMS int64
}

// Ask names the records that a rule is shown.
type Ask struct {
	Keys []string
	// Fresh: the rule compares times in its values with View.NowMS. Each run is shown a time
	// that was read during the call, and the commit is not before the last one's. See "The
	// present time" on the package's page.
	Fresh bool
}

// View is what a rule is shown: one state of the store.
type View struct {
	Records map[string]Record // of the keys of the Ask; an absent record is missing
	// NowMS is the store's clock in Unix ms: without Ask.Fresh an estimate, for people. A
	// store that may be fenced shows no time that has not come, and none from before its
	// present life. etcd has no clock: see "The present time" on the package's page.
	NowMS int64
	Floor int64
	// Life names the store's present life. Another one begins where the store may
	// have forgotten something, and where it was replaced by another.
	Life  string
	Fence Fence
	// Keys is how many records the store has, those included that have ended and are not
	// deleted yet, and Size how many bytes they take; 0 where the store does not say.
	Keys, Size int64
	// Full: the disk that the store is on has room for changes of what exists, and for no new
	// records.
	Full bool
}

// Fence says whether the store may have forgotten something. The zero value is a
// store that has not.
type Fence struct {
	// Doubt: something may be missing that an earlier life knew, and no operator has
	// said otherwise. It does not end by itself.
	Doubt bool
	// FromMS is when the fence began, and UntilMS when everything has ended that may
	// be missing and that had an end, in Unix ms by View.NowMS.
	FromMS, UntilMS int64
	Reason          string // for people
	// Blank: the store had no record of itself. It is new, or has lost everything.
	Blank bool
}

// Write is what becomes of one record.
type Write struct {
	Key   string // one of the keys of the Ask
	Value []byte // nil deletes
	// TermMS is how long the record's term lasts, from the commit; 0: it has none.
	TermMS int64
	// KeepMS is how long the record stays after its term, or after the commit where
	// it has none. With neither it stays until it is deleted.
	KeepMS int64
	// Mark is the floor's new height when the record is deleted.
	Mark int64
	// GrantMS is how long, from the commit, a holder relies on the record; 0: not at all.
	// It ends nothing and keeps nothing. A store that may have forgotten such a write has
	// a Fence that lasts at least as long. The area says how long it may be.
	GrantMS int64
	// Frees: the write gives nothing to anyone, and only ends a grant. A store need not look
	// whether it may have forgotten something.
	Frees bool
	// Tell gives watchers a token.
	Tell bool
	// Unlisted lets lists leave the record out, which saves room in some stores.
	Unlisted bool
}

// Size is about the room that the record takes in a store: its key is in an index too, and there
// are pages that are not full.
func (w Write) Size() int64 { return int64(256 + 2*len(w.Key) + len(w.Value)) }

// Rule decides what becomes of the records that the view shows. It is pure: it may
// run several times, under the store's lock, and after a Change that failed. See "Changes" on the package's page.
type Rule func(View) ([]Write, error)

// Head is a record in a list. Its Value may be cut to MaxHead bytes, and its LeftMS be
// an estimate.
type Head struct {
	Key string
	Record
}

// Store keeps records. Implementations are safe for concurrent use and return soon
// after ctx is done; where it is cancelled before its deadline, they may wait for a server that was
// asked, for seconds. Package recordtest holds them to the contract on the package's page.
type Store interface {
	// Change has the rule decide on the records that the ask names, and returns when its writes
	// are as durable as the store ever makes them. atMS is the moment of the commit,
	// in Unix ms. Errors: the rule's own; ErrInvalid; ErrBusy; ErrCrowded; ErrOutrun; ErrUnconfirmed;
	// ErrTerm; anything else is an unknown outcome.
	Change(ctx context.Context, ask Ask, rule Rule) (atMS int64, err error)

	// Read returns the records that the ask names, as of one moment during the call.
	Read(ctx context.Context, ask Ask) (View, error)

	// List returns the records with the prefix and a key after the key after, in the order of their
	// keys, limit of them at most; records that were written with Unlisted may be missing. A page
	// is of one moment during the call. Pages of different moments may miss what changes meanwhile,
	// and nothing else.
	List(ctx context.Context, prefix, after string, limit int) ([]Head, error)

	// Watch gives a token after each write with Tell, and each deletion of a record that was last
	// written so, where the key has the prefix; one token may stand for several of them, and for
	// none. Where terms end without a client's doing, it tells of that too. A prefix that does not
	// end in a slash may be taken for the key of one record. It is in effect when it returns. The
	// channel is closed when ctx is done, and when the store has become blind. The error is
	// errors.ErrUnsupported where the store cannot tell.
	Watch(ctx context.Context, prefix string) (<-chan struct{}, error)

	// Init says that the store is new, or that nothing is missing in it. It ends the
	// fence.
	Init(ctx context.Context) error

	// Fence says that something may be missing, since older data was put back: it begins a life
	// with a fence. A store does so by itself where it notices a loss.
	Fence(ctx context.Context) error

	// Close ends the use of the store. The connection or file below stays open.
	Close() error
}

// Settle calls try until its outcome is known: after ErrOutrun a receipt in the record tells
// whether the change was carried out. A later try that fails without an answer says
// nothing about the first one, even where its error is sure of its own outcome.
func Settle(try func() error, isAnswer func(error) bool) error {
	err := try()
	if !errors.Is(err, ErrOutrun) {
		return err
	}
	for errors.Is(err, ErrOutrun) {
		err = try()
	}
	if err == nil || isAnswer(err) || errors.Is(err, ErrUnconfirmed) {
		return err
	}
	return fmt.Errorf("%w: %v", ErrOutrun, err)
}

// The settings of a FullError: the configuration keys of the limits.
const (
	SettingKeys = "max_keys"
	SettingDisk = "max_disk"
)

// FullError: the change would make a new record, or a large one larger, and there is no room
// for it. Nothing was changed. STORE_FULL.
type FullError struct {
	Setting string // "": the disk that the store is on is full
	Limit   int64  // keys or bytes
	Payer   string // the owner of the limit, a part of the limit of all; "": of all
}

func (e *FullError) Error() string {
	whose, part := "all", ""
	if e.Payer != "" {
		whose, part = e.Payer, ", three quarters of the limit of all"
	}
	switch e.Setting {
	case "":
		return "the disk of the store is full: there are no new keys until it has space again"
	case SettingKeys:
		return fmt.Sprintf("%s: %s may have %d keys%s, and no more: let keys end, or raise %s", e.Setting, whose, e.Limit, part, e.Setting)
	}
	return fmt.Sprintf("%s: the keys of %s may take %d bytes%s, and no more: let keys end, or raise %s", e.Setting, whose, e.Limit, part, e.Setting)
}

// StrayError: requests do not reach a store on a lease server, because something in between changes
// them or answers by itself, or because the server does not accept the credential or has no such
// store. To ask again is of no use until an operator mends that.
type StrayError struct {
	Err error
	// Unsure: the store may have carried the request out. Else nothing was changed.
	Unsure bool
}

func (e *StrayError) Error() string { return e.Err.Error() }
func (e *StrayError) Unwrap() error { return e.Err }

// Errors without fields. Callers decide with errors.Is.
var (
	// ErrInvalid: the call breaks a limit or a rule of the contract. Nothing was
	// changed.
	ErrInvalid = errors.New("invalid use of the record store")
	// ErrBusy: others changed the same records at each of many tries. Nothing was
	// changed.
	ErrBusy = errors.New("others change the same records all the time")
	// ErrCrowded: the store has more calls than it can carry out in time. Nothing was
	// changed.
	ErrCrowded = errors.New("too many calls wait for the store")
	// ErrOutrun: the answer of a commit was lost, and the store cannot find out what became of it.
	ErrOutrun = errors.New("the answer of a commit was lost: whether it was carried out is unknown")
	// ErrUnconfirmed: the change was carried out, and too few replicas confirmed it in
	// time. It lasts, unless one of those takes over.
	ErrUnconfirmed = errors.New("too few replicas confirmed the change")
	// ErrTerm is part of an error of a store that failed where it prepared a record's
	// term, before anything else. Nothing was changed.
	ErrTerm = errors.New("the term was not set")
)
