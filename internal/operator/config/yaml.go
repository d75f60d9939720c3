package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// maxFile limits the configuration file, and maxNodes its size after aliases are
	// expanded.
	maxFile  = 1 << 20
	maxNodes = 1 << 16
)

// readFile reads a configuration file. An optional one may be missing.
func readFile(path, namedBy string, optional bool) (data []byte, found bool, err error) {
	f, err := os.Open(path)
	if err == nil {
		defer f.Close()
		data, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	}
	switch {
	case optional && errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, fmt.Errorf("config in %s: the file %s does not exist", namedBy, quotePath(path))
	case err != nil && optional:
		return nil, false, fmt.Errorf("cannot read %s: %w; --config none goes without a file", quotePath(path), cause(err))
	case err != nil:
		return nil, false, fmt.Errorf("config in %s: cannot read %s: %w", namedBy, quotePath(path), cause(err))
	case len(data) > maxFile:
		return nil, false, fmt.Errorf("%s is larger than %d bytes: it is not a configuration file", quotePath(path), maxFile)
	}
	return data, true, nil
}

// cause drops the operation and the path that the message already names.
func cause(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	return err
}

// yamlReader turns one YAML text into values with their places.
type yamlReader struct {
	whole string // the place that errors about the whole text name
	place func(line int) string
	nodes int
}

// parseFile returns the top level of a configuration file: a map, empty if the
// file holds nothing but comments.
func parseFile(path string, data []byte) (value, error) {
	path = quotePath(path)
	r := &yamlReader{whole: path, place: func(line int) string { return fmt.Sprintf("%s line %d", path, line) }}
	root, err := r.parse(data, "")
	if err == nil && root.kind != mapping {
		err = fmt.Errorf("%s holds a %v, and must hold keys and values", path, root.kind)
	}
	return root, err
}

// parseFlow reads the YAML of a map that a flag or a variable gives.
func (v value) parseFlow(text string) (value, error) {
	r := &yamlReader{whole: v.key + " in " + v.where, place: func(int) string { return v.where }}
	return r.parse([]byte(text), v.key)
}

// parse reads a text that holds at most one document.
func (r *yamlReader) parse(data []byte, key string) (value, error) {
	var document, more yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	err := decoder.Decode(&document)
	switch {
	case errors.Is(err, io.EOF):
		return value{key: key, where: r.place(1), kind: mapping}, nil
	case err != nil:
		return value{}, r.fault(err)
	}
	if err := decoder.Decode(&more); err == nil {
		return value{}, r.fault(errors.New("there is more than one YAML document (---)"))
	} else if !errors.Is(err, io.EOF) {
		return value{}, r.fault(err)
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		return value{key: key, where: r.place(1), kind: mapping}, nil
	}
	return r.convert(root, key, "", 0)
}

// fault names the text, and the line if the YAML parser gives one.
func (r *yamlReader) fault(err error) error {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	if strings.Contains(message, "mapping values are not allowed") {
		// The parser's message does not explain the fault of "provider: none:".
		message += `; a value that ends in a colon needs quotes: provider: "none:"`
	}
	if strings.HasPrefix(message, "line ") {
		return fmt.Errorf("%s %s", r.whole, message)
	}
	return fmt.Errorf("%s: %s", r.whole, message)
}

// convert follows aliases. They can make a small file large and a shallow one deep,
// so both are limited.
func (r *yamlReader) convert(node *yaml.Node, key, name string, depth int) (value, error) {
	const deepest = 4 // services, one service, its key, one more to report
	v := value{key: key, name: name, where: r.place(node.Line)}
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if r.nodes++; r.nodes > maxNodes || depth > deepest {
		return v, v.errorf("the YAML is too large or too deep for a configuration")
	}
	switch node.Kind {
	case yaml.MappingNode:
		v.kind = mapping
		return r.convertMapping(v, node, depth)
	case yaml.SequenceNode:
		v.kind = list
		for i, child := range node.Content {
			member, err := r.convert(child, fmt.Sprintf("%s[%d]", key, i), "", depth+1)
			if err != nil {
				return v, err
			}
			v.members = append(v.members, member)
		}
		return v, nil
	}
	switch tag := node.ShortTag(); tag {
	case "!!null":
		return v, v.errorf("it has no value: give it one, or take out the key")
	case "!!str", "!!int", "!!float", "!!bool", "!!timestamp":
		v.text = strings.TrimSpace(node.Value)
		return v, nil
	default:
		return v, v.errorf("a value of type %s is of no use here", quoteName(tag))
	}
}

func (r *yamlReader) convertMapping(v value, node *yaml.Node, depth int) (value, error) {
	lines := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		nameNode, child := node.Content[i], node.Content[i+1]
		name := nameNode.Value
		full := strings.TrimPrefix(v.key+"."+name, ".")
		where := r.place(nameNode.Line)
		switch first, duplicate := lines[name]; {
		case nameNode.Kind != yaml.ScalarNode:
			return v, fmt.Errorf("a key in %s is not a word", where)
		case name == "<<" && nameNode.ShortTag() == "!!merge":
			return v, fmt.Errorf("<< in %s: merging maps is not supported; services inherit what is set at the top level", where)
		case duplicate:
			return v, fmt.Errorf("duplicate key %s in %s: it is already set in line %d", quoteName(full), where, first)
		}
		lines[name] = nameNode.Line
		member, err := r.convert(child, full, name, depth+1)
		if err != nil {
			return v, err
		}
		// The line of the key is where a reader looks, also for a block below it.
		member.where = where
		v.members = append(v.members, member)
	}
	return v, nil
}
