------------------------------- MODULE Locks --------------------------------
(***************************************************************************)
(* One lock of the lock service: its record in the record store, the       *)
(* requests of hosts, and what each host believes.  Off switches rules     *)
(* off.                                                                    *)
(*                                                                         *)
(* There is one time, for a lock cannot do without: a host counts the end  *)
(* of its lease on a clock that runs as fast as the store's.  What clocks  *)
(* show does not matter: no rule reads one.  A message on the wire may be  *)
(* lost, late, or come again at any time.                                  *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, Sequences

CONSTANTS Hosts,       \* how many hosts there are
          MaxTime,     \* time runs from 0 to MaxTime
          Term,        \* of a lease
          MaxRequests, \* how many requests the hosts make in all
          MaxWrites,   \* how many writes the store makes in all
          MaxLives,    \* how many lives the store has: it falls back one time less
          Memory,      \* how many answers a lock remembers, and how many answers to releases
          Faults,      \* "forget": the store may fall back to an earlier state
          Off          \* the rules that are switched off

On(rule) == rule \notin Off

Host == 1 .. Hosts
None == [none |-> TRUE]
Max(a, b) == IF a > b THEN a ELSE b

\* What the store keeps of the lock: the latest lease, and the life of the store in which
\* it was granted. A record with the token 0 is missing. answers are the numbers of the
\* latest renewals and of acquires whose lease is not the latest, releases those of
\* releases, oldest first.
\*
\* latest and freed are not in the product. They are the last Memory requests that were
\* carried out, as they were: acquires and renewals, and releases.
Missing == [token |-> 0, owner |-> 0, request |-> 0, end |-> 0, active |-> FALSE, life |-> 0,
            answers |-> <<>>, releases |-> <<>>, latest |-> <<>>, freed |-> <<>>]

\* A sequence of Memory numbers at most, to which another one is added.
Added(numbers, number) ==
    LET all == Append(numbers, number)
    IN  SubSeq(all, Max(1, Len(all) - Memory + 1), Len(all))

Has(numbers, number) == \E i \in DOMAIN numbers : numbers[i] = number

VARIABLES
    now,      \* the time
    state,    \* of the store: what a host may be shown
    writes,   \* how many there were
    earlier,  \* the states that the store may fall back to
    stale,    \* a state that a host was shown some time ago, and may decide on; or none
    asked,    \* how many requests were made
    open,     \* host -> the request whose answer it waits for, or None
    wire,     \* tries of requests on their way to the store, early or late
    answers,  \* on their way back, early or late
    belief,   \* host -> the lease that it relies on, or None
    greatest, \* the greatest token ever granted
    rose,     \* each token was greater than all before
    once,     \* no request was carried out again that was among the latest
    did       \* the last step, for the story; not part of the state

view == <<now, state, writes, earlier, stale, asked, open, wire, answers, belief, greatest, rose, once>>
vars == <<view, did>>

Init ==
    /\ now = 0
    /\ state = [rec |-> Missing, version |-> 0, floor |-> 0, life |-> 1, fence |-> 0]
    /\ writes = 0 /\ earlier = {} /\ greatest = 0 /\ rose = TRUE /\ once = TRUE
    /\ stale = {}
    /\ asked = 0 /\ wire = {} /\ answers = {}
    /\ open = [h \in Host |-> None]
    /\ belief = [h \in Host |-> None]
    /\ did = <<"start">>

Believes(h) == belief[h] # None /\ now < belief[h].until

Tick ==
    /\ now < MaxTime
    /\ now' = now + 1
    /\ did' = <<"tick", now + 1>>
    /\ UNCHANGED <<state, writes, earlier, stale, asked, open, wire, answers, belief, greatest, rose, once>>

-----------------------------------------------------------------------------
(* A host.                                                                 *)

Try(h, op, number, token) == [host |-> h, op |-> op, number |-> number, token |-> token, sent |-> now]

\* A host may also ask to renew, or release, a lease whose end has passed by its own clock.
\* Rule "named": a renewal and a release name the lease, not the owner alone.
Ask(h, op) ==
    LET number == asked + 1
        token == IF op = "acquire" THEN 0 ELSE belief[h].token
    IN  /\ asked < MaxRequests /\ open[h] = None
        /\ IF op = "acquire" THEN ~Believes(h) ELSE belief[h] # None
        /\ asked' = number
        /\ open' = [open EXCEPT ![h] = [op |-> op, number |-> number, token |-> token]]
        /\ wire' = wire \cup {Try(h, op, number, token)}
        \* Rule "cut off": the holder stops relying on the lock before the release is sent.
        /\ belief' = IF op = "renew" \/ (op = "release" /\ ~On("cut off")) THEN belief ELSE [belief EXCEPT ![h] = None]
        /\ did' = <<op, h, number, token>>
        /\ UNCHANGED <<now, state, writes, earlier, stale, answers, greatest, rose, once>>

\* No answer came in time: the same request once more. (The answer to a release changes
\* nothing, and its first try may arrive as often as one likes.)
Again(h) ==
    /\ open[h] # None /\ open[h].op # "release"
    /\ Try(h, open[h].op, open[h].number, open[h].token) \notin wire
    /\ wire' = wire \cup {Try(h, open[h].op, open[h].number, open[h].token)}
    /\ did' = <<"again", h, open[h].number>>
    /\ UNCHANGED <<now, state, writes, earlier, stale, asked, open, answers, belief, greatest, rose, once>>

GiveUp(h) ==
    /\ open[h] # None
    /\ open' = [open EXCEPT ![h] = None]
    /\ did' = <<"give up", h, open[h].number>>
    /\ UNCHANGED <<now, state, writes, earlier, stale, asked, wire, answers, belief, greatest, rose, once>>

\* The host gives up on an acquire, and asks the store to end what it may have granted.
Discard(h) ==
    /\ open[h] # None /\ open[h].op = "acquire"
    /\ open' = [open EXCEPT ![h] = None]
    /\ wire' = wire \cup {Try(h, "release", open[h].number, 0)}
    /\ did' = <<"discard", h, open[h].number>>
    /\ UNCHANGED <<now, state, writes, earlier, stale, asked, answers, belief, greatest, rose, once>>

\* Rule "sending": the host counts from the moment at which it sent the try that is answered.
Until(a) == (IF On("sending") THEN a.sent ELSE now) + a.left

Receive(h, a) ==
    /\ a.host = h /\ open[h] # None /\ open[h].number = a.number
    /\ open' = [open EXCEPT ![h] = None]
    /\ belief' = CASE a.op = "acquire" -> [belief EXCEPT ![h] = [token |-> a.token, until |-> Until(a)]]
                   [] a.op = "renew" /\ belief[h] # None -> [belief EXCEPT ![h].until = Max(@, Until(a))]
                   [] OTHER -> [belief EXCEPT ![h] = None]
    /\ did' = <<"receive", h, a.number, a.token, Until(a)>>
    /\ UNCHANGED <<now, state, writes, earlier, stale, asked, wire, answers, greatest, rose, once>>

-----------------------------------------------------------------------------
(* The store.                                                              *)

\* The term belongs to the store: it ends by the store's judgement.
Active(s) == s.rec.active /\ now < s.rec.end

\* A lease of another life, or a missing record, says little: tokens go on from the floor.
Token(s) == IF s.rec.token > 0 /\ s.rec.life = s.life THEN s.rec.token ELSE Max(s.rec.token, s.floor)

\* Rule "ended acquire": an acquire joins the answers when its lease is not the latest any
\* more. Rule "acquire apart": it does not before, so that no number of renewals drives it out.
AfterGrant(s, m) ==
    LET joins == IF On("acquire apart") THEN s.rec.request ELSE m.number
    IN  IF On("ended acquire") /\ joins # 0 THEN Added(s.rec.answers, joins) ELSE s.rec.answers

Granted(s, m) ==
    [s.rec EXCEPT !.token = Token(s) + 1, !.owner = m.host, !.request = m.number, !.end = now + Term, !.active = TRUE,
                  !.life = s.life, !.answers = AfterGrant(s, m), !.latest = Added(@, m.number)]

Renewed(s, m) ==
    [s.rec EXCEPT !.end = now + Term, !.answers = Added(@, m.number), !.latest = Added(@, m.number)]

\* A Discard has no number of its own, and is not remembered. Rule "releases apart": the
\* answers to releases are not driven out by others.
Released(s, m) ==
    LET r == [s.rec EXCEPT !.active = FALSE]
    IN  CASE m.token = 0 -> r
          [] On("releases apart") -> [r EXCEPT !.releases = Added(@, m.number), !.freed = Added(@, m.number)]
          [] OTHER -> [r EXCEPT !.answers = Added(@, m.number), !.freed = Added(@, m.number)]

\* Whether the lease in s is the one that m renews or releases. A Discard knows no token, and
\* names the lease by its request.
Meant(s, m) ==
    /\ s.rec.owner = m.host
    /\ On("named") => IF m.token = 0 THEN s.rec.request = m.number ELSE s.rec.token = m.token

\* Whether s shows that m was carried out before.
Remembered(s, m) ==
    CASE m.op = "release" -> m.token # 0 /\ Has(IF On("releases apart") THEN s.rec.releases ELSE s.rec.answers, m.number)
      [] m.op = "acquire" /\ On("acquire apart") /\ s.rec.request = m.number -> TRUE
      [] OTHER -> Has(s.rec.answers, m.number)

\* What the rule makes of a request in the state s: a record, or None: nothing to write.
\* Rule "not twice": what is remembered is not carried out again.
Decided(s, m) ==
    CASE On("not twice") /\ Remembered(s, m) -> None
      [] m.op = "acquire" /\ ~Active(s) /\ now >= s.fence -> Granted(s, m)
      [] m.op = "renew" /\ Active(s) /\ Meant(s, m) -> Renewed(s, m)
      [] m.op = "release" /\ Active(s) /\ Meant(s, m) -> Released(s, m)
      [] OTHER -> None

\* What the commit compares with what the decision rests on. Rule "version": the record
\* was not written since. Rule "floor compared": a missing one was not made and deleted
\* meanwhile. Rule "life": the store has not forgotten anything since.
Stands(s) ==
    /\ On("version") => s.version = state.version
    /\ On("floor compared") => (s.rec.token = 0 => s.floor = state.floor)
    /\ On("life") => s.life = state.life

Answer(m, rec, left) ==
    [host |-> m.host, op |-> m.op, number |-> m.number, token |-> rec.token, sent |-> m.sent, left |-> left]

\* The decision may rest on what the host was shown last time.
Commit(m) ==
    \E s \in {state} \cup stale :
        LET rec == Decided(s, m)
        IN  /\ rec # None /\ Stands(s) /\ writes < MaxWrites
            /\ state' = [state EXCEPT !.rec = rec, !.version = writes + 1]
            /\ writes' = writes + 1
            /\ answers' = answers \cup {Answer(m, rec, Term)}
            /\ rose' = (rose /\ (m.op = "acquire" => rec.token > greatest))
            /\ greatest' = Max(greatest, rec.token)
            /\ once' = (once /\ (m.op = "release" \/ ~Has(state.rec.latest, m.number)))
            /\ did' = <<"commit", m.op, m.host, m.number, rec.token, s # state>>
            /\ UNCHANGED <<now, earlier, stale, asked, open, wire, belief>>

\* Whether m gets the answer again that it got before: an acquire and a renewal while their
\* lease is the latest and lives, a release always.
Repeats(m) ==
    /\ Remembered(state, m)
    /\ CASE m.op = "acquire" -> Active(state) /\ state.rec.request = m.number
         [] m.op = "renew" -> Active(state) /\ state.rec.token = m.token
         [] OTHER -> TRUE

\* A request that was carried out before shows the lease as it is now. Rule "left": with
\* what is left of it.
Repeat(m) ==
    /\ Repeats(m)
    /\ LET left == CASE m.op = "release" -> 0
                     [] On("left") -> state.rec.end - now
                     [] OTHER -> Term
           a == [Answer(m, state.rec, left) EXCEPT !.token = IF m.op = "acquire" THEN @ ELSE m.token] IN
       /\ a \notin answers
       /\ answers' = answers \cup {a}
       /\ did' = <<"repeat", m.host, m.number, a.left>>
    /\ UNCHANGED <<now, state, writes, earlier, stale, asked, open, wire, belief, greatest, rose, once>>

\* A read, or the answer of a commit that compared in vain.
Look ==
    /\ stale' = {state}
    /\ did' = <<"look">>
    /\ UNCHANGED <<now, state, writes, earlier, asked, open, wire, answers, belief, greatest, rose, once>>

\* The store deletes what is idle. Rule "floor": it remembers the greatest token of those.
Delete ==
    /\ state.rec.token > 0 /\ ~Active(state)
    /\ state' = [state EXCEPT !.rec = Missing, !.version = 0,
                              !.floor = IF On("floor") THEN Max(@, state.rec.token) ELSE @]
    /\ did' = <<"delete">>
    /\ UNCHANGED <<now, writes, earlier, stale, asked, open, wire, answers, belief, greatest, rose, once>>

\* A replica has this state, or a backup.
Save ==
    /\ "forget" \in Faults /\ earlier = {}
    /\ earlier' = {state}
    /\ did' = <<"save">>
    /\ UNCHANGED <<now, state, writes, stale, asked, open, wire, answers, belief, greatest, rose, once>>

\* The store falls back. Rule "fence": in its new life it grants nothing until all leases
\* have ended that may be missing. Rule "floor of a life": a life's tokens begin above
\* all of the lives before.
Forget ==
    /\ "forget" \in Faults /\ state.life < MaxLives
    /\ \E s \in earlier :
        state' = [s EXCEPT !.life = state.life + 1,
                           !.floor = IF On("floor of a life") THEN greatest ELSE @,
                           !.fence = IF On("fence") THEN now + Term ELSE @]
    /\ earlier' = {}
    /\ did' = <<"forget">>
    /\ UNCHANGED <<now, writes, stale, asked, open, wire, answers, belief, greatest, rose, once>>

