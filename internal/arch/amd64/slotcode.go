package amd64

import (
	"fmt"

	"kprobes.dev/kprobes/internal/arch"
)

// SlotCode is all generated code of handlers that run in line: a gate for each kind of them, and what they call.
type SlotCode struct {
	Code   []byte
	Run    *SlotRuntime
	Faults []FaultEntry // of its reads that may fault

	gates [SlotKinds][2][SlotUses]SlotGateAt
}

// SlotGateAt is a gate that stands in memory, and where a thread goes on that abandons its handler.
type SlotGateAt struct{ Addr, Abandon uint64 }

// SlotCodeMost is how many bytes of code there are at most.
const SlotCodeMost = 32 << 10

// NewSlotCode generates it at addr. Of env, what a gate is for is not looked at.
func NewSlotCode(addr uint64, env SlotRuntimeEnv, w *arch.CodegenEnv) (*SlotCode, error) {
	c := new(SlotCode)
	at := func() uint64 {
		for len(c.Code)%64 != 0 {
			c.Code = append(c.Code, 0)
		}
		return addr + uint64(len(c.Code))
	}
	for kind := range SlotKinds {
		for i := range 2 {
			for use := range SlotUses {
				e, start := env.SlotGateEnv, at()
				e.Vectors, e.Use = i == 1, use
				g, err := NewSlotGate(start, kind, e)
				if err != nil {
					return nil, err
				}
				c.gates[kind][i][use] = SlotGateAt{start, g.Abandon}
				c.Faults = append(c.Faults, g.Faults...)
				c.Code = append(c.Code, g.Code...)
			}
		}
	}
	var err error
	if c.Run, err = NewSlotRuntime(at(), env, w); err != nil {
		return nil, err
	}
	if c.Code = append(c.Code, c.Run.Code...); len(c.Code) > SlotCodeMost {
		return nil, fmt.Errorf("the code of handlers in line has %d bytes, more than %d", len(c.Code), SlotCodeMost)
	}
	c.Faults = append(c.Faults, c.Run.Faults...)
	return c, nil
}

// Gate is the gate of a handler of a kind, which may use XMM0 to XMM15 if vectors is set, and does that with its registers.
func (c *SlotCode) Gate(kind SlotKind, vectors bool, use SlotUse) SlotGateAt {
	i := 0
	if vectors {
		i = 1
	}
	return c.gates[kind][i][use]
}
