# Small cases of plain shell for the files of tracefs. Busybox's shell and commands run them, so that messages are alike everywhere.
#
#	conform.sh ROOT [SECTION...]
#
# ROOT is a tracefs, or a mount of kprobe. The environment has HIT, a command: "$HIT chown 3 0" has the target call
# do_fchownat(AT_FDCWD, "/no/such", 7, 8, AT_SYMLINK_NOFOLLOW) three times on CPU 0, "$HIT sync 1 0" ksys_sync() once. Each command is printed behind a $, then what it prints,
# errors too.
cd "$1" || exit 1
shift

# t runs a command in a shell of its own.
t() {
	printf '$ %s\n' "$1"
	(eval "$1") 2>&1
}

hit() { $HIT "$1" "$2" 0 >/dev/null; }

# put writes text by one write(2), with truncation; add without.
put() {
	f=$1
	shift
	printf "$@" >"$f"
}
add() { printf "$2" >>"$1"; }

# last is the newest entry of error_log, without its time; then the log is cleared.
last() {
	tail -n "${1:-3}" error_log | sed 's/^\[ *[0-9.]*\]/[]/'
	true >error_log
}

# chosen is set_event as far as it is about the events of these cases.
chosen() { grep -e '^[gh]:' "${1:-set_event}"; }

# some is what comes out of a file that ends never.
some() { (
	timeout 2 cat "$@"
	true
); } 2>/dev/null

# lines are the records of trace, without its head.
lines() { grep -v '^#' "${1:-trace}"; }

# clean takes away what a section has made.
clean() {
	for i in instances/*; do
		[ -d "$i" ] || continue
		echo 0 >"$i/events/enable"
		rmdir "$i"
	done
	for f in events/g/*/trigger events/h/*/trigger; do
		[ -e "$f" ] || continue
		while read -r l; do
			case $l in
			\#*) ;;
			*) printf '!%s\n' "${l%%:unlimited*}" >>"$f" ;;
			esac
		done <"$f"
	done
	for d in events/g events/h events/kprobes events/uprobes events/synthetic; do
		[ -d "$d" ] && echo 0 >"$d/enable"
	done
	for f in synthetic_events kprobe_events uprobe_events dynamic_events trace error_log set_event set_event_pid; do
		[ -e "$f" ] && true >"$f"
	done
	echo 1 >tracing_on
	echo 0 >events/enable
} >/dev/null 2>&1

s_names() {
	t 'ls'
	t 'ls kprobes sys'
	t 'stat -c "%a %F %n" *'
	t 'ls events | grep -x -e enable -e g -e h -e "header_.*"'
	put kprobe_events 'p:g/e do_fchownat\nr:g/r do_fchownat\n'
	t 'ls events/g events/g/e'
	t 'stat -c "%a %F %n" events events/enable events/g events/g/* events/g/e/*'
	t 'ls per_cpu/cpu0'
	t 'stat -c "%a %F %n" per_cpu per_cpu/cpu0 per_cpu/cpu0/*'
	t 'ls options'
	t 'stat -c "%a %F %n" options options/overwrite instances'
	t 'mkdir instances/x; ls instances; ls instances/x'
	t 'ls instances/x/events/g instances/x/events/g/e instances/x/per_cpu/cpu0'
	t 'ls instances/x/options'
	t 'cd instances/x; stat -c "%a %F %n" *'
	t 'rmdir instances/x; ls instances'
	t 'stat -c "%s %n" trace kprobe_events events/g/e/format'
	t 'touch new'
	t 'echo x > events/new'
	t 'mkdir new events/new events/g/new per_cpu/new options/new'
	t 'rm trace events/g/e/id'
	t 'rmdir events events/g events/g/e options instances'
	t 'mv trace x'
	t 'ln trace x'
	t 'ln -s trace x'
	t 'cat nosuch events/g/e/nosuch events/nosuch/enable events'
	t 'echo x > events/g/e/id; echo x > events/g/e/format; echo x > available_events; echo x > README'
}

s_first() {
	t 'cat trace'
	t 'cat tracing_on current_tracer'
	t 'cat available_tracers'
	t 'cat set_event set_event_pid'
	t 'cat set_event_notrace_pid'
	t 'cat trace_clock'
	t 'cat error_log'
	t 'cat kprobe_events uprobe_events'
	t 'cat synthetic_events'
	t 'cat dynamic_events'
	t 'cat kprobe_profile'
	t 'cat uprobe_profile'
	t 'cat buffer_size_kb'
	t 'cat buffer_total_size_kb'
	t 'cat buffer_percent'
	t 'cat buffer_subbuf_size_kb'
	t 'cat saved_cmdlines_size'
	t 'cat saved_tgids'
	t 'head -n 2 printk_formats'
	t 'cat snapshot'
	t 'cat trace_options'
	t 'for i in options/*; do echo "$i $(cat $i)"; done'
	t 'cat tracing_cpumask'
	t 'cat tracing_thresh tracing_max_latency'
	t 'cat timestamp_mode'
	t 'cat events/header_page'
	t 'cat events/header_event'
	t 'cat events/enable'
	t 'cat per_cpu/cpu0/stats'
	t 'cat per_cpu/cpu0/trace; cat per_cpu/cpu0/buffer_size_kb per_cpu/cpu0/snapshot'
	t 'some trace_pipe'
	t 'some per_cpu/cpu0/trace_pipe'
	t 'some per_cpu/cpu0/trace_pipe_raw | wc -c'
	t 'cat trace_marker; cat trace_marker_raw; cat free_buffer'
	t 'sed 1q README'
	t 'cat kprobes/list kprobes/enabled sys/debug/kprobes-optimization'
	t 'grep -x -e do_fchownat -e ksys_sync available_filter_functions'
	t 'cat events/g/enable'
}

s_define() {
	t 'echo "p:g/e do_fchownat" > kprobe_events; cat kprobe_events'
	t 'echo "r:g/r do_fchownat \$retval" >> kprobe_events; cat kprobe_events; cat dynamic_events'
	t 'echo "p:g/e do_fchownat" >> kprobe_events; last'
	t 'echo "p:g/e ksys_sync" >> kprobe_events; last'
	t 'echo "p:g/e do_fchownat a=%ax" >> kprobe_events; last; cat kprobe_events'
	t 'echo "r:g/e do_fchownat" >> kprobe_events; last'
	t 'cat events/g/e/id events/g/r/id | sed "s/[0-9][0-9]*/N/"'
	t 'echo "p do_fchownat" >> kprobe_events; echo "p do_fchownat+4" >> kprobe_events; echo "r do_fchownat" >> kprobe_events; echo "p:named ksys_sync" >> kprobe_events; cat kprobe_events; ls events/kprobes'
	t 'echo "-:g/e" >> kprobe_events; cat kprobe_events'
	t 'echo "-:g/e" >> kprobe_events; last'
	t 'echo "-:nosuch" >> kprobe_events; last'
	t 'echo "-:nosuch/named" >> kprobe_events; last'
	t 'echo "-:named" >> kprobe_events; cat kprobe_events'
	t 'echo "-:g/" >> kprobe_events; cat kprobe_events'
	t 'echo "-:kprobes/" >> kprobe_events; cat kprobe_events'
	t 'echo "-" >> kprobe_events; last'
	t 'echo "-:" >> kprobe_events; last'
	t 'echo "-e" >> kprobe_events; last'
	t 'echo "-:/" >> kprobe_events; last'
	t 'put kprobe_events "p:g/a do_fchownat\np:g/b ksys_sync\n"; cat kprobe_events'
	t 'put kprobe_events "p:g/a do_fchownat\np:g/b ksys_sync"; cat kprobe_events'
	t 'put kprobe_events "p:g/a do_fchownat\np:g/b nosuch\np:g/c ksys_sync\n"; cat kprobe_events; last'
	t 'put kprobe_events "# comment\n\np:g/a do_fchownat # more\n\n"; cat kprobe_events'
	t 'put kprobe_events "p:g/a do_fchownat\r\n"; cat kprobe_events; last'
	t 'put kprobe_events ""; cat kprobe_events'
	t 'echo > kprobe_events; cat kprobe_events'
	t ': > kprobe_events; cat kprobe_events'
	t 'printf "p:g/a do_fchownat\np:g/b ksys_sync\n" | dd of=kprobe_events bs=4 conv=notrunc 2>/dev/null; cat kprobe_events; last'
	t 'printf "p:g/a do_fchownat\np:g/b ksys_sync\n" | dd of=kprobe_events bs=20 conv=notrunc 2>/dev/null; cat kprobe_events'
	t ': > kprobe_events; exec 3>kprobe_events; echo p:g/a do_fchownat >&3; echo p:g/b ksys_sync >&3; exec 3>&-; cat kprobe_events'
	t 'put kprobe_events "p:g/a%065d do_fchownat\n" 1; last'
	t 'put kprobe_events "p:g/a%062d do_fchownat\n" 1; last; cat kprobe_events'
	t 'put kprobe_events "p:g/a do_fchownat %04100d\n" 1; last 1'
	t 'put kprobe_events "p:g/a do_fchownat\n#%09000d\np:g/b ksys_sync\n" 1; cat kprobe_events; last 1'
	t 'printf "p:g/a do_fchownat\0p:g/b ksys_sync\n" > kprobe_events; cat kprobe_events'
}

