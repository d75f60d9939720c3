package embed

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// UUIDs makes UUIDs, which need neither Open nor a machine ID: chance keeps them apart.
type UUIDs struct {
	// Version is 7, for UUIDs that sort by their time in ms, or 4, for random ones; 0 is 7.
	Version int
}

// NextString returns a UUID. Its error is ErrInvalidParams for another version.
func (u UUIDs) NextString(context.Context) (string, error) {
	var id uuid.UUID
	var err error
	switch u.Version {
	case 4:
		id, err = uuid.NewRandom()
	case 0, 7:
		id, err = uuid.NewV7()
	default:
		return "", fmt.Errorf("%w: UUID version %d: there are 4 and 7", ErrInvalidParams, u.Version)
	}
	return id.String(), err
}
