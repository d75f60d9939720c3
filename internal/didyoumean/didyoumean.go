// Package didyoumean finds the name that a misspelt one was probably meant to be.
package didyoumean

import (
	"strings"

	"github.com/agnivade/levenshtein"
)

// Name returns the known name that was probably meant, or "": one at a small
// edit distance, or a name that contains the text or is part of it.
func Name(name string, known []string) string {
	const longest = 64 // no key is that long, and the distance costs len * len
	if len(name) > longest {
		return ""
	}
	name = strings.ToLower(strings.ReplaceAll(name, "-", "_"))
	best, least := "", max(2, len(name)/3)+1
	for _, k := range known {
		if d := levenshtein.ComputeDistance(name, k); d < least {
			best, least = k, d
		}
	}
	for _, k := range known {
		if best == "" && min(len(k), len(name)) >= 4 && (strings.Contains(k, name) || strings.Contains(name, k)) {
			best = k
		}
	}
	return best
}
