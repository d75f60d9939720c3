-- Functions for kazahana IDs, MySQL and MariaDB. {{About}}
-- Run the whole text again to replace them, for example after a change of bit_seq. Times are DATETIME in UTC.

-- The time in which the ID was made, in Unix milliseconds.
DROP FUNCTION IF EXISTS kazahana_time_ms;
CREATE FUNCTION kazahana_time_ms(id BIGINT) RETURNS BIGINT DETERMINISTIC NO SQL SQL SECURITY INVOKER
RETURN CAST(id >> {{LowBits}} AS SIGNED) + ({{EpochMS}});

-- The same as a DATETIME; NULL after the year 9999.
DROP FUNCTION IF EXISTS kazahana_time;
CREATE FUNCTION kazahana_time(id BIGINT) RETURNS DATETIME(3) DETERMINISTIC NO SQL SQL SECURITY INVOKER
RETURN TIMESTAMPADD(MICROSECOND, (id >> {{LowBits}}) % 1000 * 1000,
	TIMESTAMPADD(SECOND, (id >> {{LowBits}}) DIV 1000, TIMESTAMP'{{Epoch}}'));

-- The smallest ID of an interval that begins at from_time; NULL after the layout's time has run out.
DROP FUNCTION IF EXISTS kazahana_min_id;
CREATE FUNCTION kazahana_min_id(from_time DATETIME(6)) RETURNS BIGINT DETERMINISTIC NO SQL SQL SECURITY INVOKER
RETURN CASE WHEN TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'{{Epoch}}', from_time) DIV 1000 < {{Span}}
	THEN CAST(GREATEST(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'{{Epoch}}', from_time) DIV 1000, 0) << {{LowBits}} AS SIGNED) END;

-- The largest ID of an interval that ends before until_time; -1 before the epoch.
DROP FUNCTION IF EXISTS kazahana_max_id;
CREATE FUNCTION kazahana_max_id(until_time DATETIME(6)) RETURNS BIGINT DETERMINISTIC NO SQL SQL SECURITY INVOKER
RETURN CASE WHEN TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'{{Epoch}}', until_time) <= 0 THEN -1
	ELSE CAST((LEAST((TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'{{Epoch}}', until_time) + 999) DIV 1000, {{Span}}) - 1) << {{LowBits}}
		| {{MaxLow}} AS SIGNED) END;

-- The machine ID. A fallback ID has that of the last lease, or a random one.
DROP FUNCTION IF EXISTS kazahana_machine_id;
CREATE FUNCTION kazahana_machine_id(id BIGINT) RETURNS BIGINT DETERMINISTIC NO SQL SQL SECURITY INVOKER
RETURN CAST(id >> {{BitSeq}} & {{MaxMachineID}} AS SIGNED);

-- The number within the millisecond and the machine ID.
DROP FUNCTION IF EXISTS kazahana_sequence;
CREATE FUNCTION kazahana_sequence(id BIGINT) RETURNS BIGINT DETERMINISTIC NO SQL SQL SECURITY INVOKER
RETURN CAST(id & {{MaxSequence}} AS SIGNED);

-- Whether the ID was made without a lease.
DROP FUNCTION IF EXISTS kazahana_is_fallback;
CREATE FUNCTION kazahana_is_fallback(id BIGINT) RETURNS BOOLEAN DETERMINISTIC NO SQL SQL SECURITY INVOKER
RETURN id & {{FallbackBit}} <> 0;
