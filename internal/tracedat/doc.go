// Package tracedat writes and reads trace.dat files, version 6: the form in which trace-cmd keeps records of the kernel's ring buffer
// (trace-cmd.dat.v6(5) of trace-cmd 3.1). A file has in its order
//
//	17 08 44 "tracing" "6" 00           magic and version
//	u8, u8, u32                         byte order (0: little endian), bytes of a long, bytes of a page
//	"header_page" 00 u64 TEXT           the files of these names in events/
//	"header_event" 00 u64 TEXT
//	u32 {u64 TEXT}                      the formats of the events of ftrace itself
//	u32 {NAME 00 u32 {u64 TEXT}}        the formats of all others, by system
//	u32 TEXT                            symbols, as in /proc/kallsyms
//	u32 TEXT                            printk_formats
//	u64 TEXT                            names of threads: "PID NAME" lines
//	u32                                 CPUs
//	"options  " 00 {u16 u32 DATA} u16   options, 0 ends them
//	"flyrecord" 00 {u64 u64}            of each CPU, where in the file its pages lie and how many bytes they are
package tracedat
