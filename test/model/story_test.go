package model

import (
	"fmt"
	"strings"
)

// daemons and hosts have letters in stories.
func letter(number string) string {
	return map[string]string{"1": "A", "2": "B", "3": "C"}[number]
}

func leases(set string) string {
	set = strings.Trim(set, "{}")
	if set == "" {
		return "no lease"
	}
	return "lease " + strings.ReplaceAll(set, ", ", " and ")
}

func kindOf(kind string) string {
	if kind == "1" {
		return "fallback"
	}
	return "regular"
}

// line is a step of a story as a sentence. s is the step: its name, then what the
// specification says of it.
type line func(s []string) string

// poolLines are the steps of Pool.tla, in the words of docs/uniqueness.md.
var poolLines = map[string]line{
	"grant": func(s []string) string {
		return fmt.Sprintf("the store grants slot %s to %s: created %s, expires %s, reserved until %s", s[2], letter(s[1]), s[3], s[4], s[5])
	},
	"takes back": func(s []string) string {
		return fmt.Sprintf("the store takes lease %s back, with the timestamp %s", s[1], s[2])
	},
	"extend": func(s []string) string {
		return fmt.Sprintf("the store extends lease %s of %s at %s: it expires %s", s[2], letter(s[1]), s[3], s[4])
	},
	"backup":  func([]string) string { return "a backup of the store is made" },
	"restore": func([]string) string { return "a backup, or an empty store, takes the store's place" },
	"receive": func(s []string) string { return fmt.Sprintf("%s receives lease %s", letter(s[1]), s[2]) },
	"give up": func(s []string) string { return letter(s[1]) + " waits no longer for an answer" },
	"extended": func(s []string) string {
		return fmt.Sprintf("%s hears that lease %s expires %s", letter(s[1]), s[2], s[3])
	},
	"verify": func(s []string) string { return fmt.Sprintf("%s hears that lease %s is lost", letter(s[1]), s[2]) },
	"keep":   func(s []string) string { return fmt.Sprintf("%s keeps lease %s for fallback only", letter(s[1]), s[2]) },
	"emit": func(s []string) string {
		return fmt.Sprintf("%s makes a %s ID: timestamp %s, low bits %s", letter(s[1]), kindOf(s[3]), s[2], s[4])
	},
	"seal": func(s []string) string {
		return fmt.Sprintf("%s seals its generator against lease %s", letter(s[1]), s[2])
	},
	"forget": func(s []string) string {
		return fmt.Sprintf("%s removes lease %s from its live state", letter(s[1]), s[2])
	},
	"send": func(s []string) string {
		return fmt.Sprintf("%s sends the release of lease %s, with the timestamp %s", letter(s[1]), s[2], s[3])
	},
	"released": func(s []string) string { return fmt.Sprintf("%s hears that lease %s was released", letter(s[1]), s[2]) },
	"refused": func(s []string) string {
		return fmt.Sprintf("the release of lease %s is refused, and %s puts the lease back", s[2], letter(s[1]))
	},
	"unanswered": func(s []string) string {
		return fmt.Sprintf("%s hears nothing of its release of lease %s", letter(s[1]), s[2])
	},
	"start in": func(s []string) string {
		return fmt.Sprintf("%s starts in a folder that it finds, and adopts %s", letter(s[1]), leases(s[2]))
	},
	"start new": func(s []string) string { return fmt.Sprintf("%s starts, in a new folder", letter(s[1])) },
	"kill":      func(s []string) string { return letter(s[1]) + " is killed" },
	"boot":      func([]string) string { return "the machine boots" },
	"copy directory": func(s []string) string {
		return fmt.Sprintf("the state directory of %s is copied to %s", letter(s[1]), letter(s[2]))
	},
	"clone machine": func(s []string) string {
		return fmt.Sprintf("the disk of %s's machine is copied, and %s is the daemon of the clone", letter(s[1]), letter(s[2]))
	},
	"move away": func(s []string) string { return fmt.Sprintf("the folder of identity %s is moved away", s[1]) },
	"move back": func(s []string) string { return fmt.Sprintf("the folder of identity %s is moved back", s[1]) },
	"move files": func(s []string) string {
		return fmt.Sprintf("the files of identity %s are moved into the folder of identity %s", s[1], s[2])
	},
	"copy files": func([]string) string { return "the files of a folder are copied" },
	"put leases": func([]string) string { return "the copied leases file is put back" },
	"put marks":  func([]string) string { return "the copied marks are put back" },
}

