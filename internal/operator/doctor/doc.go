// Package doctor looks at an installation and says what is wrong with it.
//
// A look has two halves. Probes collect facts from the system, the daemon and the
// provider: they are thin, and change nothing anywhere. Judges make findings of
// facts: they are pure functions. What a finding is called, how bad it is and what
// to do about it is fixed in the catalogue, which docs/doctor.md shows.
//
// Nothing here holds or prints a secret: providers are named as in
// provider.Info.URL, and errors come from packages that keep passwords out of
// theirs.
package doctor
