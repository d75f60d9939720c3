//go:build !linux

package main

// firstStep: only systemd names processes in the environment.
func firstStep(path string, argv, _ []string) (string, []string) { return path, argv }

func takeFirstStep([]string) int { return exitUsage }
