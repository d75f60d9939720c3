-- release: ends a grant early, if the record still has the secret that the
-- caller has checked the signature with.
local rec = p and slot(tonumber(A.bit_seq), tonumber(A.id))
if not rec then return {'notfound'} end
if rec.secret ~= A.secret then return {'badsignature'} end
-- A release that took effect is not refused when it is repeated, whatever the
-- clock shows by then.
if rec.released then return {'ok'} end
local t, at, window = clock(), tonumber(A.timestamp_ms), tonumber(A.window_ms)
local last = A.at_end and at == rec.expired - 1
if not last and (at < t - window or at > t + window) then return {'skew'} end
-- Never later than the end before: an overlapping slot may have been
-- granted at that.
end_grant(p, rec, math.min(rec.till, math.max(at + 1, rec.created)))
return {'ok'}