s_errors() {
	while read -r l; do
		t "echo '$l' > kprobe_events; last"
	done <<-'E'
		x
		q:g/e do_fchownat
		p
		p:
		p:g/e
		p:g/ do_fchownat
		p:/e do_fchownat
		p:g/e/f do_fchownat
		p:g-h/e do_fchownat
		p:g/e-f do_fchownat
		p:1g/e do_fchownat
		p:g/1e do_fchownat
		p:g.e do_fchownat
		pe do_fchownat
		p1:g/e do_fchownat
		r1:g/e do_fchownat
		r0:g/e do_fchownat
		r4097:g/e do_fchownat
		rx:g/e do_fchownat
		p:g/e nosuch
		p:g/e nosuch+4
		p:g/e do_fchownat+
		p:g/e do_fchownat+x
		p:g/e do_fchownat+99999
		p:g/e do_fchownat-4
		r:g/e do_fchownat+4
		p:g/e nomod:do_fchownat
		p:g/e do_fchownat%return
		p:g/e do_fchownat%nosuch
		p:g/e 0
		p:g/e 0x10
		p:g/e do_fchownat %nosuch
		p:g/e do_fchownat =%ax
		p:g/e do_fchownat a=
		p:g/e do_fchownat a=%ax a=%bx
		p:g/e do_fchownat 1a=%ax
		p:g/e do_fchownat a-b=%ax
		p:g/e do_fchownat common_pid=%ax
		p:g/e do_fchownat __probe_ip=%ax
		p:g/e do_fchownat a=%ax:nosuch
		p:g/e do_fchownat a=%ax:
		p:g/e do_fchownat a=%ax:string
		p:g/e do_fchownat a=%ax:u32[
		p:g/e do_fchownat a=%ax:u32[0]
		p:g/e do_fchownat a=+0(%ax):u32[65]
		p:g/e do_fchownat a=+0(%ax):u32[x]
		p:g/e do_fchownat a=%ax:u32[4]
		p:g/e do_fchownat a=+0(%ax
		p:g/e do_fchownat a=+x(%ax)
		p:g/e do_fchownat a=+0%ax
		p:g/e do_fchownat a=+0()
		p:g/e do_fchownat a=(%ax)
		p:g/e do_fchownat a=$nosuch
		p:g/e do_fchownat a=$retval
		p:g/e do_fchownat a=$stackx
		p:g/e do_fchownat a=$stack999999
		p:g/e do_fchownat a=$arg0
		p:g/e do_fchownat a=$arg
		p:g/e do_fchownat a=$argx
		p:g/e do_fchownat a=$comm:u8
		p:g/e do_fchownat a=@nosuchsym
		p:g/e do_fchownat a=@+x
		p:g/e do_fchownat a=@+4
		p:g/e do_fchownat a=\
		p:g/e do_fchownat a=\x
		p:g/e do_fchownat a="x
		p:g/e do_fchownat a=%ax:b33@0/32
		p:g/e do_fchownat a=%ax:b8@4/8
		p:g/e do_fchownat a=%ax:b0@0/8
		p:g/e do_fchownat a=%ax:b8@0
		p:g/e do_fchownat a=nosuchname
		p:g/e do_fchownat+4 a=$arg1
		f:g/e do_fchownat a=$nosuch
		t:g/e nosuchtp
		p:g/e do_fchownat a=+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(%ax)))))))))))))
	E
	t 'cat error_log | wc -l'
	t ': > error_log; cat error_log'
	t 'echo x > error_log; cat error_log'
	t 'for i in 1 2 3 4 5 6 7 8 9 10; do echo "x$i" > kprobe_events; done 2>/dev/null; grep -c error: error_log; grep Command error_log'
	t 'a=; i=0; while [ $i -lt 129 ]; do a="$a a$i=%ax"; i=$((i+1)); done; echo "p:g/e do_fchownat $a" > kprobe_events; tail -n 1 error_log; cat kprobe_events | wc -w'
	t 'a=; i=0; while [ $i -lt 128 ]; do a="$a a$i=%ax"; i=$((i+1)); done; echo "p:g/e do_fchownat $a" > kprobe_events; cat kprobe_events | wc -w'
	t 'put kprobe_events "p:g/e do_fchownat a%032d=%%ax" 1; last'
}

