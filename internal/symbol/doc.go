// Package symbol finds names, function bounds and places in ELF programs and shared
// objects, stripped ones included, and in address spaces made of several of them.
//
// An [Image] is one ELF file, read through an io.ReaderAt: nothing here touches a
// process. A [Space] holds the images that one process maps, each with its load bias,
// and turns places (a symbol, a module's symbol, an address, a file offset) into
// run-time addresses and back.
//
// Symbols come from .symtab, .dynsym, a separate debug file (by build-id or
// .gnu_debuglink), .gnu_debugdata, Go's pclntab and the PLT; bounds of functions without
// a usable symbol come from .eh_frame.
//
// # Lifetime and concurrency
//
// Open reads the headers only. Symbol tables are read once, at the first call that needs
// them or by [Image.Load]; the reader given to Open must stay usable as long as the Image
// is used. Images and Spaces are safe for concurrent use; an Image never changes after
// Load, and a *Func belongs to its Image and must not be written.
//
// # Trust
//
// A file may be truncated or made by an enemy. Tables are bounds-checked and size-limited
// ([Options.MaxSize]); a bad header is an error of Open, a bad table is left out and told
// by [Image.Problems] and in the error of a lookup that fails. Names are passed on as they
// stand in the file: whoever prints them escapes control bytes.
//
//	f, _ := os.Open("/usr/bin/redis-server")
//	st, _ := f.Stat()
//	im, err := symbol.Open(f, st.Size(), f.Name(), nil)
//	fns, err := im.Lookup("lookupKey")
package symbol
