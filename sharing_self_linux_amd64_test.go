//go:build !race

package kprobes_test

import (
	"testing"

	"kprobes.dev/kprobes/internal/conformance"
)

func selfHome(t *testing.T) *home {
	return &home{
		core: ownCore(t), name: conformance.OwnSymbol,
		call: func(v uint64) uint64 { return conformance.CallOwn(conformance.Target, v) },
	}
}

func TestOwnSharing(t *testing.T) {
	t.Run("order", func(t *testing.T) { testOrder(t, selfHome(t)) })
	t.Run("thousand", func(t *testing.T) { testThousand(t, selfHome(t)) })
	t.Run("global", func(t *testing.T) { testGlobal(t, selfHome(t)) })
	t.Run("roll back", func(t *testing.T) { testRollBack(t, selfHome(t)) })
	t.Run("every instruction", func(t *testing.T) {
		testEveryInstruction(t, ownCore(t), selfPrefix+"selfPlain", func() uint64 {
			const n = 100000
			for i := range uint64(n) {
				if plainFn(i, 1) != 3*i+1 {
					t.Errorf("selfPlain(%d, 1)", i)
				}
			}
			return n
		})
	})
}
