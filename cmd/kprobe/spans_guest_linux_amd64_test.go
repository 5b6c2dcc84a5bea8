package main

import (
	"fmt"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"
)

// spans has a call of the kernel in the one that it is in, with arguments of its entry, its result and its status, while other tasks call
// them too.
func (v *verbs) spans(t *testing.T) {
	const calls = 300
	tr := v.startCommand(t, 4, v.command(t, "spans", "--comm", "hit", "__x64_sys_openat", "r:open do_sys_openat2 dfd=%di:s32 name=+0(%si):ustring ret=$retval:s32", "--error", "ret < 0"))
	v.g.Hit("openname", calls, 1, "/no/such", "0", "0")
	r := tr.end(t, unix.SIGINT)
	both := regexp.MustCompile(`(?m)^ *\d+\.\d{6} +\d+\.\d{3} us  __x64_sys_openat\n *\d+\.\d{6} +\d+\.\d{3} us    open dfd=-100 name="/no/such" ret=-2  error: ret < 0$`)
	if n := len(both.FindAllString(r.out, -1)); r.status != 0 || n != calls {
		t.Errorf("%d spans of %d calls: %+.3000v", n, calls, r)
	}
	sum := regexp.MustCompile(`(?m)^spans=\d+ errors=(\d+) left=0 unsampled=0 unjoined=0 unfollowed=0 active=0$`).FindStringSubmatch(r.errs)
	if sum == nil || sum[1] != fmt.Sprint(calls) {
		t.Errorf("summary: %s", r.errs)
	}
	tr = v.startCommand(t, 1, v.command(t, "spans", "--errors", "--comm", "hit", "do_sys_openat2 ret=$retval:s32", "--error", "ret == -2"))
	v.g.Hit("openname", calls, 0, "/no/such", "0", "0")
	r = tr.end(t, unix.SIGINT)
	if n := len(regexp.MustCompile(`(?m)us  do_sys_openat2 ret=-2  error: ret == -2$`).FindAllString(r.out, -1)); r.status != 0 || n != calls {
		t.Errorf("--errors: %d spans of %d calls: %+.3000v", n, calls, r)
	}
	v.empty(t)
}
