package collectortest

import (
	"context"
	"testing"
)

// TestFleet has the Collector check the configuration that users copy.
func TestFleet(t *testing.T) {
	if err := newCollector(t, "../../../examples/fleet/collector.yaml").DryRun(context.Background()); err != nil {
		t.Error(err)
	}
}
