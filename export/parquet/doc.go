// Package parquet makes Parquet files of a trace.dat file, for DuckDB and other query engines: a file for each event, whose columns are those that all
// events have and the event's arguments, with their types. An event has a file of its own, since its arguments are its own: in one file for all most columns
// of a row would be empty, and arguments of one name and two types would have no column.
//
// The columns that all events have:
//
//	time      timestamp, nanoseconds: since the machine booted (CLOCK_MONOTONIC), or with Options.Boot of the day
//	cpu       int32
//	tid       int32, the thread; in a guest's kernel as the guest numbers it
//	comm      string, the thread's name
//	place     string, the symbol of the instruction, of a return the function
//	caller    string, of a return: where it went on
//
// An argument is a column of its own name: an integer of its size and sign, a string, or a list of 64-bit integers. It is null where the record does not have it. A
// name that one of the columns above has gets an underscore behind it.
package parquet
