package config

import (
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/address"
)

// decoder sets the field of a flag from a value.
type decoder func(f *flag, v value) error

// kinds are the values that the tag "type" of a key names. Further tags bound them: min and
// max, or enum.
var kinds = map[string]decoder{
	"text":         single(alone(orNone(parseText))),
	"path":         single(alone(parseText)),
	"verbatim":     verbatim,
	"verbatims":    verbatims,
	"socket":       single(alone(address.Parse)),
	"mode":         single(alone(parseMode)),
	"ids":          listOf(parseNumericID),
	"number":       single(parseNumber),
	"size":         single(parseSize),
	"duration":     single(parseDuration),
	"milliseconds": single(parseMilliseconds),
	"backward":     single(alone(parseBackward)),
	"word":         single(parseWord),
	"switch":       single(alone(parseSwitch)),
	"address":      single(parseAddress),
	"service":      single(alone(parseServiceName)),
	"provider":     single(alone(parseProvider)),
	"store":        single(alone(parseStore)),
	"authority":    single(alone(orNone(parseAuthority))),
	"epoch":        single(alone(parseEpoch)),
	"range":        single(alone(parseRange)),
}

// alone makes a parser of a function that needs no tags.
func alone[T any](parse func(string) (T, error)) func(string, *flag) (T, error) {
	return func(text string, _ *flag) (T, error) { return parse(text) }
}

// single decodes a key with a single value.
func single[T any](parse func(string, *flag) (T, error)) decoder {
	return func(f *flag, v value) error {
		text, err := v.scalar()
		if err != nil {
			return err
		}
		parsed, err := parse(text, f)
		if err != nil {
			return v.refuse(text, err)
		}
		f.set(parsed)
		return nil
	}
}

// listOf decodes a key with a list. A flag that is given again adds to it.
func listOf[T any](parse func(string) (T, error)) decoder {
	return func(f *flag, v value) error {
		elements, err := v.elements()
		if err != nil {
			return err
		}
		all, _ := f.field.Interface().([]T)
		for _, e := range elements {
			p, err := parse(e.text)
			if err != nil {
				return e.refuse(e.text, err)
			}
			all = append(all, p)
		}
		if len(elements) == 0 { // none
			all = nil
		}
		f.set(all)
		return nil
	}
}

// verbatim takes any text of the command line, and verbatims one more.
func verbatim(f *flag, v value) error {
	f.set(v.text)
	return nil
}

func verbatims(f *flag, v value) error {
	f.set(append(f.field.Interface().([]string), v.text))
	return nil
}

// bound reads a tag that bounds a key, and is for the struct's author to get right.
func bound[T any](f *flag, tag string, otherwise T, parse func(string) (T, error)) T {
	text := f.tag.Get(tag)
	if text == "" {
		return otherwise
	}
	limit, err := parse(text)
	if err != nil {
		panic("config: the tag " + tag + " of --" + f.name + " " + err.Error())
	}
	return limit
}

func parse64(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) }

func parseNumber(text string, f *flag) (int64, error) {
	if f.words() != nil {
		if _, err := parseWord(text, f); err != nil {
			return 0, err
		}
	}
	return wholeNumber(text, bound(f, "min", 0, parse64), bound(f, "max", math.MaxInt64, parse64))
}

func parseSize(text string, f *flag) (int64, error) {
	return byteSize(text, bound(f, "min", 0, func(text string) (int64, error) { return byteSize(text, 0) }))
}

func parseDuration(text string, f *flag) (time.Duration, error) {
	return duration(text, bound(f, "min", 0, time.ParseDuration), bound(f, "max", longestDuration, time.ParseDuration))
}

// parseMilliseconds accepts durations that a provider can grant a lease for.
func parseMilliseconds(text string, f *flag) (time.Duration, error) {
	d, err := duration(text, bound(f, "min", 0, time.ParseDuration), bound(f, "max", longestTerm, time.ParseDuration))
	if err == nil && d%time.Millisecond != 0 {
		err = errors.New("must be whole milliseconds")
	}
	return d, err
}
