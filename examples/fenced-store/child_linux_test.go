package main

import "syscall"

// dieWithParent has the kernel end the process when the tests end in whatever
// way, so that none outlives them, stopped.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
