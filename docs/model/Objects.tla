------------------------------ MODULE Objects -------------------------------
(***************************************************************************)
(* A pool whose slots and head are objects of their own, as in Kubernetes: *)
(* a step changes one object, compared with what was read.  Slot 0 and     *)
(* slot 1 are the machine IDs of layout 1; in layout 2 there is slot 0     *)
(* alone, which has the low bits of both.  Off switches rules off.         *)
(*                                                                         *)
(* Clocks are no variables: each reading may show any time.  A step that a *)
(* process could take may never come, so a process may die at any moment.  *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS Procs,     \* how many processes there are
          MaxTime,   \* a clock shows 0 to MaxTime
          Term,      \* from the beginning of a grant to its end
          MaxGrants, \* how many grants are written in all
          MaxCloses, \* how often the pool is closed
          MaxHeads,  \* how many heads there are, one after the other
          Faults,    \* "head": an operator deletes the head; "extend": leases are extended
          Off        \* the rules that are switched off

On(rule) == rule \notin Off
Fault(f) == f \in Faults

Proc == 1 .. Procs
Slot == {0, 1}
Ids(layout) == IF layout = 1 THEN {0, 1} ELSE {0}
Covers(i, layout) == IF layout = 1 THEN {i} ELSE {0, 1}
Max(a, b) == IF a > b THEN a ELSE b

VARIABLES
    head,   \* the head's object; uid 0: there is none
    slot,   \* machine ID -> its object
    proc,   \* process -> what it does
    used,   \* the grants that their holders may use
    grants, \* how many were written
    closes, \* how often the pool was closed
    heads,  \* how many heads were made
    did     \* the last step, for the story; not part of the state

view == <<head, slot, proc, used, grants, closes, heads>>
vars == <<view, did>>

\* closed: why, or "no"; since: no grant begins before; next: the layout that it is closed for;
\* fenced: the generation of the latest fence.
NoHead == [uid |-> 0, version |-> 0, closed |-> "no", gen |-> 0, layout |-> 1, since |-> 0, next |-> 1, fenced |-> 0]
Idle == [at |-> "idle", uid |-> 0, gen |-> 0, version |-> 0, layout |-> 1, since |-> 0, slot |-> 0, from |-> 0, to |-> 0, grant |-> 0, ends |-> 0, others |-> 0]

Init ==
    /\ head = [NoHead EXCEPT !.uid = 1, !.gen = 1]
    /\ slot = [i \in Slot |-> [end |-> 0, grant |-> 0, layout |-> 1]]
    /\ proc = [p \in Proc |-> Idle]
    /\ used = {}
    /\ grants = 0 /\ closes = 0 /\ heads = 1
    /\ did = <<"start">>

-----------------------------------------------------------------------------
(* A holder: it reads the head, writes its slot, and reads the head again. *)

Read(p) ==
    /\ proc[p].at = "idle" /\ head.uid > 0 /\ head.closed = "no"
    /\ proc' = [proc EXCEPT ![p] = [Idle EXCEPT !.at = "read", !.uid = head.uid, !.gen = head.gen, !.layout = head.layout, !.since = head.since]]
    /\ did' = <<"read", p>>
    /\ UNCHANGED <<head, slot, used, grants, closes, heads>>

\* Rule "values": a grant begins when what the object records has ended. Rule "since": and not
\* before what was granted in another layout.
Write(p) ==
    /\ proc[p].at = "read" /\ grants < MaxGrants
    /\ \E i \in Ids(proc[p].layout), t \in 0 .. MaxTime :
        /\ On("values") => slot[i].end <= t
        /\ proc[p].since <= t
        /\ slot' = [slot EXCEPT ![i] = [end |-> t + Term, grant |-> grants + 1, layout |-> proc[p].layout]]
        /\ proc' = [proc EXCEPT ![p] = [@ EXCEPT !.at = "wrote", !.slot = i, !.from = t, !.to = t + Term, !.grant = grants + 1]]
        /\ did' = <<"write", p, i, t, t + Term>>
    /\ grants' = grants + 1
    /\ UNCHANGED <<head, used, closes, heads>>

\* Rule "confirm": a grant counts if the head is the one that was read, and was not closed
\* since. Rule "uid": a head that was made anew is another one.
Same(p) ==
    \/ ~On("confirm")
    \/ /\ head.uid > 0
       /\ On("uid") => head.uid = proc[p].uid
       /\ head.gen = proc[p].gen

Granted(p) == [slot |-> proc[p].slot, layout |-> proc[p].layout, from |-> proc[p].from, to |-> proc[p].to,
               grant |-> proc[p].grant, proc |-> p, uid |-> proc[p].uid, gen |-> proc[p].gen]

Confirm(p) ==
    /\ proc[p].at = "wrote" /\ Same(p)
    /\ used' = used \cup {Granted(p)}
    /\ proc' = [proc EXCEPT ![p] = Idle]
    /\ did' = <<"confirm", p, proc[p].slot>>
    /\ UNCHANGED <<head, slot, grants, closes, heads>>

\* Else it is given back unused, if nothing has changed the slot meanwhile.
Undo(p) ==
    /\ proc[p].at = "wrote" /\ ~Same(p)
    /\ slot' = IF slot[proc[p].slot].grant = proc[p].grant THEN [slot EXCEPT ![proc[p].slot].end = proc[p].from] ELSE slot
    /\ proc' = [proc EXCEPT ![p] = Idle]
    /\ did' = <<"undo", p, proc[p].slot>>
    /\ UNCHANGED <<head, used, grants, closes, heads>>

\* An extension is written and confirmed in the same way.
Extend(p) ==
    /\ Fault("extend") /\ proc[p].at = "read"
    /\ \E g \in used, t \in 0 .. MaxTime :
        /\ g.proc = p /\ g.layout = proc[p].layout /\ slot[g.slot].grant = g.grant
        /\ proc[p].since <= t /\ t < g.to /\ g.to < t + Term
        /\ slot' = [slot EXCEPT ![g.slot].end = t + Term]
        /\ proc' = [proc EXCEPT ![p] = [@ EXCEPT !.at = "extended", !.slot = g.slot, !.from = g.to, !.to = t + Term, !.grant = g.grant]]
        /\ did' = <<"extend", p, g.slot, t + Term>>
    /\ UNCHANGED <<head, used, grants, closes, heads>>

\* Rule "extension": as a grant is.
Extended(p) ==
    /\ proc[p].at = "extended"
    /\ IF Same(p) \/ ~On("extension")
       THEN /\ used' = {IF g.grant = proc[p].grant THEN [g EXCEPT !.to = proc[p].to, !.uid = proc[p].uid, !.gen = proc[p].gen] ELSE g : g \in used}
            /\ did' = <<"extended", p, proc[p].slot>>
            /\ UNCHANGED slot
       ELSE /\ did' = <<"unextended", p, proc[p].slot>>
            /\ UNCHANGED <<slot, used>>
    /\ proc' = [proc EXCEPT ![p] = Idle]
    /\ UNCHANGED <<head, grants, closes, heads>>

Die(p) ==
    /\ proc[p].at # "idle"
    /\ proc' = [proc EXCEPT ![p] = Idle]
    /\ did' = <<"die", p>>
    /\ UNCHANGED <<head, slot, used, grants, closes, heads>>

-----------------------------------------------------------------------------
(* A process that closed the pool, or finds it closed, lists the slots     *)
(* and opens it.                                                           *)

\* Rule "generation": each closing shows, whenever a holder looks.
Close(p) ==
    /\ proc[p].at = "idle" /\ head.uid > 0 /\ head.closed = "no" /\ closes < MaxCloses
    /\ \E why \in {"fence", "layout"} :
        /\ head' = [head EXCEPT !.closed = why, !.gen = IF On("generation") THEN @ + 1 ELSE @, !.version = @ + 1, !.next = 3 - head.layout]
        /\ did' = <<"close", p, why>>
    /\ closes' = closes + 1
    /\ UNCHANGED <<slot, proc, used, grants, heads>>

\* Rule "born closed": slots of an earlier head may be there.
Create(p) ==
    /\ proc[p].at = "idle" /\ head.uid = 0 /\ heads < MaxHeads
    /\ \E layout \in {1, 2} :
        /\ head' = [NoHead EXCEPT !.uid = heads + 1, !.gen = 1, !.layout = layout, !.closed = IF On("born closed") THEN "new" ELSE "no"]
        /\ did' = <<"create", p, layout>>
    /\ heads' = heads + 1
    /\ UNCHANGED <<slot, proc, used, grants, closes>>

Delete ==
    /\ Fault("head") /\ head.uid > 0 /\ heads < MaxHeads
    /\ head' = NoHead
    /\ did' = <<"delete">>
    /\ UNCHANGED <<slot, proc, used, grants, closes, heads>>

Ends(slots) == IF slots = {} THEN 0 ELSE CHOOSE n \in {slot[i].end : i \in slots} : \A i \in slots : slot[i].end <= n

\* Rule "list after": the slots are listed after the head was found closed.
Find(p) ==
    /\ proc[p].at = "idle" /\ head.uid > 0
    /\ On("list after") => head.closed # "no"
    /\ proc' = [proc EXCEPT ![p] = [Idle EXCEPT !.at = IF On("list after") THEN "found" ELSE "listed", !.uid = head.uid, !.version = head.version,
                                    !.ends = Ends(Slot), !.others = Ends({i \in Slot : slot[i].layout # head.layout})]]
    /\ did' = <<"find", p>>
    /\ UNCHANGED <<head, slot, used, grants, closes, heads>>

List(p) ==
    /\ proc[p].at = "found"
    /\ proc' = [proc EXCEPT ![p] = [@ EXCEPT !.at = "listed", !.ends = Ends(Slot), !.others = Ends({i \in Slot : slot[i].layout # head.layout})]]
    /\ did' = <<"list", p, Ends(Slot)>>
    /\ UNCHANGED <<head, slot, used, grants, closes, heads>>

\* Rule "compared": the head is the one that was found. Rule "fence": a fence lasts until the
\* greatest end. Rules "noted" and "others": no grant begins before the ends of what was
\* granted in another layout, whatever its clock shows.
Open(p) ==
    /\ proc[p].at = "listed" /\ head.uid > 0 /\ head.closed # "no"
    /\ On("compared") /\ On("list after") => head.uid = proc[p].uid /\ head.version = proc[p].version
    /\ \E t \in 0 .. MaxTime :
        LET ends == proc[p].ends
            moves == head.closed = "layout" /\ ends <= t
            since == CASE head.closed = "fence" -> IF On("fence") THEN ends ELSE 0
                       [] head.closed = "new" -> IF On("others") THEN proc[p].others ELSE 0
                       [] moves -> IF On("noted") THEN ends ELSE 0
                       [] OTHER -> 0
        IN head' = [head EXCEPT !.closed = "no", !.version = @ + 1, !.layout = IF moves THEN head.next ELSE @,
                                !.since = Max(@, since), !.fenced = IF head.closed = "fence" THEN head.gen ELSE @]
    /\ proc' = [proc EXCEPT ![p] = Idle]
    /\ did' = <<"open", p, head'.layout, head'.since>>
    /\ UNCHANGED <<slot, used, grants, closes, heads>>

-----------------------------------------------------------------------------
Next ==
    \/ Delete
    \/ \E p \in Proc :
        \/ Read(p) \/ Write(p) \/ Confirm(p) \/ Undo(p)
        \/ Extend(p) \/ Extended(p) \/ Die(p)
        \/ Close(p) \/ Create(p) \/ Find(p) \/ List(p) \/ Open(p)

Spec == Init /\ [][Next]_vars

\* No two grants that are used overlap.
NoTwin ==
    \A g, h \in used :
        g.grant = h.grant \/ Covers(g.slot, g.layout) \cap Covers(h.slot, h.layout) = {} \/ g.to <= h.from \/ h.to <= g.from

\* A fence lasts until every grant has ended that was made before it.
Fenced == \A g \in used : head.closed = "no" /\ g.uid = head.uid /\ g.gen < head.fenced => g.to <= head.since
=============================================================================
