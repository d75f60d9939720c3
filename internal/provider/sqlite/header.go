package sqlite

// Header is what the header of a lease file says of it: the application ID, and
// the latest schema version that this program knows. Versions from 1 on are
// brought up to it.
func Header() (id, version int32) {
	return kind.ApplicationID, int32(1 + len(kind.Migrations))
}
