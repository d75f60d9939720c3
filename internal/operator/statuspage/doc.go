// Package statuspage has the status pages of the daemon and of the lease server.
// Beside the state of the process, a page shows its counters, its latest warnings,
// and its rates in the last minutes.
//
// # A page is one answer
//
// Style and script are part of the page. So it works on a host without internet
// access, and its content security policy allows just this script, this style, and
// requests to its own server. The script is written as modules in assets/, which are
// joined when the program starts.
//
// # What a page may show
//
// A page shows nothing that a log line or a metric would not; neither has secrets.
// Text from outside, such as host names, enters a page as text only.
package statuspage
