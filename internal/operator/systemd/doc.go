// Package systemd talks to the service manager that started the process, if there
// is one: it takes over the socket that the manager opened, reports the state of the
// process, feeds the watchdog, and gives the journal the level of each log line.
//
// # The watchdog
//
// The manager restarts a process that has not fed the watchdog for WatchdogSec. A
// timer alone would feed it for ever. So each essential loop of the process counts
// its turns, and the watchdog is fed only while the counts grow. A loop that may be
// idle is prodded: asked to take a turn now. The watchdog does not depend on the
// provider or the network: a restart would not bring them back.
//
// Silence is counted in checks and not by the clock. If the whole machine stood
// still, or the process was stopped, checks were missed as well as turns, and no
// loop counts as stuck.
package systemd