s_forms() {
	while read -r l; do
		t "echo '$l' > kprobe_events && cat kprobe_events events/g/e/format | sed -e 's/^ID: .*/ID/'"
	done <<-'E'
		p:g/e do_fchownat
		r:g/e do_fchownat
		r100:g/e do_fchownat
		p:g/e do_fchownat+0
		p:g/e do_fchownat%return ret=$retval
		p:g/e do_fchownat %ax %bx
		p:g/e do_fchownat a=%ax:u8 b=%bx:s16 c=%cx:x32 d=%dx:u64 e=%si:char f=%di:s8
		p:g/e do_fchownat s=+0(%si):ustring t=+0(%si):string u=+u0(%si):string
		p:g/e do_fchownat a=+0(%sp):x8[4] b=$stack c=$stack0 d=$stack1:s32 e=+8($stack):u16
		p:g/e do_fchownat c=$comm d=\10 e=\-1:s8 f=\"text":string
		p:g/e do_fchownat a=$arg1 b=$arg2:u32 c=$arg5
		p:g/e do_fchownat b=%ax:b4@8/32 p=%ax:b8@0/16
		p:g/e do_fchownat y=%ip:symbol z=%ip:symstr
		p:g/e do_fchownat a=+0(+8(%sp)):u32 b=-8(%sp):x64
		p:g/e do_fchownat a=@do_fchownat:x8 b=@do_fchownat+1:x8
		r:g/e do_fchownat $retval
		r:g/e do_fchownat a=$retval:s32 b=%ax c=$comm
		r:g/e do_fchownat a=$arg1
	E
	t 'echo "p:g/E do_fchownat" > kprobe_events; ls events/g'
	t 'echo "P:g/E do_fchownat" > kprobe_events'
	t 'printf "  p:g/e   do_fchownat    a=%%ax  \n" > kprobe_events; cat kprobe_events'
	t 'printf "\tp:g/e\tdo_fchownat\ta=%%ax\n" > kprobe_events; cat kprobe_events'
	t 'echo "p:g/e do_fchownat" > dynamic_events; cat dynamic_events kprobe_events; echo "-:g/e" >> dynamic_events; cat dynamic_events'
	t 'echo "-:nosuch" >> dynamic_events; echo "zz" >> dynamic_events; last'
	t 'echo "-:e" >> dynamic_events; echo "-:g/e x" >> dynamic_events'
	t 'put kprobe_events "p:g/e do_fchownat\n"; echo "-:g/e do_fchownat" >> kprobe_events; cat kprobe_events'
	t 'put kprobe_events "p:g/e do_fchownat\np:g/e ksys_sync a=1\n"; echo "-:g/e ksys_sync" >> kprobe_events; last; cat kprobe_events'
	t 'put kprobe_events "p:g/e do_fchownat\n"; add kprobe_events "p:g/e do_fchownat+4\n"; cat kprobe_events; echo "-:g/e do_fchownat+4" >> kprobe_events; cat kprobe_events'
}

s_enable() {
	put kprobe_events 'p:g/e do_fchownat\nr:g/r do_fchownat\np:h/e ksys_sync\n'
	t 'cat events/g/e/enable events/g/enable events/h/enable'
	t 'echo 1 > events/g/e/enable; cat events/g/e/enable events/g/enable'
	t 'echo 1 > events/g/enable; cat events/g/e/enable events/g/r/enable events/g/enable'
	t 'echo 0 > events/g/enable; cat events/g/enable'
	t 'for v in 2 -1 x "" "1 " " 1" 01 0x1 00 1x "1 1" y; do echo "$v:"; echo "$v" > events/g/e/enable; cat events/g/e/enable; echo 0 > events/g/e/enable; done'
	t 'for v in 2 -1 x "" "1 " 01 1x y; do echo "$v:"; echo "$v" > events/g/enable; cat events/g/enable; echo 0 > events/g/enable; done'
	t 'for v in 2 x ""; do echo "$v:"; echo "$v" > events/enable; done'
	t 'echo 1 > events/enable; cat events/g/enable events/h/e/enable; echo 0 > events/enable; cat events/g/enable events/enable'
	t 'printf 1 > events/g/e/enable; cat events/g/e/enable; printf "" > events/g/e/enable; cat events/g/e/enable'
	t 'printf "0\n1\n" > events/g/e/enable; cat events/g/e/enable'
	t 'cat kprobes/list | sed "s/^[0-9a-f]*/A/"'
	t 'echo > kprobe_events'
	t ': > kprobe_events'
	t ': > dynamic_events'
	t 'echo "p:g/f ksys_sync" > kprobe_events'
	t 'echo "-:g/e" >> kprobe_events; cat kprobe_events'
	t 'echo "-:g/" >> kprobe_events; cat kprobe_events'
	t 'echo "-:h/e" >> kprobe_events; cat kprobe_events'
	t 'echo "p:g/e ksys_sync" >> kprobe_events; last; cat kprobe_events'
	t 'echo "p:g/e do_fchownat+4" >> kprobe_events; cat kprobe_events; cat events/g/e/enable'
	t 'echo 0 > events/g/enable; echo > kprobe_events; cat kprobe_events; ls events/g'
	t 'echo "p:g/e do_fchownat" > kprobe_events; exec 3< events/g/e/enable 4< events/g/e/format 5< events/g/e/id; echo "-:g/e" >> kprobe_events; cat <&3; cat <&4; cat <&5'
	t 'echo "p:g/e do_fchownat" > kprobe_events; exec 3>> events/g/e/enable 4>> events/g/e/filter 5>> events/g/e/trigger; echo "-:g/e" >> kprobe_events; echo 1 >&3; echo 0 >&4; echo traceoff >&5'
	t 'echo "p:g/e do_fchownat" > kprobe_events; exec 3< events/g/e/filter 4< events/g/e/trigger 5< events/g/e/hist; echo "-:g/e" >> kprobe_events; cat <&3; cat <&4; cat <&5'
	t 'echo "p:g/e do_fchownat" > kprobe_events; exec 3>> events/g/enable 4< events/g/enable 5>> events/g/filter; echo "-:g/e" >> kprobe_events; echo 1 >&3; cat <&4; echo 0 >&5'
	t 'echo "p:g/e do_fchownat" > kprobe_events; exec 3>> events/g/e/enable; echo "-:g/e" >> kprobe_events; echo "p:g/e do_fchownat" >> kprobe_events; echo 1 >&3; cat events/g/e/enable'
	t 'echo 0 > events/g/enable; echo > kprobe_events; cat events/g/e/id; echo 1 > events/g/e/enable; cd events/g'
}

s_setevent() {
	put kprobe_events 'p:g/one do_fchownat\np:g/two ksys_sync\np:h/one ksys_sync\n'
	t 'grep -e ^g: -e ^h: available_events'
	while read -r l; do
		t "echo '$l' > set_event; chosen"
	done <<-'E'
		g:one
		g:*
		g:
		g
		one
		*:one
		h:*
		:one
		g:t*
		g:?wo
		g:nosuch
		nosuch
		nosuch:one
		g:one h:one
		g:one,h:one
		!g:one
		g/one
	E
	t 'echo "g:*" > set_event; echo "!g:one" >> set_event; chosen; cat events/g/enable'
	t 'echo "h:one" >> set_event; chosen; echo "!*:one" >> set_event; chosen'
	t 'printf "g:one\nh:one" > set_event; chosen'
	t 'printf "g:one nosuch:x h:one" > set_event; chosen'
	t 'echo > set_event; chosen'
	t 'echo "g:one" > set_event; : > set_event; chosen'
	t 'cat set_event_pid; echo 1 > set_event_pid; cat set_event_pid; echo "2 3" >> set_event_pid; cat set_event_pid'
	t 'echo x > set_event_pid; cat set_event_pid'
	t 'echo -1 > set_event_pid; cat set_event_pid'
	t 'echo 99999999999 > set_event_pid; cat set_event_pid'
	t ': > set_event_pid; cat set_event_pid'
	t 'echo 1 > set_event_pid; echo g:one > set_event; echo > trace; hit chown 1; lines; : > set_event_pid; hit chown 1; lines | wc -l'
	t 'echo 1 > set_event_notrace_pid; cat set_event_notrace_pid; hit chown 1; lines | wc -l; : > set_event_notrace_pid; cat set_event_notrace_pid'
}

