// Package systemd talks to the service manager that started the process, if one
// did: it takes over the socket that was opened in advance, tells what the
// process is doing, feeds the watchdog, and gives the journal the level of each
// log line.
//
// # The watchdog
//
// A process is killed and started anew when it has not fed the watchdog for
// WatchdogSec. A timer that feeds it proves nothing but itself. Here each part
// of the process without which nobody is served counts its turns, and the
// watchdog is fed only while the counts move. A part that may rest for want of
// work is prodded: asked to take a turn now. Whether the world around the
// process answers is no matter of the watchdog's: a provider that is down would
// not come back by a restart.
//
// Silence is counted in checks and not by the clock. A machine that stood still
// as a whole, a stopped process included, has missed checks as well as turns,
// and is not taken for one whose parts are stuck.
package systemd