// lockLines are the steps of Locks.tla.
var lockLines = map[string]line{
	"tick":    func(s []string) string { return "it is " + s[1] },
	"acquire": func(s []string) string { return fmt.Sprintf("%s asks for the lock (request %s)", letter(s[1]), s[2]) },
	"renew": func(s []string) string {
		return fmt.Sprintf("%s asks to renew its lease, token %s", letter(s[1]), s[3])
	},
	"release": func(s []string) string { return fmt.Sprintf("%s releases its lease, token %s", letter(s[1]), s[3]) },
	"again":   func(s []string) string { return fmt.Sprintf("%s sends request %s once more", letter(s[1]), s[2]) },
	"give up": func(s []string) string {
		return fmt.Sprintf("%s waits no longer for the answer to request %s", letter(s[1]), s[2])
	},
	"discard": func(s []string) string {
		return fmt.Sprintf("%s gives up on request %s, and asks to release what it may have been granted", letter(s[1]), s[2])
	},
	"receive": func(s []string) string {
		return fmt.Sprintf("%s receives the answer to request %s: token %s, reliable until %s", letter(s[1]), s[2], s[3], s[4])
	},
	"commit": func(s []string) string {
		on := ""
		if s[5] == "TRUE" {
			on = ", decided on an old view"
		}
		return fmt.Sprintf("the store carries out the %s of %s (request %s): token %s%s", s[1], letter(s[2]), s[3], s[4], on)
	},
	"repeat": func(s []string) string {
		return fmt.Sprintf("the store repeats its answer to request %s of %s: %s left", s[2], letter(s[1]), s[3])
	},
	"look":   func([]string) string { return "the hosts look at the record" },
	"delete": func([]string) string { return "the store deletes the idle record" },
	"save":   func([]string) string { return "a replica, or a backup, has the store as it is now" },
	"forget": func([]string) string { return "the store falls back to that" },
}

// placementLines are the steps of Placement.tla.
var placementLines = map[string]line{
	"tick": func(s []string) string { return "it is " + s[1] },
	"grant": func(s []string) string {
		return fmt.Sprintf("the store grants or renews the membership of %s, until %s", letter(s[1]), s[2])
	},
	"joined": func(s []string) string {
		return fmt.Sprintf("%s hears of it, and counts on it until %s", letter(s[1]), s[2])
	},
	"leave": func(s []string) string { return letter(s[1]) + " gives its membership back" },
	"write": func(s []string) string {
		return fmt.Sprintf("%s reads the record, and sends the next, token %s", letter(s[1]), s[2])
	},
	"written": func(s []string) string {
		return fmt.Sprintf("the store has the record of %s, token %s", letter(s[1]), s[2])
	},
	"outrun":   func(s []string) string { return "the record that " + letter(s[1]) + " sent is not newer" },
	"activate": func(s []string) string { return fmt.Sprintf("%s activates the actor, token %s", letter(s[1]), s[2]) },
	"check": func(s []string) string {
		return fmt.Sprintf("the process of %s may rely on the actor until %s", letter(s[1]), s[2])
	},
	"passivate": func(s []string) string {
		return letter(s[1]) + " begins to passivate the actor"
	},
	"stop":   func(s []string) string { return "the process of " + letter(s[1]) + " stops the actor" },
	"remove": func(s []string) string { return letter(s[1]) + " removes its name from the record" },
	"crash":  func(s []string) string { return "the daemon of " + letter(s[1]) + " is killed, and another begins" },
	"die":    func(s []string) string { return "the process of " + letter(s[1]) + " is killed" },
}

// objectLines are the steps of Objects.tla.
var objectLines = map[string]line{
	"read": func(s []string) string { return letter(s[1]) + " reads the open head" },
	"write": func(s []string) string {
		return fmt.Sprintf("%s writes a grant into slot %s, from %s to %s", letter(s[1]), s[2], s[3], s[4])
	},
	"confirm": func(s []string) string {
		return fmt.Sprintf("%s finds the head as it was, and uses slot %s", letter(s[1]), s[2])
	},
	"undo": func(s []string) string {
		return fmt.Sprintf("%s finds the head changed, and gives slot %s back as it was", letter(s[1]), s[2])
	},
	"extend": func(s []string) string {
		return fmt.Sprintf("%s writes an extension of slot %s, to %s", letter(s[1]), s[2], s[3])
	},
	"extended": func(s []string) string { return fmt.Sprintf("%s uses slot %s for longer", letter(s[1]), s[2]) },
	"unextended": func(s []string) string {
		return fmt.Sprintf("%s finds the head changed, and does not use slot %s for longer", letter(s[1]), s[2])
	},
	"die":    func(s []string) string { return letter(s[1]) + " dies" },
	"close":  func(s []string) string { return fmt.Sprintf("%s closes the head (%s)", letter(s[1]), s[2]) },
	"create": func(s []string) string { return fmt.Sprintf("%s makes a head, of layout %s", letter(s[1]), s[2]) },
	"delete": func([]string) string { return "an operator deletes the head" },
	"find":   func(s []string) string { return letter(s[1]) + " reads the head that it is going to open" },
	"list": func(s []string) string {
		return fmt.Sprintf("%s lists the slots: the greatest end is %s", letter(s[1]), s[2])
	},
	"open": func(s []string) string {
		return fmt.Sprintf("%s opens the head in layout %s: no grant begins before %s", letter(s[1]), s[2], s[3])
	},
}

// tell is the story of a way to a broken promise.
func tell(lines map[string]line, steps [][]string) ([]string, error) {
	var story []string
	for _, step := range steps[1:] { // the first is the beginning
		say, ok := lines[step[0]]
		if !ok {
			return nil, fmt.Errorf("no words for the step %q", step)
		}
		story = append(story, say(step))
	}
	return story, nil
}