s_records() {
	put kprobe_events 'p:g/e do_fchownat dfd=%%di:s32 name=+0(%%si):ustring u=%%dx:u32 g=%%cx:x32\nr:g/r do_fchownat ret=$retval:s32\np:h/s ksys_sync\n'
	echo >trace
	t 'echo 1 > events/g/enable; hit chown 2; lines'
	t 'sed -n 1,3p trace'
	t 'cat trace'
	t 'echo > trace; lines; cat trace | wc -l'
	t 'hit chown 1; echo x >> trace; lines | wc -l; printf "" >> trace; lines | wc -l; : > trace; lines | wc -l'
	t 'echo 0 > tracing_on; hit chown 1; lines; cat tracing_on; echo 1 > tracing_on'
	t 'for v in 2 -1 x "" " 1" 0x0 00 y off; do echo "$v:"; echo "$v" > tracing_on; cat tracing_on; done; echo 1 > tracing_on'
	t 'echo > trace; hit chown 2; lines | dd bs=6 count=2 2>/dev/null; echo'
	t 'dd if=trace bs=7 count=2 2>/dev/null; echo'
	t 'dd if=trace bs=1 skip=2 count=20 2>/dev/null; echo'
	t 'dd if=kprobe_events bs=7 2>/dev/null'
	t 'dd if=kprobe_events bs=10 skip=2 2>/dev/null'
	t 'dd if=kprobe_events bs=1 skip=10 count=5 2>/dev/null; echo'
	t 'dd if=kprobe_events bs=1000 skip=1 2>/dev/null'
	t 'dd if=events/g/e/format bs=7 2>/dev/null | sed 2d'
	t 'dd if=events/g/e/format bs=4 skip=2 count=1 2>/dev/null; echo'
	t 'dd if=events/g/e/enable bs=1 2>/dev/null; dd if=events/g/e/enable bs=1 skip=1 2>/dev/null | wc -c'
	t 'dd if=tracing_on bs=1 2>/dev/null; dd if=current_tracer bs=2 2>/dev/null; dd if=events/g/e/filter bs=3 2>/dev/null; echo'
	t 'exec 3<events/g/e/enable; cat <&3; cat <&3'
	t 'exec 3<kprobe_events; head -n 1 <&3; head -n 1 <&3; cat <&3'
	t 'exec 3<>tracing_on; cat <&3; echo 0 >&3; cat <&3; cat tracing_on; echo 1 > tracing_on'
	t 'exec 3<>kprobe_events; cat <&3; cat kprobe_events'
	t 'exec 3<trace; head -n 1 <&3 >/dev/null; hit chown 1; cat <&3 | grep -c :; cat trace | grep -c "u="'
	t 'echo > trace; hit chown 1; timeout 20 head -n 2 trace_pipe; lines'
	t 'hit chown 2; timeout 20 dd if=trace_pipe bs=10 count=1 2>/dev/null; echo; some trace_pipe | grep -c "[er]:"'
	t 'echo > trace; hit chown 3; some trace_pipe | grep -c " e:"; cat trace | grep -c " e:"'
	t 'hit chown 1; dd if=trace_pipe bs=1 skip=3 count=1 2>/dev/null | wc -c'
	t 'echo > trace; hit chown 1; echo 0 > tracing_on; some trace_pipe | grep -c " e:"; echo 1 > tracing_on'
	t 'echo > trace; exec 3<trace_pipe; cat trace | grep -c tracer; hit chown 1; lines | grep -c " e:"'
	t 'echo x > trace_pipe'
	t 'echo 0 > events/g/enable; cat kprobe_profile'
	t 'hit chown 1; echo 1 > events/h/s/enable; hit sync 2; cat kprobe_profile; echo 0 > events/h/enable'
	t 'echo > trace; echo 1 > events/h/enable; hit sync 1; lines; echo 0 > events/h/enable; hit sync 1; lines | wc -l'
}

s_filter() {
	put kprobe_events 'p:g/e do_fchownat dfd=%%di:s32 name=+0(%%si):ustring u=%%dx:u32 g=%%cx:x32\np:g/f do_fchownat n=%%dx:u8\np:h/s ksys_sync\n'
	t 'cat events/g/e/filter events/g/filter'
	while read -r l; do
		t "echo '$l' > events/g/e/filter; cat events/g/e/filter; last"
	done <<-'E'
		u == 7
		u == 8
		u != 7 && g < 9
		u==7||g==1
		!(u == 7)
		(u == 7
		u == 7)
		()
		u
		u ==
		== 7
		u = 7
		u === 7
		u == x
		u == 7 &&
		&& u == 7
		u == 7 & g == 8
		u == 7 g == 8
		u == -1
		u == 0x7
		u == 99999999999999999999
		u & 1
		u ~ 7
		u ~ "7"
		name == "/no/such"
		name == /no/such
		name == "/no/such
		name ~ "/no/*"
		name ~ "*such"
		name != "x"
		name < "x"
		name == 7
		nosuch == 7
		common_pid > 0
		common_pid == 0
		common_type == 1
		COMM == "x"
		comm ~ "c*"
		CPU < 64
		cpu == 0
		stacktrace == 1
		__probe_ip > 0
		u == 7 || nosuch == 1
		dfd == -100
		dfd < 0
		dfd == "x"
		u in 7
		CPUS{0-3}
		u > 5 && u < 9 && name ~ "*no*"
		0
		1
		none
	E
	t 'printf "" > events/g/e/filter; cat events/g/e/filter'
	t 'printf "u == 7\nu == 8\n" > events/g/e/filter; cat events/g/e/filter; last'
	t 'echo "u == 7" > events/g/filter; cat events/g/filter events/g/e/filter events/g/f/filter; last'
	t 'echo 0 > events/g/filter; cat events/g/filter events/g/e/filter'
	t 'echo "n == 7" > events/g/filter; cat events/g/filter events/g/e/filter events/g/f/filter'
	t 'echo "nosuch == 7" > events/g/filter; cat events/g/filter; cat events/g/e/filter; last; echo 0 > events/g/filter'
	t 'echo "common_pid > 0" > events/g/filter; cat events/g/filter events/g/e/filter events/g/f/filter; echo 0 > events/g/filter'
	t 'echo "x" > events/filter'
	t 'echo 1 > events/g/enable; echo "u == 7" > events/g/e/filter; echo > trace; hit chown 2; lines | grep -c " e:"; echo "u == 8" > events/g/e/filter; echo > trace; hit chown 2; lines | grep -c " e:"'
	t 'echo "name ~ \"*such\"" > events/g/e/filter; echo > trace; hit chown 2; lines | grep -c " e:"; echo "name == \"x\"" > events/g/e/filter; echo > trace; hit chown 2; lines | grep -c " e:"; cat kprobe_profile | tail -n 3'
	t 'echo 0 > events/g/e/filter; echo > trace; hit chown 2; lines | grep -c " e:"; echo 0 > events/g/enable'
	t 'a=; i=0; while [ $i -lt 500 ]; do a="$a u == 1 ||"; i=$((i+1)); done; echo "$a u == 7" > events/g/e/filter; cat events/g/e/filter | wc -c'
	t 'printf "%05000d" 1 > events/g/e/filter'
	t 'printf "" >> events/g/e/filter; echo 0 >> events/g/e/filter'
}

