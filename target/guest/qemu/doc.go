// Package qemu is a running QEMU system emulator as a machine: its RAM, mapped from the
// shared file that backs it; its monitor (QMP); its vCPUs through the gdb remote protocol.
// It knows nothing of what runs in the machine. The protocols' quirks are those of QEMU 7.2;
// only the "pc" and "q35" machines of qemu-system-x86_64 are known.
package qemu

// Flags tells what a QEMU must be started with to be probed, for people who start theirs by
// themselves. SIZE is the size that -m gives.
func Flags() string {
	return `-machine pc,memory-backend=mem (or q35)
-object memory-backend-file,id=mem,size=SIZE,mem-path=/dev/shm/RAM,share=on
-qmp unix:/DIR/qmp.sock,server=on,wait=off
-gdb unix:/DIR/gdb.sock,server=on,wait=off
and for a ring larger than 256 KB:
-object memory-backend-file,id=ring,size=32M,mem-path=/dev/shm/RING,share=on
-device ivshmem-plain,memdev=ring
`
}
