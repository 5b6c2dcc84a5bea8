// A shared object with the mark of OCaml's frame tables, for callers.
// build: -shared -fPIC -Wl,-soname,libframes.so
#include <stdint.h>

uint64_t caml_frametable[2];
