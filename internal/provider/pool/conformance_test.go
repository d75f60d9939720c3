package pool_test

import (
	"testing"

	"github.com/kazahana/kazahana/internal/provider/providertest"
)

// Seeds 000-7.3-1 and 003-3.2-5.
func TestConformance(t *testing.T) { providertest.Run(t, providertest.Memory) }
