package ring

import (
	"fmt"
	"os"
	"testing"
)

// sample is the variable that chooses which of the long parts of a test a run does. With
// 16/1203, run number 1203 does one part in 16. Sixteen runs in a row do all parts, each once.
const sample = "KZTEST_SAMPLE"

// Sampled reports whether this run does the part of a test with this number. Without the
// variable KZTEST_SAMPLE it does all.
func Sampled(t testing.TB, number int) bool {
	t.Helper()
	text := os.Getenv(sample)
	if text == "" {
		return true
	}
	var of, run int
	if _, err := fmt.Sscanf(text, "%d/%d", &of, &run); err != nil || of < 1 || run < 0 {
		t.Fatalf("%s is %q: want how many parts one is chosen from, and the number of the run, as 16/1203", sample, text)
	}
	return (number+run)%of == 0
}
