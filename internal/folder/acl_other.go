//go:build !linux

package folder

// hasACL reports none: other systems keep their lists elsewhere.
func hasACL(string) bool { return false }
