package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// DefaultFile is the daemon's default configuration file, which may be missing, and
// DefaultLeaseServerFile the lease server's.
const (
	DefaultFile            = "/etc/kazahana/kazahanad.yaml"
	DefaultLeaseServerFile = "/etc/kazahana/lease-server.yaml"
)

// Process is the environment that settings depend on.
type Process struct {
	Environ []string  // as of os.Environ
	UID     int       // effective user ID
	Now     time.Time // for settings that must not lie in the future; zero = not checked
	// Only are the keys that a command takes from the environment and the file, if it does
	// not take all. It ignores all others, also invalid ones; of services it takes the terms.
	Only []string

	library bool              // see LoadFields
	fields  map[string]string // of it

	// For tests, in place of the default file and of readFile.
	defaultFile string
	readFile    func(path, namedBy string, optional bool) (data []byte, found bool, err error)
}

// origins say where a key was set, by its name; a missing one has its default.
type origins map[string]string

// Given reports whether any source sets the key.
func (o origins) Given(key string) bool { return o[key] != "" }

// Cite names a key with the place where it was set: "fallback (FILE line 3)".
func (o origins) Cite(key string) string {
	if where := o[key]; where != "" {
		return key + " (" + where + ")"
	}
	return key + " (default)"
}

// command are the words of a struct of keys that messages have.
type command struct {
	name    string
	file    string   // its default configuration file
	foreign []string // variables that are for other processes
}

func commandOf(settings any) command {
	if _, is := settings.(*LeaseServer); is {
		return command{"lease-server", DefaultLeaseServerFile, append(slices.Clone(foreignVariables), "KAZAHANA_SOCKET")}
	}
	return command{"serve", DefaultFile, foreignVariables}
}

// sourcesHelp explains the sources by a flag.
func sourcesHelp(flag string) string {
	key := strings.ReplaceAll(flag, "-", "_")
	return fmt.Sprintf("Every flag is also an environment variable (--%s is %s) and a key of the YAML file (%s). "+
		"A flag outranks the variable, the variable outranks the file, the file outranks the default. "+
		"Durations have a unit: 500ms, 5s, 2m.", flag, variable(key), key)
}

// keysOf are the keys of a struct's flags, in its order.
func keysOf(flags []*flag) (all []string) {
	for _, f := range flags {
		all = append(all, f.key())
	}
	return all
}

func flagNamed(flags []*flag, key string) *flag {
	for _, f := range flags {
		if f.key() == key {
			return f
		}
	}
	return nil
}

// parse reads all sources into grammar, a struct of flags that holds settings: the command
// line, then the file and the environment, which yield to it.
func (p Process) parse(grammar any, args []string, settings any, from *origins) (*environment, error) {
	flags, set := flagsOf(grammar), pflag.NewFlagSet("", pflag.ContinueOnError)
	bind(set, flags)
	if err := set.Parse(args); err != nil {
		return nil, FlagError(err, set)
	}
	*from = origins{}
	set.Visit(func(f *pflag.Flag) { (*from)[strings.ReplaceAll(f.Name, "-", "_")] = "--" + f.Name })
	env := newEnvironment(p.Environ)
	given, file, err := p.given(commandOf(settings), flagsOf(settings), env, set.Lookup("config"))
	if err != nil {
		return nil, err
	}
	for _, v := range given { // the weakest first
		f := flagNamed(flags, v.name)
		if f.given {
			env.outranked[v.name] = v.text
			if err := f.judge(v); err != nil {
				return nil, err
			}
			continue
		}
		f.field.SetZero()
		if err := f.decode(v); err != nil {
			return nil, err
		}
		(*from)[v.name] = v.where
	}
	reflect.ValueOf(settings).Elem().FieldByName("Config").SetString(file)
	return env, nil
}

// given returns the settings of the sources beside the command line, the weakest first, and the
// file that was read, "" for none.
func (p Process) given(c command, flags []*flag, env *environment, config *pflag.Flag) (all []value, file string, err error) {
	if p.library {
		return p.ofFields(), "", nil
	}
	known := keysOf(flags)
	fromEnv, err := env.values(c, known, p.Only)
	if err != nil {
		return nil, "", err
	}
	fromFile, file, err := p.readConfig(c, known, fromEnv, config)
	if err != nil {
		return nil, file, err
	}
	all = append(fromFile, fromEnv...)
	for i, v := range all {
		if len(p.Only) > 0 && v.name == "services" { // its other keys are ignored too
			if all[i], err = v.withTermsOnly(); err != nil {
				return nil, file, err
			}
		}
	}
	return all, file, nil
}

// ofFields are the keys that the fields of embed.Config set.
func (p Process) ofFields() (given []value) {
	for field, text := range p.fields {
		own := field
		if field == "Service" { // which is a group of keys here
			own = "DefaultService"
		}
		f, _ := reflect.TypeFor[Serve]().FieldByName(own)
		key := strings.ReplaceAll(f.Tag.Get("name"), "-", "_")
		if key == "" {
			panic("config: Serve has no key " + field)
		}
		given = append(given, value{key: key, name: key, where: "Config." + field, text: strings.TrimSpace(text)})
	}
	slices.SortFunc(given, func(a, b value) int { return strings.Compare(a.where, b.where) })
	return given
}

// readConfig reads the file that the key config names, else the default one if it exists.
func (p Process) readConfig(c command, known []string, fromEnv []value, config *pflag.Flag) (all []value, file string, err error) {
	path, where, optional := c.file, "", true
	if p.defaultFile != "" {
		path = p.defaultFile
	}
	for _, v := range fromEnv {
		if v.key != "config" {
			continue
		}
		if path, err = v.scalar(); err != nil {
			return nil, "", err
		}
		where, optional = v.where, false
	}
	if config.Changed {
		path, where, optional = config.Value.(*flag).field.String(), "--config", false
	}
	if path == none && !optional {
		return nil, "", nil
	}
	read := p.readFile
	if read == nil {
		read = readFile
	}
	data, found, err := read(path, where, optional)
	if err != nil || !found {
		return nil, "", err
	}
	root, err := parseFile(path, data)
	if err != nil {
		return nil, path, err
	}
	for _, v := range root.members {
		switch {
		case v.key == "config":
			return nil, path, v.errorf("a file cannot name another: use --config or KAZAHANA_CONFIG")
		case len(p.Only) > 0 && !slices.Contains(p.Only, v.key):
		case !slices.Contains(known, v.key):
			return nil, path, unknownKey(c.name, known, v)
		default:
			all = append(all, v)
		}
	}
	return all, path, nil
}

// unknownKey suggests the key that was probably meant.
func unknownKey(command string, known []string, v value) error {
	in := ""
	if v.where != "" {
		in = " in " + v.where
	}
	return fmt.Errorf("unknown key %s%s: %s", quoteName(v.key), in, suggest(command, v.name, known, func(name string) string { return name }))
}