s_trigger() {
	put kprobe_events 'p:g/e do_fchownat dfd=%%di:s32 name=+0(%%si):ustring u=%%dx:u32\np:h/s ksys_sync\n'
	t 'cat events/g/e/trigger'
	while read -r l; do
		t "echo '$l' >> events/g/e/trigger; grep -v '^#' events/g/e/trigger; last"
	done <<-'E'
		traceoff
		traceoff
		!traceoff
		!traceoff
		traceon:3
		traceon:5
		!traceon
		traceoff:0
		traceoff:x
		traceoff:-1
		traceoff:
		traceoff:3 if u == 7
		!traceoff:3 if u == 7
		traceoff if nosuch == 7
		traceoff if
		traceoff if u ==
		traceoff x
		traceoff:3:4
		nosuch
		!nosuch
		!
		stacktrace
		!stacktrace
		stacktrace:2 if u == 7
		!stacktrace
		snapshot:1
		!snapshot
		enable_event:h:s
		enable_event:h:s
		!enable_event:h:s
		enable_event:h:s:2 if u == 7
		disable_event:h:s
		!disable_event:h:s
		!enable_event:h:s
		enable_event:h:nosuch
		enable_event:nosuch:s
		enable_event:h
		enable_event
		enable_event:g:e
		!enable_event:g:e
		enable_hist:h:s
		dump
		cpudump
		eprobe
	E
	t 'head -n 3 events/g/e/trigger'
	t 'echo traceoff:1 > events/g/e/trigger; echo 1 > events/g/e/enable; echo > trace; hit chown 2; lines; cat tracing_on; grep -v "^#" events/g/e/trigger; echo 1 > tracing_on; hit chown 1; cat tracing_on'
	t 'echo "!traceoff:1" > events/g/e/trigger; grep -v "^#" events/g/e/trigger; echo 0 > events/g/e/enable'
	t 'echo traceoff > events/g/e/trigger; cat events/g/e/enable events/g/enable; hit chown 1; cat tracing_on; echo 1 > tracing_on; echo "!traceoff" >> events/g/e/trigger'
	t 'echo "traceoff if u == 8" > events/g/e/trigger; hit chown 1; cat tracing_on; echo "!traceoff" >> events/g/e/trigger'
	t 'echo enable_event:h:s:1 > events/g/e/trigger; cat events/h/s/enable; hit chown 1; cat events/h/s/enable; echo > trace; hit sync 1; lines; grep -v "^#" events/g/e/trigger; echo "!enable_event:h:s" >> events/g/e/trigger; cat events/h/s/enable'
	t 'echo 0 > events/h/enable; echo stacktrace:1 > events/g/e/trigger; echo > trace; echo 1 > events/g/e/enable; hit chown 1; lines | sed "/^ =>/s/ => .*/ => F/" | uniq; echo "!stacktrace" >> events/g/e/trigger; echo 0 > events/g/e/enable'
	t 'echo traceoff:5 > events/g/e/trigger; : > kprobe_events; echo "-:g/e" >> kprobe_events; ls events/g; cat kprobe_events'
	t 'printf "" > events/g/e/trigger; grep -v "^#" events/g/e/trigger; : > events/g/e/trigger; grep -v "^#" events/g/e/trigger'
	t 'printf "traceoff:1\ntraceon:2\n" > events/g/e/trigger; grep -v "^#" events/g/e/trigger'
	t 'echo x > events/g/trigger; cat events/h/s/trigger | wc -l'
}

s_hist() {
	put kprobe_events 'p:g/e do_fchownat dfd=%%di:s32 name=+0(%%si):ustring u=%%dx:u32\np:h/s ksys_sync\n'
	t 'cat events/g/e/hist'
	while read -r l; do
		t "echo '$l' >> events/g/e/trigger; grep -v '^#' events/g/e/trigger; last"
	done <<-'E'
		hist:keys=u
		hist:keys=u
		!hist:keys=u
		!hist:keys=u
		hist:keys=u:vals=dfd:sort=dfd.descending:size=256
		!hist:keys=u:vals=dfd:sort=dfd.descending
		hist
		hist:
		hist:keys
		hist:keys=
		hist:keys=nosuch
		hist:vals=u
		hist:keys=u:vals=nosuch
		hist:keys=u:vals=
		hist:keys=u:sort=nosuch
		hist:keys=u:sort=
		hist:keys=u:size=0
		hist:keys=u:size=x
		hist:keys=u:nosuch
		hist:keys=u:nosuch=1
		hist:keys=u.nosuch
		hist:keys=u,u
		hist:keys=u,dfd,name,common_pid
		hist:keys=u:onmax(nosuch).save(u)
		hist:keys=u:a=nosuch
		hist:keys=u:onmatch(g.e).nosuch(u)
		hist:keys=u:pause
		!hist:keys=u:pause
		hist:keys=u if u == 7
		!hist:keys=u if u == 7
		hist:keys=u if nosuch == 7
		hist:name=n:keys=u
		hist:name=n
		!hist:name=n
		hist:keys=u:clear
		hist:keys=u:cont
		hist:keys=stacktrace
		!hist:keys=stacktrace
		hist:keys=u.hex,dfd.sym:vals=hitcount
		!hist:keys=u.hex,dfd.sym:vals=hitcount
		hist:keys=u.log2
		!hist:keys=u.log2
		hist:keys=u.buckets=4
		!hist:keys=u.buckets=4
		hist:keys=common_pid.execname
		!hist:keys=common_pid.execname
		hist:keys=name.hex
		hist:keys=u:vals=u.percent,u.graph
		!hist:keys=u:vals=u.percent,u.graph
		hist:keys=u:vals=name
		hist:keys=u:ts0=common_timestamp.usecs
		!hist:keys=u:ts0=common_timestamp.usecs
	E
	t 'echo "hist:keys=u" > events/g/e/trigger; cat events/g/e/hist; hit chown 3; cat events/g/e/hist; cat events/g/e/trigger'
	t 'echo "hist:keys=u:pause" >> events/g/e/trigger; hit chown 1; cat events/g/e/hist; grep -v "^#" events/g/e/trigger'
	t 'echo "hist:keys=u:cont" >> events/g/e/trigger; hit chown 1; cat events/g/e/hist'
	t 'echo "hist:keys=u:clear" >> events/g/e/trigger; cat events/g/e/hist; hit chown 1; cat events/g/e/hist'
	t 'cat events/g/e/enable; : > kprobe_events; echo "!hist:keys=u" >> events/g/e/trigger; cat events/g/e/hist'
	t 'echo "hist:keys=name,dfd:vals=u:sort=dfd" > events/g/e/trigger; hit chown 2; cat events/g/e/hist; echo "!hist:keys=name,dfd:vals=u:sort=dfd" >> events/g/e/trigger'
	t 'echo "hist:keys=u" > events/g/e/trigger; echo "hist:keys=dfd" >> events/g/e/trigger; hit chown 2; cat events/g/e/hist; echo "!hist:keys=u" >> events/g/e/trigger; grep -v "^#" events/g/e/trigger; echo "!hist:keys=dfd" >> events/g/e/trigger'
	t 'echo "hist:keys=u if u == 8" > events/g/e/trigger; hit chown 2; cat events/g/e/hist; echo "!hist:keys=u if u == 8" >> events/g/e/trigger'
	t 'echo "hist:keys=common_pid:ts=u" > events/g/e/trigger; echo "hist:keys=common_pid:d=common_timestamp-\$ts" > events/h/s/trigger; cat events/h/s/hist | head -n 5; echo "!hist:keys=common_pid:ts=u" >> events/g/e/trigger; grep -v "^#" events/g/e/trigger; echo "!hist:keys=common_pid:d=common_timestamp-\$ts" >> events/h/s/trigger; echo "!hist:keys=common_pid:ts=u" >> events/g/e/trigger; grep -v "^#" events/g/e/trigger'
	t 'dd if=events/g/e/hist bs=7 2>/dev/null; echo x > events/g/e/hist'
}

