package msgpack

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// The kinds of messages.
const (
	Request      = 0 // [Request, ID, method, params]
	Answer       = 1 // [Answer, ID, refusal, result]
	Notification = 2 // [Notification, method, params]
)

// Head begins a message of a limited size: it reads the kind, and the ID, if there is one.
func (r *Reader) Head(limit int) (kind int64, id uint32) {
	r.Next(limit)
	size := r.Array()
	if size == 0 {
		r.Fail("an empty array is no message")
	}
	switch kind = r.Int(); {
	case size == 4 && (kind == Request || kind == Answer):
		id = uint32(r.Int())
	case size != 3 || kind != Notification:
		r.Fail("an array of %d with the kind %d is no message", size, kind)
	}
	return kind, id
}

// Refusal reads the refusal of an answer: its text, if there is one.
func (r *Reader) Refusal() (text string, refused bool) {
	refusal := r.Value()
	if refusal == nil {
		return "", false
	}
	if pair, ok := refusal.([]any); ok && len(pair) == 2 {
		if text, ok := pair[1].(string); ok {
			return text, true
		}
	}
	r.Fail("an answer's error is not [kind, text]")
	return "", true
}

// Assign stores a value that was read in target, a pointer or nil, by the rules and the tags
// of encoding/json.
func Assign(value, target any) error {
	to, from := reflect.Indirect(reflect.ValueOf(target)), reflect.ValueOf(value)
	switch {
	case target == nil:
		return nil
	case value != nil && to.CanSet() && from.Type().AssignableTo(to.Type()):
		to.Set(from)
		return nil
	case value == nil && to.Kind() != reflect.Interface:
		return errors.New("there is no result")
	}
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, target)
	}
	if err != nil {
		return fmt.Errorf("unreadable: %w", err)
	}
	return nil
}
