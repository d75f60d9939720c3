package proof

// rule is one that can be broken.
type rule int

const (
	noRule rule = iota
	embeddedTimestampChecked
	sealedBeforeRelease
	recordKept
	endBoundAtRelease
	releaseCoversLastEmbedded
	markExclusive
	releasedNeverAdopted
	releasedNeverCached
	foreignStateNotAdopted
	overlapByRange
	quarantineKept
	allRules
)

// ruleTexts says for each rule what it demands, and what its breach does.
var ruleTexts = [allRules]struct{ rule, breach string }{
	noRule:                    {"(every rule kept)", "-"},
	embeddedTimestampChecked:  {"the embedded timestamp is checked against the lease", "a clock read before is checked instead"},
	sealedBeforeRelease:       {"the generator is sealed before the release is sent", "it goes on for a while"},
	recordKept:                {"a slot's record is kept", "a release deletes it"},
	endBoundAtRelease:         {"a release sets end = max(timestamp+1, created)", "it sets end = the provider's time"},
	releaseCoversLastEmbedded: {"a release's timestamp is at least the last embedded one", "it is the clock's"},
	markExclusive:             {"the mark is exclusive", "a restart begins at the last embedded millisecond"},
	releasedNeverAdopted:      {"a released lease is never adopted", "it stays in the durable state"},
	releasedNeverCached:       {"a released lease is never the cached one", "it becomes the cached one"},
	foreignStateNotAdopted:    {"another machine's state is not adopted", "a cloned disk is"},
	overlapByRange:            {"slots are compared as ranges", "machine IDs are compared"},
	quarantineKept:            {"a slot is reserved until expired + quarantine", "until expired, while leases promise more"},
}

func (r rule) String() string { return ruleTexts[r].rule }
