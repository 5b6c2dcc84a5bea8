package goabi

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"kprobes.dev/kprobes/internal/symbol"
)

// sameName compares a type's name in the program's debug information with its linkName. The names
// within an interface type are compared without their packages, see linkName.
func sameName(debug, link string) bool {
	return debug == link || strings.Contains(link, "interface { ") && unqualified(debug) == unqualified(link)
}

// unqualified leaves out the packages of all names in a type's name.
func unqualified(name string) string {
	var b strings.Builder
	for name != "" {
		end := strings.IndexAny(name, " []{}(),;*")
		if end < 0 {
			end = len(name)
		}
		b.WriteString(name[strings.LastIndexByte(name[:end], '.')+1 : end])
		if name = name[end:]; name != "" {
			b.WriteByte(name[0])
			name = name[1:]
		}
	}
	return b.String()
}

// withoutOrdinals leaves out what the compiler puts behind the name of a type that is declared in
// a function, a middle dot and a number: reflect does not show them.
func withoutOrdinals(name string) string {
	const dot = "·"
	before, rest, found := strings.Cut(name, dot)
	if !found {
		return name
	}
	out := before
	for found {
		after := strings.TrimLeft(rest, "0123456789")
		if len(after) == len(rest) {
			out += dot
		}
		before, rest, found = strings.Cut(after, dot)
		out += before
	}
	return out
}

// paramWords writes the parameters of a function: "(a int, b string)".
func paramWords(ps []symbol.Param) string {
	words := make([]string, len(ps))
	for i, p := range ps {
		words[i] = withoutOrdinals(p.Type)
		if p.Name != "" && p.Name[0] != '~' {
			words[i] = p.Name + " " + words[i]
		}
	}
	return "(" + strings.Join(words, ", ") + ")"
}

func typeWords(ts []reflect.Type) string { return withoutOrdinals(typeList(ts)) }

// linkName is a type's name as the Go linker writes it (cmd/compile/internal/types,
// Type.LinkString): with whole import paths, so that two types of one name are of one type,
// except those that are declared in functions. An interface type that has methods and no name is
// written as reflect does, with package names alone: to ask a reflect.Type for its methods would make
// the linker keep the methods of all types of the program.
func linkName(t reflect.Type) string {
	if t.Name() != "" {
		return qualified(t.PkgPath(), t.Name())
	}
	switch t.Kind() {
	case reflect.Pointer:
		return "*" + linkName(t.Elem())
	case reflect.Slice:
		return "[]" + linkName(t.Elem())
	case reflect.Array:
		return "[" + strconv.Itoa(t.Len()) + "]" + linkName(t.Elem())
	case reflect.Map:
		return "map[" + linkName(t.Key()) + "]" + linkName(t.Elem())
	case reflect.Chan:
		return chanName(t)
	case reflect.Func:
		return "func" + funcName(t)
	case reflect.Struct:
		return braced("struct", t.NumField(), func(i int) string { return fieldName(t.Field(i)) })
	}
	return t.String()
}

// qualified puts a package's path before a name; predeclared types have none, and package
// unsafe's Pointer has it in its name.
func qualified(path, name string) string {
	if path == "" {
		return name
	}
	return escapePath(path) + "." + name
}

// escapePath is an import path as it stands in symbols: a dot in the last element, blanks,
// percent signs, quotes and what is not ASCII are written as %xx (cmd/internal/objabi,
// PathToPrefix).
func escapePath(path string) string {
	slash := strings.LastIndexByte(path, '/')
	var b strings.Builder
	for i := range len(path) {
		if c := path[i]; c <= ' ' || c == '.' && i > slash || c == '%' || c == '"' || c >= 0x7f {
			fmt.Fprintf(&b, "%%%02x", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func chanName(t reflect.Type) string {
	elem := linkName(t.Elem())
	switch {
	case t.ChanDir() == reflect.RecvDir:
		return "<-chan " + elem
	case t.ChanDir() == reflect.SendDir:
		return "chan<- " + elem
	case strings.HasPrefix(elem, "<-"):
		return "chan (" + elem + ")"
	}
	return "chan " + elem
}

// funcName is a func type without the word.
func funcName(t reflect.Type) string {
	in := make([]string, t.NumIn())
	for i := range in {
		in[i] = linkName(t.In(i))
	}
	if t.IsVariadic() {
		in[len(in)-1] = "..." + strings.TrimPrefix(in[len(in)-1], "[]")
	}
	s := "(" + strings.Join(in, ", ") + ")"
	switch t.NumOut() {
	case 0:
		return s
	case 1:
		return s + " " + linkName(t.Out(0))
	}
	return s + " " + typeList(outTypes(t))
}

func typeList(ts []reflect.Type) string {
	names := make([]string, len(ts))
	for i, t := range ts {
		names[i] = linkName(t)
	}
	return "(" + strings.Join(names, ", ") + ")"
}

func braced(word string, n int, part func(int) string) string {
	if n == 0 {
		return word + " {}"
	}
	parts := make([]string, n)
	for i := range parts {
		parts[i] = part(i)
	}
	return word + " { " + strings.Join(parts, "; ") + " }"
}

// fieldName is a field of a struct: name, type and tag; of an embedded one the name is left
// out unless its type goes by another.
func fieldName(f reflect.StructField) string {
	name, s := qualified(f.PkgPath, f.Name), linkName(f.Type)
	switch {
	case !f.Anonymous:
		s = name + " " + s
	case !embedsOwnName(f):
		s = name + " = " + s
	}
	if f.Tag != "" {
		s += " " + strconv.Quote(string(f.Tag))
	}
	return s
}

// embedsOwnName reports whether an embedded field is called as its type is: not so for an
// alias, nor for a predeclared or a generic type.
func embedsOwnName(f reflect.StructField) bool {
	t := f.Type
	if t.Kind() == reflect.Pointer && t.Name() == "" {
		t = t.Elem()
	}
	return t.Name() == f.Name && (f.PkgPath == "" || f.PkgPath == t.PkgPath())
}

func outTypes(t reflect.Type) []reflect.Type {
	ts := make([]reflect.Type, t.NumOut())
	for i := range ts {
		ts[i] = t.Out(i)
	}
	return ts
}

func inTypes(t reflect.Type) []reflect.Type {
	ts := make([]reflect.Type, t.NumIn())
	for i := range ts {
		ts[i] = t.In(i)
	}
	return ts
}
