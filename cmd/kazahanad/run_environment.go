package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// handedOn are the variables of kazahana that CMD inherits: they locate the daemon and
// its configuration file, or an outer run or lock has set them. All others configure a
// daemon, and may hold a password.
var handedOn = []string{
	"KAZAHANA_SOCKET", "KAZAHANA_CONFIG", machineIDVariable, fencingTokenVariable, lockKeyVariable, leaseIDVariable,
}

// environmentWith returns CMD's environment: this process's, without the variables
// that configure kazahana, and with the given ones. systemd says in WATCHDOG_PID which process it
// watches; without it, that is any process that has WATCHDOG_USEC.
func (s *system) environmentWith(variables map[string]string) []string {
	env := slices.DeleteFunc(slices.Clone(s.env), func(entry string) bool {
		name, value, _ := strings.Cut(entry, "=")
		_, replaced := variables[name]
		replaced = replaced || name == "WATCHDOG_PID" && value == strconv.Itoa(os.Getpid())
		return replaced || strings.HasPrefix(name, "KAZAHANA_") && !slices.Contains(handedOn, name)
	})
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		env = append(env, name+"="+variables[name])
	}
	return env
}

// commandFor is CMD and its arguments with the machine ID in place.
func (c *runCmd) commandFor(machineID int64) []string {
	argv := slices.Clone(c.Command)
	for i := range argv[1:] {
		argv[i+1] = c.withMachineID(argv[i+1], machineID)
	}
	return argv
}

func (c *runCmd) withMachineID(text string, machineID int64) string {
	if c.Placeholder == "" {
		return text
	}
	return strings.ReplaceAll(text, c.Placeholder, strconv.FormatInt(machineID, 10))
}

// variables returns the variables set for CMD: KAZAHANA_MACHINE_ID and those of --env.
func (c *runCmd) variables(machineID int64) (map[string]string, error) {
	number := strconv.FormatInt(machineID, 10)
	all := map[string]string{machineIDVariable: number}
	for _, entry := range c.Env {
		name, text, valued := strings.Cut(entry, "=")
		if valued {
			text = c.withMachineID(text, machineID)
		} else {
			text = number
		}
		if name == "" || strings.ContainsRune(entry, 0) || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return nil, usageError{fmt.Errorf("--env %q: write NAME, or NAME=TEXT, for example --env WORKER_ID or --env 'WORKER=w-{}'", entry)}
		}
		if _, twice := all[name]; twice {
			return nil, usageError{fmt.Errorf("--env %s: the variable is set already", name)}
		}
		all[name] = text
	}
	return all, nil
}
