package event

import (
	"strconv"
	"strings"
)

// maxFilterCPUs bounds the CPUs that a list may name.
const maxFilterCPUs = 8192

// parseCPUList reads numbers and ranges of numbers, between commas.
func parseCPUList(list string) ([]bool, bool) {
	if strings.TrimSpace(list) == "" {
		return nil, list != ""
	}
	var out []bool
	for part := range strings.SplitSeq(list, ",") {
		a, b, ranged := strings.Cut(strings.TrimSpace(part), "-")
		lo, err := strconv.ParseUint(a, 10, 32)
		hi := lo
		if err == nil && ranged {
			hi, err = strconv.ParseUint(b, 10, 32)
		}
		if err != nil || lo > hi || hi >= maxFilterCPUs {
			return nil, false
		}
		for uint64(len(out)) <= hi {
			out = append(out, false)
		}
		for i := lo; i <= hi; i++ {
			out[i] = true
		}
	}
	return out, true
}

// parseFilterNumber reads a number as the kernel's kstrtoull and kstrtoll do: decimal, 0x, or octal behind a 0.
func parseFilterNumber(s string, signed bool) (uint64, bool) {
	digits, neg := strings.CutPrefix(s, "-")
	base := 10
	switch {
	case len(digits) > 2 && (digits[:2] == "0x" || digits[:2] == "0X"):
		base, digits = 16, digits[2:]
	case len(digits) > 1 && digits[0] == '0':
		base, digits = 8, digits[1:]
	}
	v, err := strconv.ParseUint(digits, base, 64)
	switch {
	case err != nil, neg && !signed, signed && !neg && v > 1<<63-1, neg && v > 1<<63:
		return 0, false
	case neg:
		return -v, true
	}
	return v, true
}
