package main

import "strings"

// checkCPU judges the text of /proc/cpuinfo.
func checkCPU(text string) []finding {
	flags := strings.Fields(cpuField(text, "flags"))
	has := func(name string) bool {
		for _, f := range flags {
			if f == name {
				return true
			}
		}
		return false
	}
	lahf := fine("cpu", "%s", cpuField(text, "model name"))
	if !has("lahf_lm") {
		lahf = lahf.fail("it has no lahf in 64-bit mode, by which generated code keeps the flags")
	}
	rdpid := fine("rdpid", "the CPU's number comes from rdpid")
	if !has("rdpid") {
		rdpid = fine("rdpid", "not in this CPU").warn("threads without rseq ask for the CPU's number by lsl, a few ns more")
	}
	shstk := fine("shadow stacks", "not used by this CPU's kernel")
	if has("user_shstk") {
		shstk = fine("shadow stacks", "offered: a process that turned them on is refused")
	}
	return []finding{lahf, rdpid, shstk}
}
