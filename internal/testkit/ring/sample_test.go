package ring

import (
	"fmt"
	"testing"
)

// Without the variable all parts are done, and with it as many runs as there are parts to
// choose from do each once.
func TestSampled(t *testing.T) {
	const parts, of = 100, 16
	t.Setenv(sample, "")
	for i := range parts {
		if !Sampled(t, i) {
			t.Errorf("part %d is left out", i)
		}
	}
	var times [parts]int
	for run := range of {
		t.Setenv(sample, fmt.Sprintf("%d/%d", of, 1000+run))
		for i := range parts {
			if Sampled(t, i) {
				times[i]++
			}
		}
	}
	for i, n := range times {
		if n != 1 {
			t.Errorf("%d runs do part %d %d times", of, i, n)
		}
	}
}
