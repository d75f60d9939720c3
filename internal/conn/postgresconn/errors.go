package postgresconn

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/kazahana/kazahana/internal/conn/connurl"
)

// ErrUnconfirmed: the server committed, and no longer waits for a standby.
var ErrUnconfirmed = errors.New("the server committed it with a warning: whether a standby has it is not known")

// ErrUnanswered: the commit was sent and not answered. Whether it was carried out is not known.
var ErrUnanswered = errors.New("the commit was not answered")

const undefinedTable = "42P01"

// hints is what to do about the server's errors, by the beginning of their code.
var hints = []struct{ code, hint string }{
	{"28P01", "the user name or password is wrong"},
	{"28", "the server does not let this user in from here: check its pg_hba.conf, the user name, and sslmode="},
	{"3D000", "there is no such database: create it, or name another after the slash"},
	{"42501", "the user lacks a right: docs/providers/postgres.md has the statements that grant it"},
	{"3F000", "the schema does not exist, and the user may not create it"},
	{"53300", "the server has no free connection (max_connections of the server): use a lease server in front of it, or lower max_connections="},
	{"53100", "the server's disk is full"},
	{"57P03", "the server is starting up or shutting down; it will be back"},
	{"57P01", "the server is shutting down, or an administrator ended the session"},
	{"57P05", "the server ended a session that had been idle"},
	{"25P03", "this process stopped in the middle of a transaction for longer than " + idleInTransaction},
	{"25006", "the server takes no writes: it is a standby, or default_transaction_read_only is on"},
	{"26000", "a pool of connections is in between that gives each transaction another session (PgBouncer with pool_mode=transaction): it needs pool_mode=session"},
	{"42P05", "a pool of connections is in between that gives each transaction another session (PgBouncer with pool_mode=transaction): it needs pool_mode=session"},
	{undefinedTable, "tables are missing"},
	{"42703", "the tables are of another version of kazahanad, or of another program: choose another schema="},
	{"40P01", "the server found a deadlock"},
}

// explain puts where and what to do in front of the server's own words.
func (c Config) explain(err error) error { return connurl.Explain(c.Place(), hintFor(err), err) }

func hintFor(err error) string {
	var said *pgconn.PgError
	switch {
	case errors.As(err, &said):
		for _, h := range hints {
			if strings.HasPrefix(said.Code, h.code) {
				return h.hint
			}
		}
		return ""
	case err != nil && strings.Contains(err.Error(), "server refused TLS"):
		return "the server does not speak TLS: enable it there (ssl=on), or write sslmode=disable where nobody can listen in between"
	}
	return connurl.Hint(err)
}

// hasCode reports whether the server said this.
func hasCode(err error, code string) bool {
	var said *pgconn.PgError
	return errors.As(err, &said) && said.Code == code
}
