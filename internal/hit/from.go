package hit

// From says of which target a hit is, where hits of several are read together: what SetFrom has noted; nil: there is one target.
func From(h *Hit) any { return h.from }

// SetFrom notes of which target a hit is. Copies of the hit know it too.
func SetFrom(h *Hit, from any) { h.from = from }
