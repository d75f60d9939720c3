package testkit

import "testing"

// What a program says to people is no part of its output, wherever that ends.
func TestOutput(t *testing.T) {
	script := "echo making it; printf 'done\033[m' >&2; echo /made; printf '\033[m' >&2"
	if got := Output(t, "sh", "-c", script); got != "/made" {
		t.Errorf("the last line is %q", got)
	}
}