s_synthetic() {
	while read -r l; do
		t "echo '$l' > synthetic_events; cat synthetic_events; last"
	done <<-'E'
		lat u64 t
		lat u64 t; pid_t pid
		lat	u64 t;char n[16]
		lat
		lat u64
		lat u64 t;
		lat nosuch t
		lat u64 t; u64 t
		lat u64 t[4]
		lat char n[]; int a
		lat char *n
		lat unsigned int a; unsigned long b; long c
		lat-x u64 t
		1lat u64 t
		s:lat u64 t
		s:g/lat u64 t
		!lat
		!nosuch
		!lat u64 t
	E
	t 'echo "lat u64 t" > synthetic_events; echo "lat u64 t" >> synthetic_events; echo "lat u64 x" >> synthetic_events; last; cat synthetic_events dynamic_events'
	t 'ls events/synthetic events/synthetic/lat; sed "s/^ID:.*/ID/" events/synthetic/lat/format'
	t 'echo "!lat u64 x" >> synthetic_events; echo "!lat u64 t" >> synthetic_events; cat synthetic_events'
	t 'echo "s:lat u64 t; char n[16]" >> dynamic_events; cat dynamic_events; echo "-:synthetic/lat" >> dynamic_events; cat dynamic_events'
	t 'echo "s:lat u64 t" >> dynamic_events; echo "-:lat" >> synthetic_events; echo "!lat" >> synthetic_events; cat synthetic_events'
	t 'echo "lat u64 t" > synthetic_events; put kprobe_events "p:g/e do_fchownat u=%%dx:u32\n"; echo "hist:keys=u:t=u:onmatch(g.e).trace(lat,\$t)" > events/g/e/trigger; last'
	t 'echo "hist:keys=u:onmatch(g.e).lat(u)" > events/g/e/trigger; grep -v "^#" events/g/e/trigger; last'
	t 'echo "hist:keys=u:onmax(u).lat(u)" >> events/g/e/trigger; grep -v "^#" events/g/e/trigger; last'
	t 'echo 1 > events/synthetic/lat/enable; echo > trace; hit chown 1; lines; echo "!lat" >> synthetic_events; : > synthetic_events'
	t 'echo 0 > events/synthetic/lat/enable; echo "!lat" >> synthetic_events; cat synthetic_events'
}

# frames takes the callers and what flags tell of the kernel out of what it is given: each side has its own.
frames() { sed -e 's/\(\[[0-9]*\]\) [^ ]* /\1 ..... /' -e 's/^=> .*/=>/' -e 's/^         \(0x\|[^ ]*+0x\).*/         X/' -e 's/\(stacktrace         \).*/\1X/' | uniq; }

s_stacks() {
	put kprobe_events 'p:g/e do_fchownat uid=%%dx:u32\nr:h/s do_fchownat ret=$retval:s32\n'
	while read -r l; do
		t "echo '$l' >> synthetic_events; cat synthetic_events; last"
	done <<-'E'
		st s32 ret; unsigned long[] by; s32 err
		one long by[]
		two char[16] n; unsigned long[8] a; unsigned long b[]
		bad unsigned int[] a
	E
	t 'sed "s/^ID:.*/ID/" events/synthetic/st/format events/synthetic/one/format'
	t 'cat dynamic_events; echo "!two" >> synthetic_events; cat synthetic_events'
	while read -r l; do
		t "echo '$l' >> events/g/e/trigger; grep -v '^#' events/g/e/trigger; last"
	done <<-'E'
		hist:keys=uid:s=common_stacktrace
		!hist:keys=uid:s=common_stacktrace
		hist:keys=uid:s=common_stacktrace.log2
		hist:keys=uid:vals=common_stacktrace
		hist:keys=uid:vals=hitcount,stacktrace
		hist:keys=uid:s=uid.stacktrace
		hist:keys=uid.stacktrace
		hist:keys=common_stacktrace.stacktrace
		hist:keys=common_pid:s=stacktrace
	E
	while read -r l; do
		t "echo '$l' >> events/h/s/trigger; grep -v '^#' events/h/s/trigger; last"
	done <<-'E'
		hist:keys=common_pid:onmatch(g.e).trace(st,$s,$s,ret)
		hist:keys=common_pid:onmatch(g.e).trace(st,ret,ret,ret)
		hist:keys=common_pid:onmatch(g.e).trace(one,ret)
		hist:keys=common_pid:onmatch(g.e).trace(one,$s)
		!hist:keys=common_pid:onmatch(g.e).trace(one,$s)
		hist:keys=common_pid:onmatch(g.e).trace(one,common_stacktrace)
		!hist:keys=common_pid:onmatch(g.e).trace(one,common_stacktrace)
	E
	while read -r l; do
		t "echo '$l' >> events/synthetic/st/trigger; grep -v '^#' events/synthetic/st/trigger; last"
	done <<-'E'
		hist:keys=by
		!hist:keys=by
		hist:keys=by.stacktrace,ret
		!hist:keys=by.stacktrace,ret
		hist:keys=by.hex:sort=by
		!hist:keys=by.hex:sort=by
		hist:keys=by:sort=by.descending
		!hist:keys=by:sort=by.descending
		hist:keys=by:sort=by.stacktrace
		hist:keys=by.execname
		hist:keys=ret.stacktrace
		hist:keys=ret:vals=by
		hist:keys=ret:vals=ret,by.stacktrace
		hist:keys=ret:vals=by.hex
		hist:keys=ret:q=by
		!hist:keys=ret:q=by
		hist:keys=ret:q=by.stacktrace
		!hist:keys=ret:q=by.stacktrace
		hist:keys=ret:q=ret.stacktrace
	E
	t 'echo "hist:keys=common_pid:onmatch(g.e).trace(st,ret,\$s,ret):onmatch(g.e).trace(one,\$s)" > events/h/s/trigger; grep -v "^#" events/h/s/trigger; last'
	t 'echo 1 > events/synthetic/st/enable; echo 1 > events/synthetic/one/enable; echo > trace; hit chown 2; lines | frames; echo 0 > events/synthetic/enable'
	t 'echo "hist:keys=by,ret:sort=ret" > events/synthetic/st/trigger; hit chown 2; frames < events/synthetic/st/hist'
	t 'echo "!hist:keys=by,ret:sort=ret" > events/synthetic/st/trigger; echo "!hist:keys=common_pid:onmatch(g.e).trace(st,ret,\$s,ret):onmatch(g.e).trace(one,\$s)" > events/h/s/trigger; : > synthetic_events; cat synthetic_events'
	t 'echo "!hist:keys=common_pid:s=stacktrace" >> events/g/e/trigger; grep -v "^#" events/g/e/trigger'
}

