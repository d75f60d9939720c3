// Package report keeps what the rounds measured, holds it against the targets,
// and prints both. It knows nothing of servers and processes.
package report
