package postgres

import "github.com/kazahana/kazahana/internal/record"

// ListSQL is the statement of List.
func ListSQL(area record.Area) string { return statementsOf(area).list }
