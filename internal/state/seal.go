package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A sealed file is one line of text and a JSON document:
//
//	kazahana-state 1 crc32c=89abcdef bytes=1234
//	{...}
//
// The line has the kind and the version of the file, and the document's checksum and
// length. The file can be read by any program, but should not be changed.
const sealFormat = "%s %d crc32c=%08x bytes=%d\n"

// kind is the kind of a sealed file, and the version of its format.
type kind struct {
	name    string
	version int
}

func seal(k kind, document any) ([]byte, error) {
	text, err := json.Marshal(document)
	return sealText(k, append(text, '\n')), err
}

func sealText(k kind, text []byte) []byte {
	return append(fmt.Appendf(nil, sealFormat, k.name, k.version, crc32.Checksum(text, castagnoli), len(text)), text...)
}

// unseal reads a sealed file into the document. remedy completes the error about
// a damaged one.
func unseal(path string, k kind, remedy string, content []byte, document any) error {
	damaged := func(what string) error {
		return &FileError{Path: path, Problem: "is damaged: " + what, Remedy: remedy}
	}
	line, text, complete := bytes.Cut(content, []byte("\n"))
	var found string
	var version, length int
	var sum uint32
	if n, _ := fmt.Sscanf(string(line)+"\n", sealFormat, &found, &version, &sum, &length); n < 1 || found != k.name {
		if len(bytes.Trim(content, "\x00")) == 0 { // cut to nothing, or blocks lost by the file system
			return damaged("it is empty")
		}
		return &FileError{Path: path, Problem: "is not a " + k.name + " file", Remedy: "find out what it is and move it away"}
	} else if n >= 2 && version != k.version {
		return &FileError{Path: path, Problem: fmt.Sprintf("has version %d, and this kazahanad knows version %d only", version, k.version),
			Remedy: "use the kazahanad that wrote it, or see docs/compatibility.md"}
	} else if n < 4 || !complete {
		return damaged("its first line is incomplete")
	}
	switch {
	case len(text) != length:
		return damaged(fmt.Sprintf("it has %d bytes after the first line instead of %d", len(text), length))
	case crc32.Checksum(text, castagnoli) != sum:
		return damaged("its content does not match its checksum")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(document); err != nil {
		return damaged(err.Error())
	}
	return nil
}
