package native

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/amd64"
)

// Features are those of this machine's CPU that all generated code may use (arch.CodegenEnv.Features), as the kernel
// shows them.
func Features() uint64 {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return 0
	}
	_, flags, _ := strings.Cut(string(b), "\nflags")
	flags, _, _ = strings.Cut(flags, "\n")
	if strings.Contains(flags+" ", " rdpid ") {
		return amd64.FeatureRDPID
	}
	return 0
}

// ThreadFeatures are those that code may use which reads thread pointers.
func ThreadFeatures() uint64 {
	const atHWCAP2, fsgsbase = 26, 1 << 1 // HWCAP2_FSGSBASE: Linux 5.9
	vs, err := unix.Auxv()
	if err != nil {
		return 0
	}
	for _, v := range vs {
		if v[0] == atHWCAP2 && v[1]&fsgsbase != 0 {
			return amd64.FeatureFSGSBase
		}
	}
	return 0
}

// ReadsBase says whether programs may read their thread pointers, which handlers in line do.
func ReadsBase() bool { return ThreadFeatures()&amd64.FeatureFSGSBase != 0 }
