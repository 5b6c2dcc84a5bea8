package metrics

import (
	"strconv"
	"strings"
	"time"
)

// Number is a value: a whole number that is written with all its digits, or a time in seconds.
type Number struct {
	whole   uint64
	signed  bool // whole is an int64 in two's complement
	seconds float64
	time    bool
}

// Uint is a whole number.
func Uint(n uint64) Number { return Number{whole: n} }

// Int is a whole number with a sign.
func Int(n int64) Number { return Number{whole: uint64(n), signed: true} }

// Time is a number of units of time, which is written in seconds.
func Time(n Number, unit time.Duration) Number {
	f := float64(n.whole)
	if n.signed {
		f = float64(int64(n.whole))
	}
	return Number{seconds: f / float64(time.Second/unit), time: true}
}

// In is a number in seconds if the unit of time is not 0, else as it is.
func (n Number) In(unit time.Duration) Number {
	if unit == 0 {
		return n
	}
	return Time(n, unit)
}

// append appends the number. point asks for the form of OpenMetrics for bounds, in which a whole number has a point too.
func (n Number) append(dst []byte, point bool) []byte {
	at := len(dst)
	switch {
	case n.time:
		dst = strconv.AppendFloat(dst, n.seconds, 'g', -1, 64)
	case n.signed:
		dst = strconv.AppendInt(dst, int64(n.whole), 10)
	default:
		dst = strconv.AppendUint(dst, n.whole, 10)
	}
	if point && !strings.ContainsAny(string(dst[at:]), ".e") {
		dst = append(dst, ".0"...)
	}
	return dst
}
