package storage_test

import (
	"testing"

	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/placement/storage/storagetest"
)

func TestConformance(t *testing.T) {
	memory := storage.NewMemory()
	storagetest.Run(t, storagetest.Backend{Open: func(testing.TB) storage.Storage { return memory }})
}
