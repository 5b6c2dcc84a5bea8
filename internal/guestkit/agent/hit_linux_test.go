package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHit makes the calls here.
func TestHit(t *testing.T) {
	file := t.TempDir() + "/made"
	for _, c := range []struct {
		args string
		want Counts
	}{
		{"open 20 0 /no/such 0 0", Counts{Calls: 20, Failed: 20, Errno: int(unix.ENOENT)}},
		{"open 20 0 " + file + " 0x41 0600", Counts{Calls: 20, OK: 20}},
		{"read 5000 0", Counts{Calls: 5000, OK: 5000, Bytes: 4096*4097/2 + 904*905/2}},
		{"tcp 30 0", Counts{Calls: 30, OK: 30, Bytes: 30 * messageSize}},
	} {
		var out bytes.Buffer
		if err := Hit(strings.Fields(c.args), &out); err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		var got Counts
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatalf("%s: %q: %v", c.args, out.String(), err)
		}
		if got.TID == 0 || got.TID == os.Getpid() {
			t.Errorf("%s: made by thread %d of process %d", c.args, got.TID, os.Getpid())
		}
		got.TID = 0
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.args, got, c.want)
		}
	}
	for _, args := range []string{"", "open 1 0", "read x 0", "read 1 256", "read 1 0 more", "sleep 1 0", "open 1 0 /x y 0"} {
		if err := Hit(strings.Fields(args), new(bytes.Buffer)); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%q: %v, want EINVAL", args, err)
		}
	}
}