s_eprobe() {
	put kprobe_events 'p:g/e do_fchownat u=%%dx:u32\n'
	while read -r l; do
		t "echo '$l' >> dynamic_events; grep -v ^p: dynamic_events; last"
	done <<-'E'
		e:h/x g.e v=$u
		-:h/x
		e:h/x g/e v=$u:u32
		e:h/x g/e v=$u
		-:h/x
		e:h/x g.nosuch v=$u
		e:h/x nosuch.e
		e:h/x g.e v=$nosuch
		e:h/x g.e v=%ax
		e:h/x g.e v=$u if u == 7
		-:h/x
		e:h/x g.e v=$u if nosuch == 7
		e:h/x g.e v=$u if
		e:h/x
		e: g.e
		e g.e
		-:eprobes/e
		e:h/e g.e v=$u
	E
	t 'echo "-:g/e" >> kprobe_events; cat kprobe_events'
	t 'echo 1 > events/h/e/enable; cat events/g/e/enable events/g/enable; echo > trace; hit chown 1; lines; grep -v "^#" events/g/e/trigger; echo "-:g/e" >> dynamic_events; echo "-:h/e" >> dynamic_events'
	t 'echo 0 > events/h/e/enable; echo "-:h/e" >> dynamic_events; cat dynamic_events'
}

s_instances() {
	put kprobe_events 'p:g/e do_fchownat u=%%dx:u32\np:h/s ksys_sync\n'
	t 'mkdir instances/a; mkdir instances/a; ls instances'
	t 'mkdir instances/a/b; mkdir instances/a/instances'
	t 'mkdir instances/b; rmdir instances/b; rmdir instances/b; rmdir instances/nosuch'
	t 'cat instances/a/events/g/e/enable; echo 1 > instances/a/events/g/e/enable; cat events/g/e/enable instances/a/events/g/e/enable instances/a/events/g/enable instances/a/set_event'
	t 'echo > trace; hit chown 2; lines; lines instances/a/trace; cat kprobe_profile | sed 1q'
	t 'sed -n 1,3p instances/a/trace'
	t ': > kprobe_events; echo "-:g/e" >> kprobe_events; cat kprobe_events'
	t 'echo 1 > events/g/e/enable; echo > instances/a/trace; echo > trace; hit chown 1; lines | grep -c " e:"; lines instances/a/trace | grep -c " e:"; echo 0 > events/g/e/enable; hit chown 1; lines | grep -c " e:"; lines instances/a/trace | grep -c " e:"'
	t 'echo 0 > instances/a/tracing_on; cat tracing_on instances/a/tracing_on; hit chown 1; lines instances/a/trace | grep -c " e:"; echo 1 > instances/a/tracing_on'
	t 'exec 3<instances/a/trace; rmdir instances/a; exec 3<&-; ls instances'
	t 'exec 3<instances/a/trace_pipe; rmdir instances/a; ls instances'
	t 'exec 3<instances/a/tracing_on; rmdir instances/a; ls instances'
	t 'exec 3<instances/a/events/g/e/enable; rmdir instances/a; ls instances'
	t 'cd instances/a && rmdir ../a; ls ..; mkdir ../a'
	t 'rm instances/a/trace; rm -r instances/a/events/g'
	t 'mkdir instances/a; echo "u == 8" > instances/a/events/g/e/filter; cat events/g/e/filter instances/a/events/g/e/filter'
	t 'echo "traceoff:2" > instances/a/events/g/e/trigger; grep -v "^#" instances/a/events/g/e/trigger events/g/e/trigger; rmdir instances/a; echo "!traceoff" > instances/a/events/g/e/trigger; rmdir instances/a; mkdir instances/a'
	t 'echo "p:g/n ksys_sync" >> kprobe_events; ls instances/a/events/g; echo "-:g/n" >> kprobe_events; ls instances/a/events/g'
	t 'cat instances/a/kprobe_events instances/a/dynamic_events'
	t 'cat instances/a/trace_clock instances/a/current_tracer instances/a/buffer_size_kb instances/a/error_log'
	t 'echo "x ==" > instances/a/events/g/e/filter; tail -n 3 instances/a/error_log | sed "s/^\[.*\]/[]/"; cat error_log'
	t 'echo hello > instances/a/trace_marker; lines instances/a/trace; lines'
	t 'rmdir instances/a; ls instances; echo x > instances/f; touch instances/f; mkdir instances/.x instances/"a b"; ls -A instances; rmdir instances/.x instances/"a b"'
	t 'mkdir instances/$(printf %0256d 1) 2>&1 | sed "s/0000*/0../"'
	t 'mv instances instances2'
	t 'mkdir instances/a; mv instances/a instances/b; rmdir instances/a instances/b; ls instances'
}

s_marker() {
	echo >trace
	t 'echo hello > trace_marker; lines'
	t 'echo > trace; printf "no newline" > trace_marker; printf "a\nb\n" > trace_marker; printf "" > trace_marker; lines'
	t 'echo > trace; echo hello >> trace_marker; printf "x\0y" > trace_marker; lines | tr "\0" "0"'
	t 'echo > trace; printf "%05000d\n" 7 > trace_marker; lines | wc -c; lines | wc -l'
	t 'echo > trace; printf "\1\0\0\0abc" > trace_marker_raw; lines | sed "s/ 61 62 63 .*/ 61 62 63/"; printf "ab" > trace_marker_raw'
	t 'echo 0 > tracing_on; echo > trace; echo hello > trace_marker; lines; echo 1 > tracing_on'
	t 'echo 0 > options/markers; echo hello > trace_marker; echo 1 > options/markers; lines'
	t 'echo > trace; exec 3>trace_marker; echo one >&3; echo two >&3; lines'
	t 'cat trace_marker'
	t 'cat events/ftrace/print/format | sed "s/^ID.*/ID/"'
	t 'ls events/ftrace | head -n 3; ls events/ftrace/print; cat events/ftrace/print/enable'
	t 'echo > trace; echo hello > trace_marker; timeout 20 head -n 1 trace_pipe; lines'
}

