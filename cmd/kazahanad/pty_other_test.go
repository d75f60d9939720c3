//go:build !linux

package main

import (
	"errors"
	"os"
)

func ptyNumber(*os.File) (int, error) { return 0, errors.ErrUnsupported }
