-- Functions for kazahana IDs, PostgreSQL 14 and later. {{About}}
-- Run the whole text again to replace them, for example after a change of bit_seq.
-- PostgreSQL looks up the names in a RETURN once, now: a restore, and each session, may have another search_path.

-- The time in which the ID was made, in Unix milliseconds.
CREATE OR REPLACE FUNCTION kazahana_time_ms(id bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (id >> {{LowBits}}) + ({{EpochMS}});

-- The same as a timestamp. Days and milliseconds are added apart, because a double holds no long time exactly.
CREATE OR REPLACE FUNCTION kazahana_time(id bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (timestamp '{{Epoch}}' + (id >> {{LowBits}}) / 86400000 * interval '1 day'
	+ (id >> {{LowBits}}) % 86400000 * interval '1 millisecond') AT TIME ZONE 'UTC';

-- The smallest ID of an interval that begins at from_time; NULL after the layout's time has run out.
CREATE OR REPLACE FUNCTION kazahana_min_id(from_time timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT
RETURN (SELECT CASE WHEN ms < {{Span}} THEN ms::bigint << {{LowBits}} END
	FROM (SELECT greatest(round(extract(epoch FROM date_trunc('milliseconds', from_time AT TIME ZONE 'UTC')) * 1000)
		- ({{EpochMS}}), 0) AS ms) AS x);

-- The largest ID of an interval that ends before until_time; -1 before the epoch.
CREATE OR REPLACE FUNCTION kazahana_max_id(until_time timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT
RETURN (SELECT (ms::bigint - 1) << {{LowBits}} | {{MaxLow}}
	FROM (SELECT least(greatest(round(extract(epoch FROM date_trunc('milliseconds',
		until_time AT TIME ZONE 'UTC' + interval '999 microseconds')) * 1000) - ({{EpochMS}}), 0), {{Span}}) AS ms) AS x);

-- The machine ID. A fallback ID has that of the last lease, or a random one.
CREATE OR REPLACE FUNCTION kazahana_machine_id(id bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN id >> {{BitSeq}} & {{MaxMachineID}};

-- The number within the millisecond and the machine ID.
CREATE OR REPLACE FUNCTION kazahana_sequence(id bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN id & {{MaxSequence}};

-- Whether the ID was made without a lease.
CREATE OR REPLACE FUNCTION kazahana_is_fallback(id bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN id & {{FallbackBit}} <> 0;

-- What pg_partman calls a time encoder and a time decoder; both take NULL.
CREATE OR REPLACE FUNCTION kazahana_time_encoder(ts timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN kazahana_min_id(ts);

CREATE OR REPLACE FUNCTION kazahana_time_decoder(id bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN kazahana_time(id);

CREATE OR REPLACE FUNCTION kazahana_time_decoder(id text) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN kazahana_time(id::bigint);
