package amd64

// What a stop of the own process reads of a slot whose key is not 0: byte offsets. It can call nothing that allocates.
const (
	SlotAtomic = slotAtomic // 32 bits; 0: the start or the end of a module has the slot, and there is nothing else in it
	SlotBackTo = slotBackTo // where the gate goes back to
	SlotDescAt = slotDescAt // the handler's descriptor
	SlotRuns   = slotRuns   // how many handlers have run in it
	SlotSP     = slotPtRegs + 8*ptSP
	SlotBP     = slotPtRegs + 8*4 // ptWords[RBP]

	SlotDescHandler = slotDescHandler // where a descriptor has the handler's address
	SlotDescIP      = slotDescIP      // and that of the instruction at which it is called
)
