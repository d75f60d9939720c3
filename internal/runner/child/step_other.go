//go:build !linux

package child

// firstStep: only systemd names processes in the environment.
func firstStep(path string, argv, _ []string) (string, []string) { return path, argv }

// TakeFirstStep is for Linux only.
func TakeFirstStep([]string) int { return 2 }
