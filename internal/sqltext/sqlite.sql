-- Expressions for kazahana IDs, SQLite. {{About}}
-- SQLite has no CREATE FUNCTION. Put your column or a parameter for :id; :from_time and :until_time are times that SQLite
-- reads, in UTC and whole milliseconds ('2026-11-01', '2026-11-01 09:00:00.250').

-- kazahana_time_ms: the time in which the ID was made, in Unix milliseconds.
SELECT (:id >> {{LowBits}}) + ({{EpochMS}});

-- kazahana_time: the same as text; NULL after the year 9999.
SELECT strftime('%Y-%m-%dT%H:%M:%fZ', ((:id >> {{LowBits}}) + ({{EpochMS}})) / 1000.0, 'unixepoch');

-- kazahana_min_id: the smallest ID of an interval that begins at :from_time; NULL after the layout's time has run out.
SELECT iif(strftime('%s', :from_time) * 1000 + substr(strftime('%f', :from_time), 4) - ({{EpochMS}}) < {{Span}},
	max(strftime('%s', :from_time) * 1000 + substr(strftime('%f', :from_time), 4) - ({{EpochMS}}), 0) << {{LowBits}}, NULL);

-- kazahana_max_id: the largest ID of an interval that ends before :until_time; -1 before the epoch.
SELECT (min(max(strftime('%s', :until_time) * 1000 + substr(strftime('%f', :until_time), 4) - ({{EpochMS}}), 0), {{Span}}) - 1)
	<< {{LowBits}} | {{MaxLow}};

-- kazahana_machine_id: the machine ID. A fallback ID has that of the last lease, or a random one.
SELECT :id >> {{BitSeq}} & {{MaxMachineID}};

-- kazahana_sequence: the number within the millisecond and the machine ID.
SELECT :id & {{MaxSequence}};

-- kazahana_is_fallback: 1 if the ID was made without a lease.
SELECT (:id & {{FallbackBit}}) <> 0;
