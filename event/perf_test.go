package event

import "testing"

// TestPerfProbe takes definitions as `perf probe` writes them (synthesize_probe_trace_command in tools/perf/util/probe-event.c, and
// probe-file.c, of Linux 6.1). Those with a file were printed by perf probe -D.
func TestPerfProbe(t *testing.T) {
	for _, c := range []struct{ in, want string }{ // want: as a listing has it; "": the same
		{"p:probe_p/area /tmp/p:0x1169", ""},
		{"p:probe_p/area /tmp/p:0x1169 p=%di:x64 n=%si:s32 c=%dx:x8 s=%cx:x64 u=%r8:x64", ""},
		{"p:probe_p/area /tmp/p:0x1169 total=@total+0:s32 x=@origin+0:s32", ""},
		{"p:probe_p/area /tmp/p:0x1169 n_x32=%si:x32 u_u8=%r8:u8 c_char=%dx:char", ""},
		{"r:probe_p/area__return /tmp/p:0x1169 $retval", "r:probe_p/area__return /tmp/p:0x1169 arg1=$retval"},
		{
			"p:probe_p/area /tmp/p:0x1169 %di %si:u32 $stack $stack1 $comm",
			"p:probe_p/area /tmp/p:0x1169 arg1=%di arg2=%si:u32 arg3=$stack arg4=$stack1 arg5=$comm",
		},
		{"p:probe_p/area /tmp/p:0x1169 name=+8(%di):s8", ""},
		{"p:probe_p/area /tmp/p:0x1169 s_ustring=+0(%cx):ustring text=+0(+24(%di)):string", ""},
		{"p:probe_p/area /tmp/p:0x1169 s_symbol=%cx:symbol", ""},
		{"p:probe_libc/malloc /usr/lib/x86_64-linux-gnu/libc.so.6:0x9c2e0", ""},
		// The kernel's: SYM+OFFSET, in decimal, with + also for 0.
		{"p:probe/do_sys_open do_sys_open+0 dfd=%di:s32 filename=+0(%si):string", "p:probe/do_sys_open do_sys_open dfd=%di:s32 filename=+0(%si):string"},
		{"p:probe/do_sys_open _text+2437152", ""},
		{"p:probe/do_sys_open _text+2437152 filename=+u0(%si):string mode=%cx:x16 how=+u8(+u0(%dx)):x64", ""},
		{"p:probe/schedule_L10 schedule+74 tsk=%bx:x64 state=+24(%bx):s64 on_cpu=-8(%bp):s32", ""},
		{"r:probe/vfs_read__return vfs_read+0 arg1=$retval", "r:probe/vfs_read__return vfs_read arg1=$retval"},
		{"r16:probe/vfs_read__return _text+3178720 $retval:s64", "r16:probe/vfs_read__return _text+3178720 arg1=$retval:s64"},
		{"p:probe/nfs_open nfs:nfs_open+0 inode=%di:x64", "p:probe/nfs_open nfs:nfs_open inode=%di:x64"},
		{"p:probe/abs_ffffffff81234560 0xffffffff81234560", ""},
		{"p:probe/abs_c0201000 nfs:0xc0201000", ""},
		{"p:probe/f f+12 flag=+24(%di):b5@0/32 total=@jiffies+0:u64 field=@init_task+48:x32 below=@init_task-8:u8", ""},
		{"p:probe/f f+12 const=\\5:s32 e=+4(+0(@pt+16)):s16[3] many=+0(%di):string[2]", ""},
		{"-:probe/do_sys_open", ""},
		{"-:probe_p/area__return", ""},
	} {
		if c.want == "" {
			c.want = c.in
		}
		d, err := Parse(c.in)
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		if got := d.String(); got != c.want {
			t.Errorf("%s: listed as %s, want %s", c.in, got, c.want)
		}
		again, err := Parse(d.String())
		if err != nil || again.String() != c.want {
			t.Errorf("%s: listed as %s, which reads as %v, %v", c.in, d, again, err)
		}
	}
	// A counter of a marker of SystemTap, which uprobe_events takes and kprobe_events does not; a type as part of a name.
	for in, code := range map[string]Code{
		"p:sdt_libc/setjmp /usr/lib/libc.so.6:0x3c4a5(0x1f2e40) arg1=%di:u64": BadRefcnt,
		"p:probe_p/area /tmp/p:0x1169 u_b4@2/32=%r8:b4@2/32":                  BadArgName,
	} {
		if d, err := Parse(in); !HasCode(err, code) {
			t.Errorf("%s: %v, %v, want %s", in, d, err, code.Text())
		}
	}
}
