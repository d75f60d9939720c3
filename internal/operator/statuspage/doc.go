// Package statuspage is what operators look at in a browser: one page of the
// daemon, one of the lease server, and what both of them show beside the state
// of their process: its counters, its latest warnings, and how fast it went in
// the last minutes.
//
// # A page is one answer
//
// Style and script are in the page, which needs nothing from elsewhere: it works
// on a host without a way out, and its content security policy allows just that
// script, that style, and questions to the server it came from. The script is
// written as modules in assets/, and joined when the program starts.
//
// # What a page may show
//
// Nothing that a log line or a metric would not: there are no secrets in either.
// Text from elsewhere, as hosts' names are, enters a page as text only.
package statuspage
