package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kazahana/kazahana/internal/didyoumean"
)

// variablePrefix begins every variable that is meant for kazahana.
const variablePrefix = "KAZAHANA_"

// foreignVariables are set by "kazahanad run" and "kazahanad lock" for their
// programs. A daemon may inherit them.
var foreignVariables = []string{"KAZAHANA_MACHINE_ID", "KAZAHANA_FENCING_TOKEN", "KAZAHANA_LOCK_KEY", "KAZAHANA_LEASE_ID"}

// Lookup reads an environment variable; os.LookupEnv is one.
type Lookup func(name string) (string, bool)

// environment is a process environment in which an empty variable is unset.
type environment struct {
	variables map[string]string
	outranked map[string]string // by key: what it would be without its flag, where another source sets it
}

func newEnvironment(environ []string) *environment {
	e := &environment{variables: map[string]string{}, outranked: map[string]string{}}
	for _, entry := range environ {
		name, text, found := strings.Cut(entry, "=")
		text = strings.TrimSpace(text)
		// If a variable is repeated, the first one counts, as for os.LookupEnv.
		if _, repeated := e.variables[name]; found && !repeated {
			e.variables[name] = text
		}
	}
	for name, text := range e.variables {
		if text == "" {
			delete(e.variables, name)
		}
	}
	return e
}

func (e *environment) lookup(name string) (string, bool) {
	text, ok := e.variables[name]
	return text, ok
}

// values returns the keys that the environment sets, in a stable order, or an error
// for a variable with the prefix that is not a key. It takes only those in only, if there
// are any, and ignores foreign variables.
func (e *environment) values(c command, known, only []string) ([]value, error) {
	var out []value
	for name := range e.variables {
		if !strings.HasPrefix(name, variablePrefix) || slices.Contains(c.foreign, name) || e.isServiceLink(name) {
			continue
		}
		key := strings.ToLower(strings.TrimPrefix(name, variablePrefix))
		if len(only) == 0 || key == "config" || slices.Contains(only, key) {
			out = append(out, value{key: key, name: key, where: name, text: e.variables[name]})
		}
	}
	slices.SortFunc(out, func(a, b value) int { return strings.Compare(a.where, b.where) })
	for _, v := range out {
		if !slices.Contains(known, v.key) || v.where != variable(v.key) {
			return nil, fmt.Errorf("unknown variable %s in the environment: %s", quoteName(v.where), suggest(c.name, v.key, known, variable))
		}
	}
	return out, nil
}

// suggest names the key that was probably meant, as a source spells it.
func suggest(command, name string, known []string, spell func(string) string) string {
	if near := didyoumean.Name(name, known); near != "" {
		return "did you mean " + spell(near) + "?"
	}
	return "kazahanad " + command + " --help lists the keys"
}

// variable is the name of the environment variable of a key.
func variable(key string) string { return variablePrefix + strings.ToUpper(key) }

// serviceLink is the name of a variable that Kubernetes makes for a Service: every pod of the
// namespace gets KAZAHANA_SERVICE_HOST, KAZAHANA_PORT and the like of a Service named kazahana.
var serviceLink = regexp.MustCompile(`_(SERVICE_HOST|(SERVICE_)?PORT(_.*)?)$`)

func (e *environment) isServiceLink(name string) bool {
	_, inside := e.lookup("KUBERNETES_SERVICE_HOST")
	return inside && serviceLink.MatchString(name)
}
