package guest_test

import "strings"

// across is a histogram of the first event, and one of the second that may refer to it. What is equal is sorted by the name of the file.
func across(of, with string, more ...histTrigger) histCase {
	if strings.HasPrefix(of, "keys=name") && !strings.Contains(of, "sort=") {
		of += ":sort=name"
	}
	return histCase{triggers: append([]histTrigger{{"in", of}, {"fin", with}}, more...)}
}

func traced(synth string, of, with string, more ...histTrigger) histCase {
	c := across(of, with, more...)
	c.synth = []string{synth}
	return c
}

// histGood are triggers that the guest's own tracer takes.
var histGood = []histCase{
	across("keys=name:f=flags", "keys=name:d=$f*2+1:onmax($d).save(dfd,name):sort=name"),
	across("keys=name:f=flags", "keys=name:d=$f:onchange($d).save(num):sort=name"),
	across("keys=name:f=flags:sort=name", "keys=name:vals=$f:sort=f,name"),
	across("keys=name:f=flags,g=low", "keys=name:a=$f+$g,b=$f/$g:onmax($b).save(name):sort=name"),
	across("keys=name:f=flags", "keys=name:d=kprobes.in.$f-1:onmax($d).save(dfd):sort=name"),
	across("keys=name:f=flags-32768-2-1", "keys=name:d=-($f):onchange($d).save(dfd):sort=name"),
	across("keys=name:f=flags/16+3*2", "keys=name:d=$f:onmax($d).save(dfd):sort=name"),
	across("keys=name:two=2:f=flags", "keys=name:d=$f/$two:onmax($d).save(dfd):sort=name"),
	across("keys=name:two=2:six=3*2", "keys=name:d=$six/$two+1:onmax($d).save(dfd):sort=name"),
	across("keys=name:f=flags:h=$f", "keys=name:d=$h:onmax($d).save(dfd):sort=name"),
	across("keys=name:f=flags", "keys=name:n=name:d=$f:onmax($d).save(name):sort=name"),
	across("keys=name:f=low", "keys=name:vals=num:d=$f-num:onchange($d).save(dfd):sort=name:size=256"),
	across("keys=name:c=common_pid.execname", "keys=name:d=5:onmax($d).save(dfd):sort=name"),
	across("keys=name:pause", "keys=name:sort=name"),
	across("keys=low+flags:sort=low+flags", "keys=dfd,5"),
	// A variable is read once by an operation, and as often as there are hits by a reference alone.
	across("keys=5:f=flags", "keys=5:d=$f+1", histTrigger{"last", "keys=5:e=$f+1"}),
	across("keys=5:f=flags", "keys=5:d=$f", histTrigger{"last", "keys=5:e=$f:onmax($e).save(mode)"}),
	// Other keys are other entries; a type of another size is one too where the number is another.
	across("keys=dfd:f=flags", "keys=num:d=$f"),
	across("keys=dfd:f=flags", "keys=dfd:d=$f"),
	across("keys=flags:f=flags", "keys=name:d=$f"),
	across("name=both:keys=dfd", "name=both:keys=dfd"),
	// Synthetic events, as lines and with a histogram of their own.
	traced("s:s1 u64 fl; s32 dfd; char name[]", "keys=name:f=flags", "keys=name:onmatch(kprobes.in).trace(s1,$f,dfd,name):sort=name"),
	traced("s:s2 u64 fl", "keys=name:f=flags", "keys=name:d=$f-32768:onmatch(kprobes.in).s2($d):sort=name", histTrigger{"synthetic/s2", "keys=fl.buckets=1000:vals=fl:sort=fl"}),
	traced("s:s2 u64 fl; u32 dfd", "keys=name:f=flags", "keys=name:onmatch(kprobes.in).trace(s2,$f,dfd):sort=name"),
	traced("s:s3 u64 big", "keys=name:f=flags", "keys=name:d=$f:onmax($d).trace(s3,$d):sort=name"),
	traced("s:s4 u64 big; u64 fl", "keys=name:f=flags", "keys=name:d=$f:onchange($d).s4($d,$f):sort=name"),
	traced("s:s5 u8 low; u64 fl", "keys=name:sort=name", "keys=name:onmatch(kprobes.in).trace(s5,low,flags):sort=name"),
}