-----------------------------------------------------------------------------
Next ==
    \/ Tick
    \/ \E h \in Host :
        \/ \E op \in {"acquire", "renew", "release"} : Ask(h, op)
        \/ Again(h)
        \/ GiveUp(h)
        \/ Discard(h)
        \/ \E a \in answers : Receive(h, a)
    \/ \E m \in wire : Commit(m) \/ Repeat(m)
    \/ Look
    \/ Delete
    \/ Save
    \/ Forget

Spec == Init /\ [][Next]_vars

\* No two hosts rely on the lock at once, each by its own deadline.
OneHolder == \A g, h \in Host : (Believes(g) /\ Believes(h)) => g = h

\* Tokens strictly increase.
TokensRise == rose

\* No acquire and no renewal is carried out again as long as fewer than Memory others were
\* carried out in between.
Once == once

\* The store does not refuse what it has carried out: neither the acquire of the lease that
\* lives, nor a renewal of it, nor a release, with fewer than Memory others in between.
Answered ==
    \A m \in wire :
        CASE m.op = "acquire" -> Active(state) /\ state.rec.request = m.number => Repeats(m)
          [] m.op = "renew" -> Active(state) /\ state.rec.token = m.token /\ Has(state.rec.latest, m.number) => Repeats(m)
          [] OTHER -> m.token # 0 /\ Has(state.rec.freed, m.number) => Repeats(m)
=============================================================================