s_options() {
	t 'cat options/overwrite; echo 0 > options/overwrite; cat options/overwrite; grep over trace_options; echo 1 > options/overwrite'
	t 'for v in 2 -1 x "" y; do echo "$v:"; echo "$v" > options/overwrite; cat options/overwrite; done'
	t 'echo nooverwrite > trace_options; grep overwrite trace_options; echo overwrite > trace_options; cat options/overwrite'
	t 'echo nosuch > trace_options; echo nonosuch > trace_options; echo > trace_options; echo noprint-parent nosuch > trace_options; cat options/print-parent'
	t 'echo " nosym-offset " > trace_options; cat trace_options | head -n 3; echo sym-offset > trace_options; echo nosym-offset > trace_options'
	put kprobe_events 'p:g/e do_fchownat u=%%dx:u32\n'
	echo 1 >events/g/enable
	echo >trace
	hit chown 1
	t 'lines; echo 0 > options/irq-info; sed "/^#/!d" trace; lines; echo 1 > options/irq-info'
	t 'echo 0 > options/context-info; lines; echo 1 > options/context-info'
	t 'echo 1 > options/record-tgid; echo > trace; hit chown 1; cat trace | sed -n 1,12p; lines | wc -l; echo 0 > options/record-tgid'
	t 'echo 1 > options/raw; lines; echo 0 > options/raw; echo 1 > options/hex; lines | wc -l; echo 0 > options/hex; echo 1 > options/bin; lines >/dev/null; echo $?; echo 0 > options/bin'
	t 'echo 1 > options/verbose; lines | wc -l; echo 0 > options/verbose; echo 1 > options/fields; lines; echo 0 > options/fields; echo 1 > options/latency-format; head -n 3 trace; echo 0 > options/latency-format'
	t 'echo 1 > options/stacktrace; echo > trace; hit chown 1; lines | sed "/^ =>/s/ => .*/ => F/" | uniq; echo 0 > options/stacktrace'
	t 'echo 1 > options/pause-on-trace; echo 0 > options/pause-on-trace; echo 0 > options/record-cmd; echo 1 > options/record-cmd; cat options/nosuch; echo 1 > options/nosuch'
	t 'cat saved_cmdlines | sed 1q | grep -c .; cat saved_cmdlines_size; echo 256 > saved_cmdlines_size; cat saved_cmdlines_size; for v in 0 x -1 ""; do echo "$v" > saved_cmdlines_size; done; echo 128 > saved_cmdlines_size'
	t 'echo 0 > events/g/enable; ls options | wc -l'
}

s_buffers() {
	t 'for v in 64 100 0 -1 x "" 99999999999; do echo "$v:"; echo "$v" > buffer_size_kb; cat buffer_size_kb | cut -d " " -f 1; done'
	t 'echo 64 > per_cpu/cpu0/buffer_size_kb; cat per_cpu/cpu0/buffer_size_kb; cat buffer_size_kb; echo 128 > buffer_size_kb; cat buffer_size_kb per_cpu/cpu0/buffer_size_kb; echo x > buffer_total_size_kb'
	t 'for v in 50 0 100 101 x -1; do echo "$v:"; echo "$v" > buffer_percent; cat buffer_percent; done; echo 50 > buffer_percent'
	t 'cat trace_clock; for c in global mono boot counter uptime x86-tsc perf mono_raw tai local nosuch ""; do echo "$c" > trace_clock; cat trace_clock; done'
	t 'echo " global " > trace_clock; cat trace_clock; echo local > trace_clock; echo mono > trace_clock'
	put kprobe_events 'p:g/e do_fchownat u=%%dx:u32\n'
	echo 1 >events/g/enable
	t 'echo counter > trace_clock; echo > trace; hit chown 1; lines; echo mono > trace_clock; lines'
	t 'echo > trace; hit chown 2; cat per_cpu/cpu*/trace | grep -v "^#" | wc -l; cat per_cpu/cpu*/stats | grep -c entries'
	t 'echo > per_cpu/cpu0/trace; for i in per_cpu/cpu*/trace; do : > $i; done; lines'
	t 'hit chown 1; for i in per_cpu/cpu*/stats; do sed -e "s/[0-9][0-9.]*/N/" $i; break; done; echo x > per_cpu/cpu0/stats'
	t 'echo > trace; hit chown 3; for i in per_cpu/cpu*/trace_pipe; do some $i; done | grep -c " e:"; lines'
	t 'cat snapshot | head -n 3; hit chown 1; echo 1 > snapshot; lines snapshot | wc -l; lines | wc -l; grep -c . snapshot; echo 2 > snapshot; lines snapshot; echo 0 > snapshot; cat snapshot | head -n 3'
	t 'for v in 3 x -1 ""; do echo "$v:"; echo "$v" > snapshot; done; echo 0 > snapshot; echo 1 > per_cpu/cpu0/snapshot'
	t 'for v in nop nosuch "" "nop " blk; do echo "$v:"; echo "$v" > current_tracer; cat current_tracer; done; echo nop > current_tracer'
	t 'echo 1 > tracing_cpumask; cat tracing_cpumask; echo x > tracing_cpumask; echo 0 > tracing_cpumask; cat tracing_cpumask; echo 1 > tracing_cpumask'
	t 'echo 0 > events/g/enable; echo x > free_buffer; echo x > saved_cmdlines; echo x > printk_formats; echo x > timestamp_mode; echo x > events/header_page; echo x > kprobe_profile'
	t 'for v in 1 x "" 8 5; do echo "$v:"; echo "$v" > buffer_subbuf_size_kb; cat buffer_subbuf_size_kb; done; echo 4 > buffer_subbuf_size_kb'
	t 'for v in 0 1 y n x ""; do echo "$v:"; echo "$v" > kprobes/enabled; cat kprobes/enabled; done; echo 1 > kprobes/enabled'
}

s_uprobe() {
	while read -r l; do
		t "echo '$l' > uprobe_events; cat uprobe_events; last"
	done <<-'E'
		p:h/u /bin/busybox:0x1000
		r:h/u /bin/busybox:0x1000 $retval
		p /bin/busybox:0x1000
		p:h/u /bin/busybox:0x1000 %ax a=%bx:u8 s=+0(%di):string c=$comm
		p:h/u /bin/busybox:0x1000(0x2000)
		p:h/u /bin/busybox:0x1000(0x2001)
		p:h/u /bin/busybox:0x1000%return
		p:h/u /bin/busybox:0x1000%nosuch
		p:h/u /bin/busybox
		p:h/u /bin/busybox:
		p:h/u /bin/busybox:main
		p:h/u /bin/busybox:0x
		p:h/u /nosuch:0x1000
		p:h/u /tmp:0x1000
		p:h/u busybox:0x1000
		p:h/u
		p:h/ /bin/busybox:0x1000
		p:h-g/u /bin/busybox:0x1000
		x:h/u /bin/busybox:0x1000
		p:h/u /bin/busybox:0x1000 a=$retval
		p:h/u /bin/busybox:0x1000 a=nosuch
		p:h/u /bin/busybox:0x1000 a=$arg1
		p:h/u /bin/busybox:0x1000 a=@do_fchownat
		r1:h/u /bin/busybox:0x1000
		-:h/u
		-:nosuch
	E
	t 'echo "p:h/u /bin/busybox:0x1000" > uprobe_events; ls events/h events/h/u; sed "s/^ID.*/ID/" events/h/u/format; cat uprobe_profile dynamic_events kprobe_events'
	t 'echo "p:h/u /bin/busybox:0x1000" >> uprobe_events; last; echo "p:h/u ksys_sync" >> kprobe_events; last; echo "-:h/u" >> kprobe_events; echo "-:h/u" >> uprobe_events; cat uprobe_events'
	t 'echo "p:h/u /bin/busybox:0x1000" >> dynamic_events; cat dynamic_events; : > kprobe_events; cat dynamic_events; : > dynamic_events; cat dynamic_events'
}

all='names first define errors forms enable setevent records filter trigger hist synthetic stacks eprobe instances marker options buffers uprobe'
for s in ${*:-$all}; do
	clean
	echo "## $s"
	"s_$s"
done | sed -e "s/^[^ ]*: eval: line [0-9]*: /sh: /" -e "s/^[^ ]*: cd: line [0-9]*: /sh: /"
clean
