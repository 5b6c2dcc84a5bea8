package tracefile

// readme is the file README: what there is, and the language of kprobe_events in the form in which tools look for it.
const readme = `kprobes: the files of a trace instance

  available_events		- events that are defined, GRP:EVENT
  available_filter_functions	- functions that can be probed
  set_event			- events that are enabled; takes GRP:EVENT, with ! to disable
  tracing_on			- 1: hits are recorded; 0: they are counted only
  trace				- what is in the buffer; opening it for writing empties it
  trace_pipe			- the same as it comes; reading takes it out of the buffer
  error_log			- what was wrong with the last commands; opening it for writing empties it
  dynamic_events		- events of all kinds; as kprobe_events
  kprobe_events		- define events, one a line; opening it for writing deletes all
  kprobe_profile		- hits and misses of each event
  uprobe_events			- define events at offsets in files; as kprobe_events
  uprobe_profile		- hits of each of these
	  accepts: event-definitions (one definition per line)
	   Format: p[:[<group>/][<event>]] <place> [<args>]
	           r[maxactive][:[<group>/][<event>]] <place> [<args>]
	           -:[<group>/][<event>]
	    place: [<module>:]<symbol>[+<offset>]|<memaddr>
	           [<module>:]<symbol>[+0]%return
	    place (uprobe): <path>:<offset>[%return][(ref_ctr_offset)]
	     args: <name>=fetcharg[:type]
	 fetcharg: %<register>, @<address>, @<symbol>[+|-<offset>],
	           $stack<index>, $stack, $retval, $comm, $arg<N>,
	           <argname>[->field[->field|.field...]],
	           +|-[u]<offset>(<fetcharg>), \imm-value, \"imm-string"
	     type: s8/16/32/64, u8/16/32/64, x8/16/32/64, char, string, symbol,
	           b<bit-width>@<bit-offset>/<container-size>, ustring,
	           symstr, <type>\[<array-size>\]
  events/GRP/EVENT/		- enable, filter, format and id of an event
  kprobes/			- list, enabled, blacklist: as in debugfs
  sys/debug/kprobes-optimization	- the sysctl of this name
`
