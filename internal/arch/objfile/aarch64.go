package objfile

// aarch64 is arm64 (ELF for the Arm 64-bit Architecture), as far as Go programs ask for it.
var aarch64 = Machine{
	ELF:      AArch64,
	Name:     "arm64",
	Relative: 1027, // R_AARCH64_RELATIVE
}