// histBad are triggers of which the guest's own tracer refuses the last.
var histBad = []histCase{
	across("keys=name:f=flags", "keys=name:d=$nope"),
	across("keys=name:f=flags", "keys=name:d=$f+$nope"),
	across("keys=name:f=flags", "keys=$f"),
	across("keys=name:f=flags", "keys=$f.log2"),
	across("keys=name:f=flags", "keys=name:f=dfd,f=num"),
	across("keys=name:f=flags", "keys=name:d=name+1"),
	across("keys=name:f=flags", "keys=name:d=1+name"),
	across("keys=name:f=flags", "keys=name:d=-(name)"),
	across("keys=name:f=flags", "keys=name:d=dfd+1+2+3+4+5"),
	across("keys=name:f=flags", "keys=name:d=5x"),
	across("keys=name:f=flags", "keys=name:d=dfd/0"),
	across("keys=name:f=flags", "keys=name:d=-(dfd)+1"),
	across("keys=name:f=flags", "keys=name:d=-dfd"),
	across("keys=name:f=flags", "keys=name:d=dfd+"),
	across("keys=name:f=flags", "keys=name:d=(dfd)*2"),
	across("keys=name:f=0", "keys=name:d=dfd/$f"),
	across("keys=name:t=common_timestamp", "keys=name:d=common_timestamp.usecs-$t"),
	across("keys=name:t=common_timestamp.usecs", "keys=name:d=common_timestamp-$t"),
	across("keys=name:f=flags", "keys=name:d=dfd.none"),
	across("keys=name:f=flags", "keys=name:d=none"),
	across("keys=name:f=flags", "keys=name:x=5:d=$x+1"),
	across("keys=name:f=flags", "keys=name:d=$f:e=$d"),
	across("keys=name:f=flags", "keys=name:d=kprobes.in.$none"),
	across("keys=name:f=flags", "keys=name:d=kprobes.none.$f"),
	across("keys=name:f=flags", "keys=name:f=num", histTrigger{"last", "keys=5:d=$f"}),
	across("keys=name:f=flags", "keys=name:d=1,e"),
	across("keys=name:f=flags", "keys=name:d=1:"),
	across("keys=name:f=flags", "keys=name:d="),
	across("keys=name", "keys=name:cont"),
	across("keys=name", "keys=name:clear"),
	across("keys=name", "keys=name:clock=none:t=common_timestamp"),
	across("keys=name", "keys=name:v1=1:v2=1:v3=1:v4=1:v5=1:v6=1:v7=1:v8=1:v9=1:v10=1:v11=1:v12=1:v13=1:v14=1:v15=1:v16=1:v17=1"),
	across("keys=name:f=flags", "keys=name:onmatch(kprobes.in)"),
	across("keys=name:f=flags", "keys=name:onmatch(kprobes.in).save(dfd)"),
	across("keys=name:f=flags", "keys=name:onmatch(kprobes.in).trace(none,$f)"),
	across("keys=name:f=flags", "keys=name:onmatch(kprobes.in).none($f)"),
	across("keys=name:f=flags", "keys=name:onmatch(kprobes.none).none($f)"),
	across("keys=name:f=flags", "keys=name:onmatch(in).none($f)"),
	across("keys=name:f=flags", "keys=name:onmatch(kprobes.in.none($f"),
	across("keys=name:f=flags", "keys=name:onmatch(kprobes.in).none"),
	across("keys=name:f=flags", "keys=name:onmatch(kprobes.in).snapshot()"),
	across("keys=name:f=flags", "keys=name:d=$f:onmax(d).save(dfd)"),
	across("keys=name:f=flags", "keys=name:d=$f:onmax($e).save(dfd)"),
	across("keys=name:f=flags", "keys=name:d=$f:onmax($d).save(none)"),
	across("keys=name:f=flags", "keys=name:d=$f:onmax($d).save(d)"),
	across("keys=name:f=flags", "keys=name:d=$f:onmax($d).save()"),
	across("keys=name:f=flags", "keys=name:d=$f:onmax($d).save(dfd):onchange($d).save(num)"),
	across("keys=name:f=flags", "keys=name:d=$f:onmax($d"),
	across("keys=name:f=flags", "keys=name:d=$f:onmax($d).snapshot("),
	across("name=both:keys=dfd", "name=both:keys=name"),
	across("keys=name:f=flags", "keys=name:onnone($d).save(dfd)"),
	traced("s:s1 u64 fl; u32 dfd", "keys=name:f=flags", "keys=name:onmatch(kprobes.in).trace(s1,$f)"),
	traced("s:s1 u64 fl; u32 dfd", "keys=name:f=flags", "keys=name:onmatch(kprobes.in).trace(s1,$f,$f)"),
	traced("s:s1 u64 fl; u64 dfd", "keys=name:f=flags", "keys=name:onmatch(kprobes.in).trace(s1,$f,dfd)"),
	traced("s:s1 u64 fl; int dfd", "keys=name:f=flags", "keys=name:onmatch(kprobes.in).trace(s1,$f,dfd)"),
	traced("s:s1 u64 fl; pid_t pid", "keys=name:f=flags", "keys=name:onmatch(kprobes.in).trace(s1,$f,common_pid)"),
	traced("s:s1 u64 fl", "keys=name:f=flags", "keys=name:onmatch(kprobes.in).trace(s1,$f,dfd)"),
	traced("s:s1 u64 fl", "keys=name:f=flags", "keys=name:onmatch(kprobes.in).trace(s1,$none)"),
	traced("s:s1 u64 fl", "keys=name:f=flags", "keys=name:onmatch(kprobes.in).trace(s1,none)"),
	traced("s:s1 u64 fl", "keys=name:f=flags", "keys=num:onmatch(kprobes.in).trace(s1,flags)"),
	traced("s:s1 u64 fl", "keys=name:f=flags", "keys=name:onmatch(kprobes.in).trace(s1,name)"),
	traced("s:s1 u64 fl", "keys=name:f=flags", "keys=name:onmatch(kprobes.in).trace(s1,a)"),
	traced("s:s1 u64 fl", "keys=name:f=flags", "keys=name:onmatch(kprobes.in).trace(s1,a.b)"),
}

