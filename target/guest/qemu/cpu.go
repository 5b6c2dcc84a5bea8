package qemu

import "kprobes.dev/kprobes/internal/arch/amd64/amd64gdb"

// CPU is the registers of a stopped vCPU.
type CPU = amd64gdb.CPU
