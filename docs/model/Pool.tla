-------------------------------- MODULE Pool --------------------------------
(***************************************************************************)
(* Leases of machine IDs: the store that grants them, the wire, and the    *)
(* daemons of one machine that make IDs under them.  The rules carry the   *)
(* numbers of the table in docs/uniqueness.md; Off switches rules off.     *)
(*                                                                         *)
(* No clock is a variable.  Each look at a clock, the store's or a         *)
(* daemon's, may show any time.  So the model covers every clock: one that *)
(* is right, late, early, and one that jumps.                              *)
(*                                                                         *)
(* Two equal IDs are a first ID and its twin.  The model lets one daemon   *)
(* make one ID, `seen', and then asks in each state whether a daemon could *)
(* make it again.  All other IDs can be left out: making one only raises   *)
(* the mark of its stream and the times of later releases, and both forbid *)
(* steps that are allowed without.                                         *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS Daemons,    \* how many daemons there are
          MaxTime,    \* clocks show 0 .. MaxTime
          Term,       \* expired - created
          Quarantine, \* how long a slot stays taken after that
          MaxGrants,  \* how many grants are made in all
          MaxAccidents, \* how many accidents befall files and stores in all
          Faults,     \* which kinds of events happen beside the usual ones
          Off         \* the rules that are switched off

On(rule) == rule \notin Off
Fault(kind) == kind \in Faults

\* With layouts the two units of low bits are granted one by one (many sequence bits)
\* or both at once (one more). Without, there is one slot.
Units == IF Fault("layouts") THEN 2 ELSE 1
Slots == IF Fault("layouts") THEN {{0}, {1}, {0, 1}} ELSE {{0}}

Procs == 1 .. Daemons
Times == 0 .. MaxTime
LastTime == MaxTime + Term + Quarantine
Folders == 1 .. Daemons + 1
None == [none |-> TRUE]

Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b

(***************************************************************************)
(* An ID is a number: the timestamp, then the kind (regular 0, fallback 1: *)
(* the top low bit), then a unit of low bits.                              *)
(***************************************************************************)
ID(t, kind, unit) == (t * 2 + kind) * Units + unit
First(t) == ID(t, 0, 0)
IDs == 0 .. ID(LastTime, 1, Units - 1)

VARIABLES
    rec,     \* the store: slot -> its record, or None
    granted, \* how many grants were made
    greatest,\* the greatest end ever promised: what the watermark knows
    fence,   \* nothing is granted or extended before
    backup,  \* copies of the store's records: none or one
    answers, \* grants on their way: any may be lost, late or doubled
    sent,    \* releases on their way
    longer,  \* answers to extensions on their way
    proc,    \* the daemons
    folder,  \* folders of the live directory
    name,    \* identity -> the folder under its name, or 0
    copy,    \* a copy of a folder's files, or None
    seen,    \* the one ID that is watched, or None
    accidents, \* how many there were
    did      \* the last step, for the story; not part of the state

store == <<rec, granted, greatest, fence, backup>>
wire == <<answers, sent, longer>>
live == <<folder, name, copy>>
vars == <<store, wire, proc, live, seen, accidents, did>>
view == <<store, wire, proc, live, seen, accidents>>

\* A lease as its holder knows it. An extension moves exp and until.
Lease(g, slot, now) ==
    [g |-> g, slot |-> slot, created |-> now, exp |-> now + Term, until |-> now + Term + Quarantine]

\* A daemon that does not run keeps its identity: it is in the state directory.
Down(identity) ==
    [up |-> FALSE, identity |-> identity, dir |-> 0, held |-> {}, cached |-> {},
     leaving |-> None, asked |-> 0, last |-> -1]

\* A folder: its leases file and its marks; for: the identity whose name it has; whether
\* an older leases file was put back, other marks were put there (or its own are gone), or
\* its files are another folder's; whether an earlier boot or another machine wrote it.
\* calm: nobody has disturbed it, so its stream ascends.
NewFolder(identity) ==
    [leases |-> {}, cached |-> {}, for |-> identity, mark |-> 0,
     old |-> FALSE, touched |-> FALSE, moved |-> FALSE, foreign |-> FALSE, calm |-> TRUE]

Init ==
    /\ rec = [s \in Slots |-> None]
    /\ granted = 0 /\ greatest = 0 /\ fence = 0 /\ backup = {}
    /\ answers = {} /\ sent = {} /\ longer = {}
    /\ proc = [p \in Procs |-> Down(p)]
    /\ folder = [k \in Folders |-> None]
    /\ name = [i \in Folders |-> 0]
    /\ copy = None /\ seen = None /\ accidents = 0
    /\ did = <<"start">>

-----------------------------------------------------------------------------
(* The store.                                                              *)

Overlap(s, r) == s \cap r # {}

\* Rule 5: a slot is taken until expired + quarantine, or as its release says.
TakenUntil(r) == IF On("5") \/ r.released THEN r.end ELSE r.exp

\* Rule 4: slots are compared as ranges, whatever their layout.
Free(slot, now) ==
    \A s \in Slots :
        (rec[s] # None /\ (IF On("4") THEN Overlap(s, slot) ELSE s = slot)) => TakenUntil(rec[s]) <= now

Grant(p, slot, now) ==
    LET g == granted + 1
        l == Lease(g, slot, now)
    IN  /\ proc[p].up /\ proc[p].asked = 0 /\ granted < MaxGrants
        /\ Free(slot, now)
        /\ now >= fence
        /\ rec' = [rec EXCEPT ![slot] = [g |-> g, created |-> now, exp |-> l.exp, end |-> l.until, released |-> FALSE]]
        /\ granted' = g
        /\ greatest' = Max(greatest, l.until)
        /\ answers' = answers \cup {[for |-> g, lease |-> l]}
        /\ proc' = [proc EXCEPT ![p].asked = g]
        /\ did' = <<"grant", p, slot, now, l.exp, l.until>>
        /\ UNCHANGED <<fence, backup, sent, longer, live, seen>>

\* A release of this very grant. The store compares signatures, so one of another
\* grant, or of a record that it has forgotten, changes nothing. A release may also be
\* refused ("busy"): Refuse.
Ended(r, ts, now) == Min(r.end, Max(IF On("3") THEN ts + 1 ELSE now, r.created))

TakeBack(m, now) ==
    LET r == rec[m.slot] IN
    /\ r # None /\ r.g = m.g /\ ~r.released
    /\ On("3") => now = 0 \* the store's time does not matter: look once
    /\ rec' = [rec EXCEPT ![m.slot] =
                   IF On("2") THEN [r EXCEPT !.end = Ended(r, m.ts, now), !.released = TRUE] ELSE None]
    /\ sent' = sent \ {m}
    /\ did' = <<"takes back", m.g, m.ts, now>>
    /\ UNCHANGED <<granted, greatest, fence, backup, answers, longer, proc, live, seen>>

\* An extension of a living lease. All other records that overlap must have ended. Rule
\* "extend fenced", 22 there: a store that was restored extends nothing: it may have forgotten one.
OthersEnded(slot, now) == \A s \in Slots \ {slot} : (rec[s] # None /\ Overlap(s, slot)) => rec[s].end <= now

Extend(p, l, now) ==
    LET r == rec[l.slot]
        exp == Max(r.exp, now + Term)
        end == Max(r.end, exp + Quarantine)
    IN  /\ Fault("extend") /\ proc[p].up /\ l \in proc[p].held
        /\ r # None /\ r.g = l.g /\ ~r.released /\ now < r.exp
        /\ On("extend") => OthersEnded(l.slot, now)
        /\ On("extend fenced") => now >= fence
        /\ exp > r.exp
        /\ rec' = [rec EXCEPT ![l.slot].exp = exp, ![l.slot].end = end]
        /\ greatest' = Max(greatest, end)
        /\ longer' = longer \cup {[g |-> l.g, exp |-> exp, until |-> end]}
        /\ did' = <<"extend", p, l.g, now, exp>>
        /\ UNCHANGED <<granted, fence, backup, answers, sent, proc, live, seen>>

Backup ==
    /\ Fault("store") /\ backup = {} /\ granted > 0
    /\ backup' = {rec}
    /\ did' = <<"backup">>
    /\ UNCHANGED <<rec, granted, greatest, fence, wire, proc, live, seen>>

\* What is put back is the backup, or an empty store.
Restore ==
    /\ Fault("store")
    /\ \E r \in {[s \in Slots |-> None]} \cup backup :
        /\ r # rec
        /\ rec' = r
    /\ fence' = IF On("6") THEN greatest ELSE fence
    /\ did' = <<"restore">>
    /\ UNCHANGED <<granted, greatest, backup, wire, proc, live, seen>>

-----------------------------------------------------------------------------
(* The daemon.                                                             *)

\* The live state's leases file, written whole. A copy made before is older from now on.
Written(k, leases, cached) ==
    /\ folder' = [folder EXCEPT ![k].leases = leases, ![k].cached = cached, ![k].old = FALSE]
    /\ copy' = IF copy # None /\ copy.of = k THEN [copy EXCEPT !.fresh = FALSE] ELSE copy
    /\ UNCHANGED name

\* Rule 13: an answer counts for its own request only.
Receive(p, a) ==
    LET q == proc[p] IN
    /\ q.up /\ a \in answers /\ q.asked # 0
    /\ On("13") => a.for = q.asked
    /\ \A l \in q.held \cup q.cached : l.g # a.lease.g
    /\ proc' = [proc EXCEPT ![p].held = @ \cup {a.lease}, ![p].asked = 0]
    /\ Written(q.dir, q.held \cup {a.lease}, q.cached)
    /\ did' = <<"receive", p, a.lease.g>>
    /\ UNCHANGED <<store, wire, seen>>

GiveUp(p) ==
    /\ proc[p].up /\ proc[p].asked # 0
    /\ proc' = [proc EXCEPT ![p].asked = 0]
    /\ did' = <<"give up", p>>
    /\ UNCHANGED <<store, wire, live, seen>>

Extended(p, l, m) ==
    LET q == proc[p]
        held == (q.held \ {l}) \cup {[l EXCEPT !.exp = m.exp, !.until = m.until]}
    IN  /\ q.up /\ l \in q.held /\ m \in longer /\ m.g = l.g /\ m.exp > l.exp
        /\ proc' = [proc EXCEPT ![p].held = held]
        /\ Written(q.dir, held, q.cached)
        /\ did' = <<"extended", p, l.g, m.exp>>
        /\ UNCHANGED <<store, wire, seen>>

\* Verify: the store knows the lease no longer, so the daemon drops it.
Verify(p, l) ==
    LET q == proc[p] IN
    /\ q.up /\ l \in q.held
    /\ rec[l.slot] # None => rec[l.slot].g # l.g \/ rec[l.slot].released
    /\ proc' = [proc EXCEPT ![p].held = @ \ {l}]
    /\ Written(q.dir, q.held \ {l}, q.cached)
    /\ did' = <<"verify", p, l.g>>
    /\ UNCHANGED <<store, wire, seen>>

\* The lease has run out, or is no longer needed: it stays for cached fallback.
Keep(p, l) ==
    LET q == proc[p] IN
    /\ q.up /\ l \in q.held
    /\ proc' = [proc EXCEPT ![p].held = @ \ {l}, ![p].cached = {l}]
    /\ Written(q.dir, q.held \ {l}, {l})
    /\ did' = <<"keep", p, l.g>>
    /\ UNCHANGED <<store, wire, seen>>

\* Emit rule (rule 1): t is the embedded timestamp itself.
Regular(q, t, u) ==
    \E l \in q.held : u \in l.slot /\ l.created <= t /\ (t < l.exp \/ ~On("1"))
Cached(q, t, u) ==
    \E l \in q.held \cup q.cached : u \in l.slot /\ l.created <= t /\ t < l.until
CanMake(p, t, kind, u) ==
    /\ proc[p].up
    /\ ID(t, kind, u) > proc[p].last
    /\ IF kind = 0 THEN Regular(proc[p], t, u) ELSE Cached(proc[p], t, u)

\* The mark rises in the memory-mapped file before the ID leaves.
Emit(p, t, kind, u) ==
    /\ seen = None
    /\ CanMake(p, t, kind, u)
    /\ seen' = [id |-> ID(t, kind, u), t |-> t, kind |-> kind, u |-> u, dir |-> proc[p].dir]
    /\ proc' = [proc EXCEPT ![p].last = ID(t, kind, u)]
    /\ folder' = [folder EXCEPT ![proc[p].dir].mark = t + 1]
    /\ did' = <<"emit", p, t, kind, u>>
    /\ UNCHANGED <<store, wire, name, copy>>

(* A release, in the order on which the single-user rule rests.            *)
LastTimestamp(q) == IF q.last < 0 THEN 0 ELSE q.last \div (2 * Units)

\* Rule 7: the generator is cut off first. Rule 10: the lease is not kept for fallback.
Seal(p, l) ==
    LET q == proc[p] IN
    /\ q.up /\ q.leaving = None /\ l \in q.held \cup q.cached
    /\ proc' = [proc EXCEPT ![p].held = IF On("7") THEN @ \ {l} ELSE @,
                            ![p].cached = IF On("10") THEN @ \ {l} ELSE {l},
                            ![p].leaving = [l |-> l, step |-> "sealed"]]
    /\ did' = <<"seal", p, l.g>>
    /\ UNCHANGED <<store, wire, live, seen>>

\* Rule 8: the live state forgets the lease before the release is sent.
Forget(p) ==
    LET q == proc[p] IN
    /\ q.up /\ q.leaving # None /\ q.leaving.step = "sealed"
    /\ proc' = [proc EXCEPT ![p].leaving.step = "forgotten"]
    /\ IF On("8")
       THEN Written(q.dir, q.held \ {q.leaving.l}, q.cached)
       ELSE UNCHANGED live
    /\ did' = <<"forget", p, q.leaving.l.g>>
    /\ UNCHANGED <<store, wire, seen>>

\* Rule 9: the timestamp is the clock's, but never less than the last embedded one.
Send(p, ts) ==
    LET q == proc[p] IN
    /\ q.up /\ q.leaving # None /\ q.leaving.step = "forgotten"
    /\ On("9") => ts >= LastTimestamp(q)
    /\ sent' = sent \cup {[g |-> q.leaving.l.g, slot |-> q.leaving.l.slot, ts |-> ts]}
    /\ proc' = [proc EXCEPT ![p].leaving.step = "sent"]
    /\ did' = <<"send", p, q.leaving.l.g, ts>>
    /\ UNCHANGED <<store, answers, longer, live, seen>>

\* The answer came: the lease is gone, whatever was still cut from it.
Released(p) ==
    LET q == proc[p] IN
    /\ q.up /\ q.leaving # None /\ q.leaving.step = "sent"
    /\ \A m \in sent : m.g # q.leaving.l.g
    /\ proc' = [proc EXCEPT ![p].leaving = None, ![p].held = @ \ {q.leaving.l}]
    /\ Written(q.dir, q.held \ {q.leaving.l}, q.cached)
    /\ did' = <<"released", p, q.leaving.l.g>>
    /\ UNCHANGED <<store, wire, seen>>

BackInFile(q) == Written(q.dir, q.held \cup {q.leaving.l}, q.cached)

\* The store refuses by its own word, so the lease is put back for the next start.
\* Rule 12: the release is not sent again.
Refused(p, m) ==
    LET q == proc[p] IN
    /\ q.up /\ q.leaving # None /\ q.leaving.step = "sent"
    /\ m \in sent /\ m.g = q.leaving.l.g
    /\ sent' = IF On("12") THEN sent \ {m} ELSE sent
    /\ proc' = [proc EXCEPT ![p].leaving = None]
    /\ BackInFile(q)
    /\ did' = <<"refused", p, m.g>>
    /\ UNCHANGED <<store, answers, longer, seen>>

\* No answer. Rule 11: the lease is gone, for the release may be on its way, or have
\* taken effect.
Unanswered(p) ==
    LET q == proc[p] IN
    /\ q.up /\ q.leaving # None /\ q.leaving.step = "sent"
    /\ proc' = [proc EXCEPT ![p].leaving = None]
    /\ IF On("11") THEN UNCHANGED live ELSE BackInFile(q)
    /\ did' = <<"unanswered", p, q.leaving.l.g>>
    /\ UNCHANGED <<store, wire, seen>>

-----------------------------------------------------------------------------
(* Starting, and what befalls files and processes.                         *)

Locked(k) == \E q \in Procs : proc[q].up /\ proc[q].dir = k
Unused == {k \in Folders : folder[k] = None}
Least(S) == CHOOSE x \in S : \A y \in S : x <= y
FreshNames == {i \in Folders : name[i] = 0 /\ \A q \in Procs : proc[q].identity # i}

\* What the next process takes over from folder k, and where its stream begins.
\* Rules 18, 19 and 20: the leases are those that were written last, in this folder, beside
\* these marks. Where they are not, the process makes new marks. Rule 21: they were written
\* in this boot of this machine. Rule 14: the mark is exclusive. Rule 15: it is in the live
\* state.
Adoptable(f) ==
    /\ On("18") => ~f.moved
    /\ On("19") => ~f.touched
    /\ On("20") => ~f.old
    /\ On("21") => ~f.foreign
Begin(f) == IF On("15") THEN First(f.mark) - 1 - (IF On("14") THEN 0 ELSE 2 * Units) ELSE -1

Opened(p, identity, k, leases, cached, last) ==
    proc' = [proc EXCEPT ![p] = [Down(identity) EXCEPT !.up = TRUE, !.dir = k,
                                     !.held = leases, !.cached = cached, !.last = last]]

StartIn(p, k) ==
    LET f == folder[k]
        ok == Adoptable(f)
    IN  /\ Opened(p, proc[p].identity, k, IF ok THEN f.leases ELSE {}, IF ok THEN f.cached ELSE {}, Begin(f))
        /\ folder' = [folder EXCEPT ![k].leases = IF ok THEN @ ELSE {}, ![k].cached = IF ok THEN @ ELSE {},
                                    ![k].for = proc[p].identity,
                                    ![k].old = FALSE, ![k].touched = FALSE, ![k].moved = FALSE, ![k].foreign = FALSE]
        /\ copy' = IF copy # None /\ copy.of = k THEN [copy EXCEPT !.fresh = FALSE] ELSE copy
        /\ UNCHANGED name
        /\ did' = <<"start in", p, {l.g : l \in IF ok THEN f.leases \cup f.cached ELSE {}}>>

StartNew(p, identity) ==
    /\ Unused # {}
    /\ LET k == Least(Unused) IN
       /\ Opened(p, identity, k, {}, {}, -1)
       /\ folder' = [folder EXCEPT ![k] = NewFolder(identity)]
       /\ name' = [name EXCEPT ![identity] = k]
       /\ did' = <<"start new", p, identity>>
    /\ UNCHANGED copy

\* Rule 17: a process whose folder is locked has a copied state directory; it begins
\* under a new identity.
Start(p) ==
    LET q == proc[p]
        k == name[q.identity]
    IN  /\ ~q.up
        /\ IF k = 0 THEN StartNew(p, q.identity)
           ELSE IF Locked(k) /\ On("17") THEN FreshNames # {} /\ StartNew(p, Least(FreshNames))
           ELSE StartIn(p, k)
        /\ UNCHANGED <<store, wire, seen>>

Kill(p) ==
    /\ proc[p].up
    /\ proc' = [proc EXCEPT ![p] = Down(@.identity)]
    /\ did' = <<"kill", p>>
    /\ UNCHANGED <<store, wire, live, seen>>

\* The machine boots: nothing is left of the memory. Rule 16: leases are nowhere else.
\* With the fault "disk" the live directory is on a disk, against the rules: it stays, but
\* its marks may be lost.
Boot ==
    /\ Fault("boot")
    /\ \E p \in Procs : proc[p].up
    /\ proc' = [p \in Procs |-> Down(proc[p].identity)]
    /\ IF On("16") /\ ~Fault("disk")
       THEN folder' = [k \in Folders |-> None] /\ name' = [i \in Folders |-> 0] /\ copy' = None
       ELSE /\ folder' = [k \in Folders |-> IF folder[k] = None THEN None
                                           ELSE [folder[k] EXCEPT !.mark = 0, !.calm = FALSE, !.foreign = Fault("disk")]]
            /\ UNCHANGED <<name, copy>>
    /\ seen' = IF seen = None THEN None ELSE [seen EXCEPT !.dir = 0] \* that folder is gone
    /\ did' = <<"boot">>
    /\ UNCHANGED <<store, wire>>

\* The state directory of p is copied over that of q, which does not run.
CopyDirectory(p, q) ==
    /\ Fault("copies") /\ p # q /\ ~proc[q].up /\ proc[q].identity # proc[p].identity
    /\ proc' = [proc EXCEPT ![q] = Down(proc[p].identity)]
    /\ did' = <<"copy directory", p, q>>
    /\ UNCHANGED <<store, wire, live, seen>>

\* The disk of p's machine is copied, with the live directory on it, and q is the daemon of
\* the clone. Folders of two machines do not meet, so the clone's has a name of its own.
CloneMachine(p, q) ==
    /\ Fault("disk") /\ p # q /\ ~proc[q].up /\ name[proc[p].identity] # 0
    /\ FreshNames # {} /\ Unused # {}
    /\ LET i == Least(FreshNames)
           k == Least(Unused)
       IN  /\ proc' = [proc EXCEPT ![q] = Down(i)]
           /\ folder' = [folder EXCEPT ![k] = [folder[name[proc[p].identity]] EXCEPT !.for = i, !.foreign = TRUE, !.calm = FALSE]]
           /\ name' = [name EXCEPT ![i] = k]
    /\ did' = <<"clone machine", p, q>>
    /\ UNCHANGED <<store, wire, copy, seen>>

\* The folder of an identity is moved away. It keeps its lock, its marks stay mapped, and
\* it may come back, if nothing has taken its name. (Its process saves nothing meanwhile,
\* and so releases nothing. The model lets it do both.)
MoveAway(i) ==
    /\ Fault("folders") /\ name[i] # 0
    /\ name' = [name EXCEPT ![i] = 0]
    /\ folder' = [folder EXCEPT ![name[i]].calm = FALSE]
    /\ did' = <<"move away", i>>
    /\ UNCHANGED <<store, wire, proc, copy, seen>>

MoveBack(k) ==
    /\ Fault("folders") /\ folder[k] # None
    /\ name[folder[k].for] = 0
    /\ name' = [name EXCEPT ![folder[k].for] = k]
    /\ did' = <<"move back", folder[k].for>>
    /\ UNCHANGED <<store, wire, proc, folder, copy, seen>>

\* The files of folder k are moved into folder j. Processes that use either go on. (They can
\* save nothing there; the model lets them.)
MoveFiles(k, j) ==
    /\ Fault("folders") /\ k # j /\ folder[k] # None /\ folder[j] # None
    /\ folder[k].leases # {}
    /\ folder' = [folder EXCEPT
           ![j].leases = folder[k].leases, ![j].cached = folder[k].cached, ![j].mark = folder[k].mark,
           ![j].moved = TRUE, ![j].calm = FALSE,
           ![k].leases = {}, ![k].cached = {}, ![k].touched = TRUE, ![k].calm = FALSE]
    /\ did' = <<"move files", folder[k].for, folder[j].for>>
    /\ UNCHANGED <<store, wire, proc, name, copy, seen>>

\* Single files of a folder are copied, and put back in place.
CopyFiles(k) ==
    /\ Fault("files") /\ copy = None /\ folder[k] # None
    /\ folder[k].leases # {} \/ folder[k].mark = 0
    /\ copy' = [of |-> k, leases |-> folder[k].leases, cached |-> folder[k].cached, mark |-> folder[k].mark, fresh |-> TRUE]
    /\ did' = <<"copy files", k>>
    /\ UNCHANGED <<store, wire, proc, folder, name, seen>>

PutLeases ==
    /\ Fault("files") /\ copy # None /\ ~copy.fresh /\ folder[copy.of] # None
    /\ folder' = [folder EXCEPT ![copy.of].leases = copy.leases, ![copy.of].cached = copy.cached, ![copy.of].old = TRUE]
    /\ did' = <<"put leases">>
    /\ UNCHANGED <<store, wire, proc, name, copy, seen>>

PutMarks ==
    /\ Fault("files") /\ copy # None /\ folder[copy.of] # None /\ folder[copy.of].mark # copy.mark
    /\ folder' = [folder EXCEPT ![copy.of].mark = copy.mark, ![copy.of].touched = TRUE, ![copy.of].calm = FALSE]
    /\ did' = <<"put marks">>
    /\ UNCHANGED <<store, wire, proc, name, copy, seen>>

-----------------------------------------------------------------------------
Usual ==
    \/ \E p \in Procs :
        \/ \E s \in Slots, now \in Times : Grant(p, s, now)
        \/ \E a \in answers : Receive(p, a)
        \/ GiveUp(p)
        \/ \E l \in proc[p].held :
            \/ \E now \in Times : Extend(p, l, now)
            \/ \E m \in longer : Extended(p, l, m)
            \/ Verify(p, l)
            \/ Keep(p, l)
        \/ \E l \in proc[p].held \cup proc[p].cached : Seal(p, l)
        \/ Forget(p)
        \/ \E ts \in 0 .. LastTime : Send(p, ts)
        \/ Released(p)
        \/ \E m \in sent : Refused(p, m)
        \/ Unanswered(p)
        \/ Start(p)
        \/ Kill(p)
        \/ \E t \in 0 .. LastTime, kind \in {0, 1}, u \in 0 .. Units - 1 : Emit(p, t, kind, u)
    \/ \E m \in sent, now \in Times : TakeBack(m, now)

Accident ==
    \/ Backup
    \/ Restore
    \/ Boot
    \/ \E p, q \in Procs : CopyDirectory(p, q)
    \/ \E p, q \in Procs : CloneMachine(p, q)
    \/ \E i \in Folders : MoveAway(i)
    \/ \E k \in Folders : MoveBack(k)
    \/ \E k, j \in Folders : MoveFiles(k, j)
    \/ \E k \in Folders : CopyFiles(k)
    \/ PutLeases
    \/ PutMarks

Next ==
    \/ Usual /\ UNCHANGED accidents
    \/ Accident /\ accidents < MaxAccidents /\ accidents' = accidents + 1

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What must hold in every state.                                          *)

\* No daemon can make the watched ID again: no two equal regular IDs, and no two equal
\* cached fallback IDs before the end of their reservations.
NoTwin == seen # None => \A p \in Procs : ~CanMake(p, seen.t, seen.kind, seen.u)

\* The stream of a folder that nobody has disturbed ascends, over any number of lives.
Ascends ==
    seen # None => \A p \in Procs :
        (proc[p].up /\ proc[p].dir = seen.dir /\ folder[seen.dir] # None /\ folder[seen.dir].calm)
            => proc[p].last >= seen.id

-----------------------------------------------------------------------------
(* What the argument in docs/uniqueness.md goes through on its way to      *)
(* NoTwin. Each of these holds in every state, too.                        *)

Leases(q) == q.held \cup q.cached
Uses(q) == {l.g : l \in Leases(q)}

\* Of two grants whose slots overlap, one begins when the other has ended, or later: as the
\* store has them on record, and as the daemons use them, to the end of their reservations.
GrantsApart ==
    /\ \A r, s \in Slots :
        (r # s /\ Overlap(r, s) /\ rec[r] # None /\ rec[s] # None)
            => rec[r].end <= rec[s].created \/ rec[s].end <= rec[r].created
    /\ \A p, q \in Procs : \A l \in Leases(proc[p]), m \in Leases(proc[q]) :
        (l.g < m.g /\ Overlap(l.slot, m.slot)) => l.until <= m.created
Holds(k) == IF Adoptable(folder[k]) THEN {l.g : l \in folder[k].leases \cup folder[k].cached} ELSE {}

\* No two processes make IDs under one lease, and no process can take over a lease from
\* a folder while another one uses it.
OneUser ==
    \A p \in Procs : proc[p].up =>
        /\ \A q \in Procs \ {p} : proc[q].up => Uses(proc[p]) \cap Uses(proc[q]) = {}
        /\ \A k \in Folders \ {proc[p].dir} :
            (folder[k] # None /\ ~Locked(k)) => Uses(proc[p]) \cap Holds(k) = {}

\* While a release is on its way, and once it has taken effect, nobody uses the lease, and
\* nobody will: no folder holds it.
ReleasedIsGone ==
    \A g \in {m.g : m \in sent} \cup {rec[s].g : s \in {s \in Slots : rec[s] # None /\ rec[s].released}} :
        /\ \A p \in Procs : proc[p].up => g \notin Uses(proc[p])
        /\ \A k \in Folders : (folder[k] # None /\ ~Locked(k)) => g \notin Holds(k)
=============================================================================
