package symbol

import "strings"

// DataBetween gives the variables whose names have a prefix and a suffix, such as the tables of Go's interfaces, in the order of the
// symbol table. A stripped file has none.
func (im *Image) DataBetween(prefix, suffix string) (out []Sym) {
	for _, o := range im.table().objs {
		if len(o.name) >= len(prefix)+len(suffix) && strings.HasPrefix(o.name, prefix) && strings.HasSuffix(o.name, suffix) && !o.tls {
			out = append(out, Sym{Name: o.name, Addr: o.addr, Size: o.size, File: o.file})
		}
	}
	return out
}
