package main

import (
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"

	"github.com/kazahana/kazahana/internal/operator/doctor"
)

// account is a user with its groups; gid is -1 and groups nil where they are not known.
type account struct {
	uid, gid int
	groups   []int
}

// account is the daemon's: the running one's, else the unit's, else this process's. ok says
// that this process can find out what that user may do.
func (x *examination) account() (who account, ok bool) {
	who = account{uid: x.system.uid, gid: -1}
	unit, installed := doctor.Service(x.units)
	switch {
	case x.status != nil:
		who.uid = int(x.peer.UID)
		who.gid, who.groups = doctor.GroupsOf(x.peer.PID)
	case installed && unit.User != "":
		who.uid = uidOf(unit.User)
	default:
		who.gid, who.groups = doctor.GroupsOf(os.Getpid())
	}
	if u, err := user.LookupId(strconv.Itoa(who.uid)); err == nil && who.gid < 0 {
		who.gid, _ = strconv.Atoi(u.Gid)
		ids, _ := u.GroupIds()
		if unit.Group != "" {
			who.gid = gidOf(unit.Group)
		}
		for _, name := range append(append(ids, unit.Group), unit.Groups...) {
			if gid := gidOf(name); gid >= 0 {
				who.groups = append(who.groups, gid)
			}
		}
	}
	return who, who.uid >= 0 && !x.denied && (x.system.uid == 0 || x.system.uid == who.uid)
}

// judgeAccount says whether there is the user that the daemon is, and whether this process can
// find out what it may do.
func (x *examination) judgeAccount() {
	unit, installed := doctor.Service(x.units)
	switch _, ok := x.account(); {
	case x.status == nil && installed && unit.User != "" && !unit.Dynamic && uidOf(unit.User) < 0:
		x.Fail("account", "Make it: systemd-sysusers, or useradd --system; or name another by User= in a drop-in.", "%s runs as user %s, and there is no such user", unit.Name, unit.User)
	case !ok || x.unlike:
		x.Unknown("account", "Run doctor as root or as the daemon's user.", "this user cannot find out what the daemon's user may do: whether it would start is not known")
	}
}

// uidOf is a user's number, or -1. A name service may know those that no file has.
func uidOf(name string) int {
	if u, err := user.Lookup(name); err == nil {
		name = u.Uid
	} else if line, err := exec.Command("getent", "passwd", name).Output(); err == nil && strings.Count(string(line), ":") > 2 {
		name = strings.Split(string(line), ":")[2]
	}
	return number(name)
}

func gidOf(name string) int {
	if g, err := user.LookupGroup(name); err == nil {
		name = g.Gid
	}
	return number(name)
}

func number(text string) int {
	if n, err := strconv.Atoi(text); err == nil {
		return n
	}
	return -1
}

// asDaemon runs a probe with the rights of the daemon's user, if this process can.
func (x *examination) asDaemon(probe func()) {
	if who, ok := x.account(); !ok {
		probe()
	} else if !doctor.As(who.uid, who.gid, who.groups, probe) {
		x.unlike = true
	}
}
