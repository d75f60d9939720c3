----------------------------- MODULE Placement ------------------------------
(***************************************************************************)
(* One actor, the hosts that may run it, and their processes: who is a     *)
(* member, whom the actor's record names, and how long a process relies on *)
(* its activation.  Off switches rules off.                                *)
(*                                                                         *)
(* Which member is the actor's authority does not matter here: any member  *)
(* may try to activate it, at any time.  So the model also covers members  *)
(* that serve other kinds, come, go, and disagree about who is there.      *)
(*                                                                         *)
(* As in Locks, there is one time: each clock runs as fast as the store's. *)
(* A step that a host or a process could take may never come, so both may  *)
(* be frozen.                                                              *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS Hosts,     \* how many there are
          MaxTime,   \* time runs from 0 to MaxTime
          TTL,       \* of a membership
          Promise,   \* how long a process may rely on an answer to Check
          Patience,  \* how long a host waits for a silent process: longer than that
          MaxTokens, \* how many activations are written in all
          MaxLives,  \* how many memberships a host has
          Faults,    \* "crash": hosts and processes end without a word
          Off        \* the rules that are switched off

On(rule) == rule \notin Off

Host == 1 .. Hosts
Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a > b THEN a ELSE b

VARIABLES
    now,     \* the time
    member,  \* store: host -> its membership
    record,  \* store: whom the actor's record names, and the token; owner 0: removed
    joining, \* host -> when it sent the request whose answer is under way; -1: none is
    host,    \* what each host knows
    write,   \* host -> the record that it is writing; token 0: none
    proc,    \* host -> the actor in its process
    greatest,\* the greatest token of an activation so far
    rose,    \* each activation had a greater one than all before
    did      \* the last step, for the story; not part of the state

view == <<now, member, record, joining, host, write, proc, greatest, rose>>
vars == <<view, did>>

\* life: of the membership, new each time; until: as the host counts; runs: the token of
\* what it has activated; last: when the process was told last how long it may rely on it.
Fresh == [up |-> TRUE, life |-> 0, until |-> 0, owns |-> 0, runs |-> 0, last |-> 0, ends |-> FALSE]
Idle == [token |-> 0, until |-> 0]
Nothing == [token |-> 0, life |-> 0]

Init ==
    /\ now = 0
    /\ member = [h \in Host |-> [life |-> 0, end |-> 0]]
    /\ record = [owner |-> 0, life |-> 0, token |-> 0]
    /\ joining = [h \in Host |-> -1]
    /\ host = [h \in Host |-> Fresh]
    /\ write = [h \in Host |-> Nothing]
    /\ proc = [h \in Host |-> Idle]
    /\ greatest = 0 /\ rose = TRUE
    /\ did = <<"start">>

Tick ==
    /\ now < MaxTime
    /\ now' = now + 1
    /\ did' = <<"tick", now + 1>>
    /\ UNCHANGED <<member, record, joining, host, write, proc, greatest, rose>>

-----------------------------------------------------------------------------
(* Membership: a lock, renewed.                                            *)

Living(h) == member[h].life > 0 /\ now < member[h].end

\* The host asked a moment ago, or just now; the store grants or renews. The answer comes
\* at once or later: Joined. An ask that is carried out later still is one that was sent later.
Grant(h) ==
    /\ host[h].up /\ ~host[h].ends /\ joining[h] = -1
    /\ IF Living(h) THEN host[h].life = member[h].life ELSE member[h].life < MaxLives
    /\ member' = [member EXCEPT ![h] = [life |-> IF Living(h) THEN @.life ELSE @.life + 1, end |-> now + TTL]]
    /\ \E sent \in {Max(0, now - 1), now} : joining' = [joining EXCEPT ![h] = sent]
    /\ did' = <<"grant", h, now + TTL>>
    /\ UNCHANGED <<now, record, host, write, proc, greatest, rose>>

\* Rule "counted from before": the host counts from before it asked. A new life begins with
\* nothing; what runs from the life before is passivated.
Joined(h) ==
    LET new == host[h].life # member[h].life
        until == (IF On("counted from before") THEN joining[h] ELSE now) + TTL
    IN
    /\ joining[h] >= 0 /\ host[h].up /\ Living(h)
    /\ host' = [host EXCEPT ![h].life = member[h].life, ![h].until = IF new THEN until ELSE Max(@, until),
                            ![h].owns = IF new /\ host[h].runs = 0 THEN 0 ELSE @,
                            ![h].ends = IF new THEN host[h].runs > 0 ELSE @]
    /\ joining' = [joining EXCEPT ![h] = -1]
    /\ did' = <<"joined", h, host'[h].until>>
    /\ UNCHANGED <<now, member, record, write, proc, greatest, rose>>

IsMember(h) == host[h].up /\ host[h].life > 0 /\ now < host[h].until

\* Rule "kept": a membership is not given back while something is activated, or about to be.
Leave(h) ==
    /\ IsMember(h)
    /\ On("kept") => host[h].owns = 0 /\ host[h].runs = 0 /\ write[h] = Nothing
    /\ member' = [member EXCEPT ![h].end = now]
    /\ host' = [host EXCEPT ![h].life = 0, ![h].until = 0]
    /\ joining' = [joining EXCEPT ![h] = -1]
    /\ did' = <<"leave", h>>
    /\ UNCHANGED <<now, record, write, proc, greatest, rose>>

-----------------------------------------------------------------------------
(* Activation.                                                             *)

\* Rule "ended": the record names no owner, or itself, or one whose membership has ended.
Free(h) ==
    IF record.owner = 0 \/ ~On("ended") THEN TRUE
    ELSE IF record.owner = h /\ record.life = host[h].life THEN TRUE
    ELSE member[record.owner].life # record.life \/ ~Living(record.owner)

\* The host reads the record and writes the next; the write may reach the store late.
Write(h) ==
    /\ IsMember(h) /\ host[h].owns = 0 /\ write[h] = Nothing /\ Free(h)
    /\ record.token < MaxTokens
    /\ write' = [write EXCEPT ![h] = [token |-> record.token + 1, life |-> host[h].life]]
    /\ did' = <<"write", h, record.token + 1>>
    /\ UNCHANGED <<now, member, record, joining, host, proc, greatest, rose>>

\* Rule "newer": a record is replaced by a newer one only.
Written(h) ==
    /\ write[h] # Nothing
    /\ On("newer") => write[h].token > record.token
    /\ record' = [owner |-> h, life |-> write[h].life, token |-> write[h].token]
    /\ host' = IF host[h].up /\ host[h].life = write[h].life THEN [host EXCEPT ![h].owns = write[h].token] ELSE host
    /\ write' = [write EXCEPT ![h] = Nothing]
    /\ did' = <<"written", h, write[h].token>>
    /\ UNCHANGED <<now, member, joining, proc, greatest, rose>>

Outrun(h) ==
    /\ write[h] # Nothing /\ write[h].token <= record.token
    /\ write' = [write EXCEPT ![h] = Nothing]
    /\ did' = <<"outrun", h>>
    /\ UNCHANGED <<now, member, record, joining, host, proc, greatest, rose>>

\* Rule "in time": nothing is begun after the end of the membership.
Activate(h) ==
    /\ host[h].up /\ host[h].owns > 0 /\ host[h].runs = 0 /\ ~host[h].ends /\ proc[h].token = 0
    /\ On("in time") => IsMember(h)
    /\ host' = [host EXCEPT ![h].runs = host[h].owns, ![h].last = now]
    /\ proc' = [proc EXCEPT ![h] = [Idle EXCEPT !.token = host[h].owns]]
    /\ rose' = (rose /\ host[h].owns > greatest)
    /\ greatest' = Max(greatest, host[h].owns)
    /\ did' = <<"activate", h, host[h].owns>>
    /\ UNCHANGED <<now, member, record, joining, write>>

\* The process asks how long it may rely on the actor, and counts from before it asked: at
\* best, that is now. Rule "bounded": a promise ends with the membership. Rule "short": and
\* before the host's patience does.
Promised(h) ==
    LET left == IF On("bounded") THEN host[h].until - now ELSE Promise
    IN  IF On("short") THEN Min(left, Promise) ELSE left

Check(h) ==
    /\ proc[h].token > 0 /\ host[h].up /\ host[h].runs = proc[h].token /\ ~host[h].ends
    /\ On("bounded") => IsMember(h)
    /\ proc[h].until < now + Promised(h)
    /\ proc' = [proc EXCEPT ![h].until = now + Promised(h)]
    /\ host' = [host EXCEPT ![h].last = now]
    /\ did' = <<"check", h, now + Promised(h)>>
    /\ UNCHANGED <<now, member, record, joining, write, greatest, rose>>

\* The host ends what it runs, for whatever reason.
Passivate(h) ==
    /\ host[h].up /\ host[h].owns > 0 /\ ~host[h].ends
    /\ host' = [host EXCEPT ![h].ends = TRUE]
    /\ did' = <<"passivate", h>>
    /\ UNCHANGED <<now, member, record, joining, write, proc, greatest, rose>>

\* The process hears of it, and stops.
Stop(h) ==
    /\ proc[h].token > 0 /\ host[h].ends
    /\ proc' = [proc EXCEPT ![h] = Idle]
    /\ did' = <<"stop", h>>
    /\ UNCHANGED <<now, member, record, joining, host, write, greatest, rose>>

\* Rule "patience": a process that is silent may still rely on it; the host waits until
\* the last promise is over.
Remove(h) ==
    /\ host[h].up /\ host[h].ends
    /\ proc[h].token = 0 \/ ~On("patience") \/ now >= host[h].last + Patience
    /\ host' = [host EXCEPT ![h].owns = 0, ![h].runs = 0, ![h].ends = FALSE]
    \* Rule "token kept": the store keeps the token of a removed record.
    /\ record' = IF record.owner = h /\ record.token = host[h].owns
                 THEN [owner |-> 0, life |-> 0, token |-> IF On("token kept") THEN record.token ELSE 0]
                 ELSE record
    /\ did' = <<"remove", h>>
    /\ UNCHANGED <<now, member, joining, write, proc, greatest, rose>>

\* A daemon ends without a word, and another begins; its process may live on. It is a
\* member again when the old membership has ended. What was on the wire stays there.
Crash(h) ==
    /\ "crash" \in Faults /\ host[h].up /\ host[h].life > 0
    /\ host' = [host EXCEPT ![h] = Fresh]
    /\ joining' = [joining EXCEPT ![h] = -1]
    /\ write' = [write EXCEPT ![h] = Nothing]
    /\ did' = <<"crash", h>>
    /\ UNCHANGED <<now, member, record, proc, greatest, rose>>

Die(h) ==
    /\ "crash" \in Faults /\ proc[h].token > 0
    /\ proc' = [proc EXCEPT ![h] = Idle]
    /\ did' = <<"die", h>>
    /\ UNCHANGED <<now, member, record, joining, host, write, greatest, rose>>

-----------------------------------------------------------------------------
Next ==
    \/ Tick
    \/ \E h \in Host :
        \/ Grant(h) \/ Joined(h) \/ Leave(h)
        \/ Write(h) \/ Written(h) \/ Outrun(h)
        \/ Activate(h) \/ Check(h)
        \/ Passivate(h) \/ Stop(h) \/ Remove(h)
        \/ Crash(h) \/ Die(h)

Spec == Init /\ [][Next]_vars

Relies(h) == proc[h].token > 0 /\ now < proc[h].until

\* No two processes rely on the actor at once, each by its own deadline.
OneLive == \A g, h \in Host : (Relies(g) /\ Relies(h)) => g = h

\* Tokens rise from one activation to the next.
TokensRise == rose
=============================================================================
