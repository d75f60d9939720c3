package child

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// systemd says in these variables which process it means, as a PID.
var pidVariables = []string{"LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"}

// ownExecutable is the file of this process, also after it was replaced or deleted.
const ownExecutable = "/proc/self/exe"

// firstStep is what CMD's process executes first. If a variable names this process, it has
// to name CMD's, and only that process knows its PID before CMD runs. So it executes
// TakeFirstStep, which becomes CMD.
func firstStep(path string, argv, env []string) (_ string, with []string) {
	pid := os.Getpid()
	named := slices.ContainsFunc(env, func(entry string) bool { return namesProcess(entry, pid) })
	if !named || unix.Access(ownExecutable, unix.X_OK) != nil {
		return path, argv
	}
	return ownExecutable, append([]string{StepName, strconv.Itoa(pid), path}, argv...)
}

func namesProcess(entry string, pid int) bool {
	name, value, _ := strings.Cut(entry, "=")
	return slices.Contains(pidVariables, name) && value == strconv.Itoa(pid)
}

// TakeFirstStep replaces the PID of kazahanad in the environment, and executes CMD. args are
// this PID, CMD's path and its arguments. It returns an exit code if it fails.
func TakeFirstStep(args []string) int {
	if len(args) < 3 {
		return 2
	}
	var env []string
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		switch {
		case name == "LISTEN_PIDFDID": // names kazahanad in another way; without it LISTEN_PID counts alone
		case value == args[0] && slices.Contains(pidVariables, name):
			env = append(env, name+"="+strconv.Itoa(os.Getpid()))
		default:
			env = append(env, entry)
		}
	}
	fmt.Fprintf(os.Stderr, "kazahanad: error: cannot run %s: %v\n", args[1], syscall.Exec(args[1], args[2:], env))
	return 1
}
