package metrics

// Fence describes a file that may have forgotten grants, for status --json and the
// lease server's page.
type Fence struct {
	File string `json:"file"` // a URL without secrets
	// UntilMS is when grants from the file begin again, in Unix ms; 0 if they are not
	// held back.
	UntilMS int64  `json:"until_ms"`
	Reason  string `json:"reason"`
	// Sequences says that existing sequences hand out nothing until an operator
	// declares how they go on.
	Sequences bool `json:"sequences"`
}
