package trace

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// taken says whether the records of a CPU go to the buffer.
func (in *Instance) taken(cpu int) bool {
	skip := in.skip.Load()
	return skip == nil || cpu >= len(*skip) || !(*skip)[cpu]
}

// CPUMask is the CPUs whose records go to the buffer, as tracing_cpumask shows them: hexadecimal digits, a bit for each CPU, the lowest for
// CPU 0, with a comma between each 8 digits.
func (in *Instance) CPUMask() string { return maskText(in.taken, in.cpus()) }

func maskText(has func(cpu int) bool, cpus int) string {
	var b strings.Builder
	for word := (cpus - 1) / 32; word >= 0; word-- {
		var bits uint32
		n := min(cpus-32*word, 32)
		for i := range n {
			if has(32*word + i) {
				bits |= 1 << i
			}
		}
		fmt.Fprintf(&b, "%0*x", (n+3)/4, bits)
		if word > 0 {
			b.WriteByte(',')
		}
	}
	return b.String()
}

// SetCPUMask says which CPUs' records go to the buffer, in the form of CPUMask; triggers act on all hits. What was hit before goes as it was
// said then. EINVAL: it is no such mask; EOVERFLOW: it has a CPU that is not there.
func (in *Instance) SetCPUMask(mask string) error {
	skip, err := parseMask(mask, in.cpus())
	if err != nil {
		return err
	}
	in.drain()
	in.skip.Store(&skip)
	return nil
}

// parseMask gives the CPUs that are not in a mask, as the kernel's bitmap_parse reads it.
func parseMask(mask string, cpus int) ([]bool, error) {
	skip := make([]bool, cpus)
	for i := range skip {
		skip[i] = true
	}
	mask, _, _ = strings.Cut(mask, "\n")
	words := strings.FieldsFunc(mask, func(r rune) bool { return r == ',' || r >= '\t' && r <= '\r' || r == ' ' })
	for i, w := range words {
		if strings.Trim(w, "0123456789abcdefABCDEF") != "" {
			return nil, errno.Errorf(unix.EINVAL, "%.40q is no mask of CPUs: hexadecimal digits are taken, with a comma before each last 8", mask)
		}
		bits, err := strconv.ParseUint(w, 16, 32)
		if err != nil || len(w) > 8 {
			return nil, errno.Errorf(unix.EOVERFLOW, "%.40q: between commas stand at most 8 digits", w)
		}
		first := 32 * (len(words) - 1 - i)
		for bit := range 32 {
			switch cpu := first + bit; {
			case bits>>bit&1 == 0:
			case cpu >= len(skip):
				return nil, errno.Errorf(unix.EOVERFLOW, "there is no CPU %d: there are %d", cpu, len(skip))
			default:
				skip[cpu] = false
			}
		}
	}
	return skip, nil
}