// histNewer and histNewerBad are those of Linux 6.3 and later.
var (
	histNewer = []histCase{
		across("keys=dfd:vals=flags.percent,flags.graph", "keys=name:sort=name"),
		across("keys=dfd:vals=flags.percent,low:nohitcount", "keys=name:vals=hitcount.percent,hitcount.graph:sort=name"),
		across("keys=dfd:vals=flags,low:NOHC", "keys=name:sort=name"),
		across("keys=name:f=flags", "keys=name:d=kprobes.in.$f-1,e=kprobes.in.$f:onmax($d).save(dfd):sort=name"),
	}
	histNewerBad = []histCase{
		across("keys=name:nohitcount", "keys=name"),
		across("keys=name", "keys=dfd.percent"),
		across("keys=name", "keys=dfd:x=num.percent"),
		across("keys=name", "keys=dfd:x=num.log2"),
	}
)

// histDifferences are triggers at which ours is not what the guest's own tracer is, and why. One at which they agree fails.
var histDifferences = []struct {
	why string
	c   histCase
}{
	{"the kernel rounds a quotient by a number up, at times", across("keys=name:f=flags/3", "keys=name:d=$f:onmax($d).save(dfd):sort=name")},
	{"the kernel sums an expression up, and does not show it", across("keys=dfd:vals=flags+low", "keys=name:sort=name")},
	{"the kernel takes the first operand of what the own variable is set to for the variable", across("keys=name:f=flags", "keys=name:x=dfd+1:d=$x+1")},
	{"the kernel leaves out what comes behind the 16th variable of a list", across("keys=name", "keys=name:v1=1,v2=1,v3=1,v4=1,v5=1,v6=1,v7=1,v8=1,v9=1,v10=1,v11=1,v12=1,v13=1,v14=1,v15=1,v16=1,v17=1")},
	{"the kernel refuses a variable that two actions lead to", traced("s:s1 u64 fl", "keys=name:f=flags", "keys=name:d=$f:onmatch(kprobes.in).s1($d):onmatch(kprobes.in).trace(s1,$d)")},
}

// synthBad are definitions of synthetic events that the guest's own tracer refuses.
var synthBad = []string{
	"s:s1", "s:s1 u64", "s:s-1 u64 ns", "s:other/s1 u64 ns", "s:s1 u64 ns; none x", "s:s1 u64 ns; u64", "s:s1 u64 ns; unsigned int", "s:s1 u64 1ns",
	"s:s1 char c[300]", "s:s1 char c[x]", "s:s1 u64 a-b", "s:s1 unsigned none x", "s:s1 u64 a; u64 b[3]", "s: u64 ns", "s:s1 u64 ns u32", "s:s1 ;u64 ns",
}
