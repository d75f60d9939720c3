// Package doctor checks an installation and says what is wrong with it.
//
// A check has two halves. Probes collect facts from the system, the daemon and the
// provider: they are thin, and change nothing. Judges turn facts into findings: they
// are pure functions. The catalogue fixes the code, the level and the remedy of each
// finding; docs/doctor.md shows it.
//
// Nothing here holds or prints a secret: providers are named as in
// provider.Info.URL, and the errors of other packages contain no password.
package doctor
