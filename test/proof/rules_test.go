package proof

// rule is a rule that can be switched off.
type rule int

const (
	noRule rule = iota

	// What an ID embeds, and what a provider grants.
	embeddedTimestampChecked
	recordKept
	endBoundAtRelease
	overlapByRange
	quarantineKept
	restoredStoreFenced

	// How a lease goes back.
	sealedBeforeSending
	removedBeforeSending
	releaseCoversLastEmbedded
	releasedNeverCached
	unknownIsGone
	sentOnce
	answersEchoed

	// What survives a process, and who takes it over.
	markExclusive
	markInLiveState
	adoptedFromLiveStateOnly
	identityLocked
	folderIdentity
	marksIdentity
	bitsCompared
	bootAndMachine

	// How long a client's lease lasts.
	restoredExtendsNothing

	allRules
)

// ruleTexts has for each rule its demand, and the effect of its breach. The table of
// docs/uniqueness.md has the same words.
var ruleTexts = [allRules]struct{ rule, breach string }{
	noRule: {"(every rule kept)", "-"},

	embeddedTimestampChecked: {"the embedded timestamp is checked against the lease", "a clock read before is checked instead"},
	recordKept:               {"a slot's record is kept", "a release deletes it"},
	endBoundAtRelease:        {"a release sets end = max(timestamp+1, created)", "it sets end = the provider's time"},
	overlapByRange:           {"slots are compared as ranges", "machine IDs are compared"},
	quarantineKept:           {"a slot is reserved until expired + quarantine", "until expired, while leases promise more"},
	restoredStoreFenced:      {"a restored store is fenced", "it grants at once"},

	sealedBeforeSending:       {"the generator is sealed before the release is sent", "it goes on for a while"},
	removedBeforeSending:      {"a lease leaves the live state before its release is sent", "it leaves when the answer is there"},
	releaseCoversLastEmbedded: {"a release's timestamp is at least the last embedded one", "it is the clock's"},
	releasedNeverCached:       {"a released lease is never the cached one", "it becomes the cached one"},
	unknownIsGone:             {"a lease whose release was not answered is gone", "it is put back"},
	sentOnce:                  {"a release is sent once", "one that was refused or not sent is sent again later"},
	answersEchoed:             {"an answer counts for its own request only", "leases in the answer to another request are used"},

	markExclusive:            {"the mark is exclusive", "a restart begins at the last embedded millisecond"},
	markInLiveState:          {"the mark is in the live state", "it is in the state file, a while behind"},
	adoptedFromLiveStateOnly: {"leases are adopted from the live state only", "the state directory has them too"},
	identityLocked:           {"one process uses an identity", "its folder has no lock"},
	folderIdentity:           {"leases belong to one folder", "to whatever folder they are in"},
	marksIdentity:            {"leases belong to one marks file", "to whatever marks are there"},
	bitsCompared:             {"an older leases file is refused", "it is adopted"},
	bootAndMachine:           {"leases are adopted in the same boot of the same machine", "anywhere, at any time"},

	restoredExtendsNothing: {"a restored store extends nothing while it is fenced", "it extends at once"},
}

func (r rule) String() string { return ruleTexts[r].rule }
