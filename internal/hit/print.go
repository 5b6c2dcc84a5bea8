package hit

import "fmt"

// PrintFormat is the format file of the kernel's print event, which records of text are (print_entry in kernel/trace/trace_entries.h, Linux
// 6.18). id is its number.
func PrintFormat(id int) string {
	return fmt.Sprintf("name: print\nID: %d\nformat:\n%s\tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;\n"+
		"\tfield:char buf[];\toffset:16;\tsize:0;\tsigned:0;\n\nprint fmt: \"%%ps: %%s\", (void *)REC->ip, REC->buf\n", id, commonFields)
}
