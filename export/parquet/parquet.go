package parquet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"

	"kprobes.dev/kprobes/internal/tracedat"
)

// Options are the choices of Convert; nil means the defaults.
type Options struct {
	// Boot is when the machine booted, for times of the day; zero: times are since then.
	Boot time.Time
}

// Written is a file that Convert has written.
type Written struct {
	Path string
	Rows uint64
}

// Convert makes a file GROUP.EVENT.parquet in the directory dir of each event that the file at path has records of. The directory is made if it is not there;
// files of the names are written anew. Lost are the hits of which the file says that they were lost; unknown are records of events that it does not describe.
// After an error there may be files that are not complete.
func Convert(path, dir string, o *Options) (files []Written, lost, unknown uint64, err error) {
	in, err := tracedat.Open(path)
	if err != nil {
		return nil, 0, 0, err
	}
	defer in.Close()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, 0, 0, err
	}
	c := &converter{in: in, dir: dir, tables: map[*tracedat.Event]*table{}}
	if o != nil && !o.Boot.IsZero() {
		c.boot = o.Boot.UnixNano()
	}
	err = in.Each(c.record)
	for _, t := range c.order {
		err = errors.Join(err, t.close())
		files = append(files, Written{t.file.Name(), t.rows})
	}
	return files, c.lost, c.unknown, err
}

type converter struct {
	in            *tracedat.File
	dir           string
	boot          int64
	tables        map[*tracedat.Event]*table
	order         []*table
	lost, unknown uint64
}

// table is the file of an event.
type table struct {
	event *tracedat.Event
	row   reflect.Type
	file  *os.File
	out   *parquet.GenericWriter[any]
	rows  uint64
}

// The columns that all events have.
const (
	colTime = iota
	colCPU
	colTID
	colComm
	colPlace
	colCaller
	colArgs // the first argument
)

// fixed are the columns that all events have, in the order above.
var fixed = []reflect.StructField{
	column("Time", "time,timestamp(nanosecond:local)", reflect.TypeFor[int64]()),
	column("CPU", "cpu", reflect.TypeFor[int32]()),
	column("TID", "tid", reflect.TypeFor[int32]()),
	column("Comm", "comm,dict", reflect.TypeFor[string]()),
	column("Place", "place,dict,optional", reflect.TypeFor[*string]()),
	column("Caller", "caller,dict,optional", reflect.TypeFor[*string]()),
}

func column(field, tag string, t reflect.Type) reflect.StructField {
	return reflect.StructField{Name: field, Type: t, Tag: reflect.StructTag(fmt.Sprintf("parquet:%q", tag+",zstd"))}
}

// record adds a record to the file of its event. The stack behind a record has no row.
func (c *converter) record(r *tracedat.Record) error {
	c.lost += r.Lost.N
	e := r.Event()
	if e == nil {
		c.unknown++
		return nil
	}
	if e.Stack {
		return nil
	}
	t := c.tables[e]
	if t == nil {
		var err error
		if t, err = c.table(e); err != nil {
			return err
		}
	}
	row := reflect.New(t.row)
	c.fill(row.Elem(), t, r)
	t.rows++
	_, err := t.out.Write([]any{row.Interface()})
	return err
}

// table makes the file of an event.
func (c *converter) table(e *tracedat.Event) (*table, error) {
	t := &table{event: e, row: rowType(e)}
	name := strings.NewReplacer("/", "_", "\x00", "_").Replace(e.Group + "." + e.Name)
	var err error
	if t.file, err = os.Create(filepath.Join(c.dir, name+".parquet")); err != nil {
		return nil, err
	}
	t.out = parquet.NewGenericWriter[any](t.file, parquet.SchemaOf(reflect.New(t.row).Interface()), parquet.CreatedBy("kprobe-parquet", "", ""))
	c.tables[e] = t
	c.order = append(c.order, t)
	return t, nil
}

func (t *table) close() error { return errors.Join(t.out.Close(), t.file.Close()) }

// rowType is the type of an event's rows.
func rowType(e *tracedat.Event) reflect.Type {
	fields := append([]reflect.StructField(nil), fixed...)
	taken := map[string]bool{"time": true, "cpu": true, "tid": true, "comm": true, "place": true, "caller": true}
	for i := range e.Fields {
		name := strings.NewReplacer(",", "_", `"`, "_", "`", "_").Replace(e.Fields[i].Name)
		for taken[strings.ToLower(name)] { // DuckDB does not tell capitals from small letters
			name += "_"
		}
		taken[strings.ToLower(name)] = true
		t := argType(&e.Fields[i])
		tag := name + ",optional"
		if e.Fields[i].Count > 0 && !e.Fields[i].Text {
			tag = name + ",list"
		}
		fields = append(fields, column(fmt.Sprintf("Arg%d", i), tag, t))
	}
	return reflect.StructOf(fields)
}

// argType is the type of an argument's column.
func argType(f *tracedat.Field) reflect.Type {
	switch {
	case f.Text:
		return reflect.TypeFor[*string]()
	case f.Count > 0 && f.Signed:
		return reflect.TypeFor[[]int64]()
	case f.Count > 0:
		return reflect.TypeFor[[]uint64]()
	}
	types := map[int][2]reflect.Type{
		1: {reflect.TypeFor[*uint8](), reflect.TypeFor[*int8]()},
		2: {reflect.TypeFor[*uint16](), reflect.TypeFor[*int16]()},
		4: {reflect.TypeFor[*uint32](), reflect.TypeFor[*int32]()},
		8: {reflect.TypeFor[*uint64](), reflect.TypeFor[*int64]()},
	}
	pair, ok := types[f.Size]
	if !ok {
		pair = types[8]
	}
	if f.Signed {
		return pair[1]
	}
	return pair[0]
}

// fill fills a row with a record.
func (c *converter) fill(row reflect.Value, t *table, r *tracedat.Record) {
	row.Field(colTime).SetInt(c.boot + int64(r.Nanos))
	row.Field(colCPU).SetInt(int64(int32(r.CPU)))
	row.Field(colTID).SetInt(int64(int32(r.TID)))
	row.Field(colComm).SetString(strings.ToValidUTF8(c.in.Comm(r.TID), "\uFFFD"))
	ip, fn, caller := r.Place()
	c.symbol(row.Field(colPlace), max(ip, fn))
	c.symbol(row.Field(colCaller), caller)
	for i := range t.event.Fields {
		set(row.Field(colArgs+i), r.Value(&t.event.Fields[i]))
	}
}

// symbol sets a column to the symbol of an address; 0: to null.
func (c *converter) symbol(to reflect.Value, addr uint64) {
	if addr == 0 {
		return
	}
	name, off := c.in.Symbol(addr)
	text := fmt.Sprintf("0x%x", addr)
	switch {
	case name != "" && off > 0 && !strings.HasPrefix(name, "0x"):
		text = fmt.Sprintf("%s+0x%x", name, off)
	case name != "":
		text = name
	}
	to.Set(reflect.ValueOf(&text))
}

// set sets a column to a value; nil: to null.
func set(to reflect.Value, v any) {
	switch v := v.(type) {
	case nil:
	case string:
		s := strings.ToValidUTF8(v, "\uFFFD")
		to.Set(reflect.ValueOf(&s))
	case []any:
		list := reflect.MakeSlice(to.Type(), len(v), len(v))
		for i := range v {
			list.Index(i).Set(reflect.ValueOf(v[i]))
		}
		to.Set(list)
	default:
		p := reflect.New(to.Type().Elem())
		p.Elem().Set(reflect.ValueOf(v).Convert(to.Type().Elem()))
		to.Set(p)
	}
}
