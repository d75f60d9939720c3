package redisconn

import "fmt"

// Format is the version of the keys' layout that this program writes and knows. The record of
// an area has it.
const Format = "1"

// FormatError is the error about a record of another format.
func FormatError(record, found string) error {
	return fmt.Errorf("%s was written by a newer kazahanad (format %s, this one knows up to %s): "+
		"upgrade this one, or go back as docs/compatibility.md says", record, found, Format)
}
