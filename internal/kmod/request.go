package kmod

// What a module's start and end ask the tracer for (linux/kp_runtime.h).
const (
	RegisterKprobe = 1 + iota // of an array of n pointers, as the next five
	UnregisterKprobe
	RegisterKretprobe
	UnregisterKretprobe
	RegisterJprobe
	UnregisterJprobe
	EnableKprobe // of one
	DisableKprobe
	LookupName // of a name, a string
)
