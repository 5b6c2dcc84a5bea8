package tracefile

import (
	"fmt"
	"io"

	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/ringpage"
	"kprobes.dev/kprobes/trace"
)

// fixed are the files that each instance always has.
func (t *Tree) fixed() map[string]*File {
	in := t.in
	return map[string]*File{
		"buffer_percent":             t.bufferPercent(),
		"free_buffer":                {Mode: 0o200, write: ignored, closed: in.FreeBuffer},
		"timestamp_mode":             {Mode: readOnly, read: always("[delta] absolute\n")},
		"trace_marker_raw":           {Mode: writeOnly, mark: in.MarkRaw},
		"tracing_cpumask":            {Mode: readWrite, read: func() (string, error) { return in.CPUMask() + "\n", nil }, write: in.SetCPUMask},
		"available_tracers":          {Mode: readOnly, read: always("nop\n")},
		"buffer_size_kb":             t.bufferSize(trace.AllCPUs),
		"buffer_total_size_kb":       {Mode: readOnly, read: t.totalSize},
		"current_tracer":             {Mode: readWrite, read: always("nop\n"), write: oneOf("nop")},
		"error_log":                  {Mode: readWrite, read: func() (string, error) { return in.ErrorLog(), nil }, write: ignored, truncate: nothing(in.ClearErrorLog)},
		"events/enable":              t.enable("", ""),
		"events/ftrace/print/format": {Mode: readOnly, read: always(hit.PrintFormat(ringpage.PrintID))},
		"events/ftrace/print/id":     {Mode: readOnly, read: always(fmt.Sprintln(ringpage.PrintID))},
		"events/header_event":        {Mode: readOnly, read: always(ringpage.HeaderEvent)},
		"events/header_page":         {Mode: readOnly, read: always(ringpage.HeaderPage)},
		"set_event":                  {Mode: readWrite, read: func() (string, error) { return lines(in.Events(true)), nil }, write: in.SetEvents, truncate: func() error { return in.Enable("", "", false) }},
		"set_event_notrace_pid":      t.pids(true),
		"set_event_pid":              t.pids(false),
		"snapshot":                   t.snapshot(),
		"trace":                      {Mode: readWrite, read: text(in.WriteTrace), write: ignored, truncate: nothing(in.Clear)},
		"trace_clock":                {Mode: readWrite, read: always("[mono]\n"), write: oneOf("mono")},
		"trace_marker":               {Mode: writeOnly, mark: in.Mark},
		"trace_options":              {Mode: readWrite, read: t.options, write: t.setOptions},
		"trace_pipe":                 {Mode: readOnly, pipe: in.Pipe},
		"tracing_on":                 {Mode: readWrite, read: func() (string, error) { return digit(in.Tracing()), nil }, write: t.setTracing},
	}
}

// shared are the files that instances have together.
func (t *Tree) shared() map[string]*File {
	in := t.in
	return map[string]*File{
		"README":                     {Mode: readOnly, read: func() (string, error) { return readme, nil }},
		"available_events":           {Mode: readOnly, read: func() (string, error) { return lines(in.Events(false)), nil }},
		"available_filter_functions": {Mode: readOnly, read: text(in.WriteFunctions)},
		"dynamic_events":             {Mode: readWrite, read: text(in.WriteDynamics), write: asKernel(in.WriteDynamic), truncate: in.ReplaceDynamic},
		"kprobe_events":              {Mode: readWrite, read: text(in.WriteDefinitions), write: asKernel(in.Write), truncate: func() error { return in.Replace("") }},
		"kprobe_profile":             {Mode: readOnly, read: text(in.WriteProfile)},
		"uprobe_events":              {Mode: readWrite, read: text(in.WriteUprobes), write: asKernel(in.WriteUprobe), truncate: in.ClearUprobe},
		"uprobe_profile":             {Mode: readOnly, read: text(in.WriteUprobeProfile)},
		"printk_formats":             {Mode: readOnly, read: always("")},
		"synthetic_events":           {Mode: readWrite, read: text(in.WriteSynthetics), write: asKernel(in.WriteSynthetic), truncate: in.ClearSynthetic},
		"saved_cmdlines":             {Mode: readOnly, read: text(in.WriteComms)},
		"saved_cmdlines_size":        t.comms(),
		"saved_tgids":                {Mode: readOnly, read: text(in.WriteTGIDs)},
		"kprobes/list":               {Mode: 0o400, read: text(in.List)},
		"kprobes/enabled":            {Mode: 0o600, read: func() (string, error) { return digit(in.Core().Enabled()), nil }, write: t.setEnabled},
		"kprobes/blacklist":          {Mode: 0o400, read: text(in.Core().Blacklist)},
		// The sysctl debug.kprobes-optimization.
		"sys/debug/kprobes-optimization": {Mode: 0o644, read: func() (string, error) { return digit(in.Core().Optimization()), nil }, write: t.setOptimization},
	}
}

// perCPU are the files of the CPUs.
func (t *Tree) perCPU() map[string]*File {
	in := t.in
	out := map[string]*File{}
	for cpu := range in.CPUs() {
		dir := fmt.Sprintf("per_cpu/cpu%d/", cpu)
		out[dir+"buffer_size_kb"] = t.bufferSize(cpu)
		out[dir+"snapshot"] = &File{Mode: readWrite, read: text(func(w io.Writer) error { return in.WriteCPUSnapshot(w, cpu) }), write: refused}
		out[dir+"snapshot_raw"] = &File{Mode: readOnly, pipe: func() *trace.Pipe { return in.CPURawSnapshot(cpu) }}
		out[dir+"stats"] = &File{Mode: readOnly, read: text(func(w io.Writer) error { return in.WriteCPUStats(w, cpu) })}
		out[dir+"trace"] = &File{Mode: readWrite, read: text(func(w io.Writer) error { return in.WriteCPUTrace(w, cpu) }), write: ignored, truncate: nothing(func() { in.ClearCPU(cpu) })}
		out[dir+"trace_pipe_raw"] = &File{Mode: readOnly, pages: true, pipe: func() *trace.Pipe { return in.CPURawPipe(cpu) }}
		out[dir+"trace_pipe"] = &File{Mode: readOnly, pipe: func() *trace.Pipe { return in.CPUPipe(cpu) }}
	}
	return out
}
