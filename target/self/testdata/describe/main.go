// Program describe prints, as JSON, what package self finds out about the program's own
// runtime: the layout, and the signal path by the names of its functions.
package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"log"
	"os"
	"runtime"
	_ "unsafe"

	"kprobes.dev/kprobes/internal/goabi"
	"kprobes.dev/kprobes/internal/symbol"
	_ "kprobes.dev/kprobes/target/self"
)

// layout is that of package self.
type layout struct {
	goabi.Layout
	TLS int32
}

//go:linkname findLayout kprobes.dev/kprobes/target/self.findLayout
func findLayout() (*layout, error)

//go:linkname signalPath kprobes.dev/kprobes/target/self.signalPath
func signalPath(sp *symbol.Space) (map[uint64]string, error)

// report is the output.
type report struct {
	Version string
	Layout  *layout
	Path    map[string]string
}

func main() {
	log.SetFlags(0)
	r := report{Version: runtime.Version(), Path: map[string]string{}}
	var err error
	if r.Layout, err = findLayout(); err != nil {
		log.Fatal(err)
	}
	sp, err := own()
	if err != nil {
		log.Fatal(err)
	}
	path, err := signalPath(sp)
	if err != nil {
		log.Fatal(err)
	}
	for addr, why := range path {
		loc, ok := sp.SymbolAt(addr)
		if !ok || loc.Off != 0 {
			log.Fatalf("0x%x in the signal path is no function's entry", addr)
		}
		r.Path[loc.Name] = why
	}
	if err := json.NewEncoder(os.Stdout).Encode(&r); err != nil {
		log.Fatal(err)
	}
}

// own gives the program's own file where it is loaded.
func own() (*symbol.Space, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	im, err := symbol.Open(f, st.Size(), "/proc/self/exe", nil)
	if err != nil {
		return nil, err
	}
	bias, err := loadBias(im)
	if err != nil {
		return nil, err
	}
	sp := symbol.NewSpace()
	sp.Add(im, bias, "describe")
	return sp, nil
}

// loadBias compares where the program begins with where its file says.
func loadBias(im *symbol.Image) (uint64, error) {
	const atEntry = 9 // AT_ENTRY
	aux, err := os.ReadFile("/proc/self/auxv")
	if err != nil {
		return 0, err
	}
	for ; len(aux) >= 16; aux = aux[16:] {
		if binary.LittleEndian.Uint64(aux) == atEntry {
			return binary.LittleEndian.Uint64(aux[8:]) - im.Entry(), nil
		}
	}
	return 0, errors.New("/proc/self/auxv does not tell the program's entry")
}
