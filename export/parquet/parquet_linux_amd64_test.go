package parquet

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/testprog"
)

// duckDB gives a function that has DuckDB answer queries in a directory, and gives their rows. It comes from the npm registry, with its library in the package, and is kept.
func duckDB(t *testing.T, dir string) func(queries ...string) [][]map[string]any {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(cache, "kprobes", "duckdb-test")
	if err := os.MkdirAll(home, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"package.json", "package-lock.json", "query.mjs"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(home, name), b, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	npm := exec.Command("npm", "install", "--no-audit", "--no-fund", "--prefer-offline")
	npm.Dir = home
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm: %v: %s", err, out)
	}
	return func(queries ...string) (all [][]map[string]any) {
		t.Helper()
		cmd := exec.Command("node", append([]string{filepath.Join(home, "query.mjs")}, queries...)...)
		cmd.Dir, cmd.Stderr = dir, os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("DuckDB: %v", err)
		}
		for line := range strings.Lines(string(out)) {
			var rows []map[string]any
			if err := json.Unmarshal([]byte(line), &rows); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			all = append(all, rows)
		}
		return all
	}
}

// record has kprobe record what the program work does, and gives the file.
func record(t *testing.T, threads, calls int, probes ...string) string {
	t.Helper()
	dir := t.TempDir()
	kprobe, file := filepath.Join(dir, "kprobe"), filepath.Join(dir, "trace.dat")
	build := exec.Command("go", "build", "-o", kprobe, "./cmd/kprobe")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	args := append([]string{"record", "-o", file}, probes...)
	if out, err := exec.Command(kprobe, append(args, "--", testprog.Build(t, "work"), strconv.Itoa(threads), strconv.Itoa(calls))...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

// TestDuckDB has DuckDB read what Convert makes of a recording: columns and types, and the values that the program's own definition says.
func TestDuckDB(t *testing.T) {
	const threads, calls = 2, 2000
	file := record(t, threads, calls,
		"p:six f_six a=%di:u64 c=%dx:s32 time=%si:u64", "r:str f_str v=$retval:u8 s=+0($arg1):string", "p:small f_small a=%di:s8 b=%si:u16", "p:ptr f_ptr x=+0(%di):u32[2]")
	dir := t.TempDir()
	files, lost, unknown, err := Convert(file, dir, nil)
	if err != nil || lost != 0 || unknown != 0 || len(files) != 4 {
		t.Fatalf("%v, %d lost, %d unknown: %v", files, lost, unknown, err)
	}
	for _, f := range files {
		if f.Rows != threads*calls {
			t.Errorf("%s has %d rows", f.Path, f.Rows)
		}
	}
	ask := duckDB(t, dir)
	got := ask(
		"describe select * from 'kprobes.six.parquet'",
		"select count(*) n, count(distinct a) d, sum(a)::varchar a, sum(c)::varchar c, count(distinct tid) tids, min(comm) comm, min(place) place, count(caller) callers, bool_and(time_ = a+1) same from 'kprobes.six.parquet'",
		"select count(*) n, count(distinct s) d, sum(v)::varchar v, min(place) place, bool_and(caller like 'work+0x%') caller, bool_and(length(s)+(split_part(s, '-', 3)::int & 15) = v) same from 'kprobes.str.parquet'",
		"select sum(a)::varchar a, min(a) least, sum(b)::varchar b, typeof(min(a)) ta, typeof(min(b)) tb from 'kprobes.small.parquet'",
		"select count(*) n, bool_and(len(x) = 2 and x[1] < "+strconv.Itoa(calls)+" and x[2] < "+strconv.Itoa(threads)+") same from 'kprobes.ptr.parquet'",
		"select count(*) n from (select time, lag(time) over (order by file_row_number) as earlier from read_parquet('kprobes.six.parquet', file_row_number=true)) where earlier > time",
		"select count(*) n from read_parquet('*.parquet', union_by_name=true)",
		"select typeof(min(time)) t, min(time)::timestamp_ns::varchar as earliest from 'kprobes.six.parquet'",
	)
	types := map[string]string{}
	var order []string
	for _, c := range got[0] {
		types[c["column_name"].(string)] = c["column_type"].(string)
		order = append(order, c["column_name"].(string))
	}
	if names := strings.Join(order, " "); names != "time cpu tid comm place caller a c time_" || types["time"] != "TIMESTAMP_NS" || types["a"] != "UBIGINT" || types["c"] != "INTEGER" || types["cpu"] != "INTEGER" || types["comm"] != "VARCHAR" {
		t.Errorf("columns %s: %v", names, types)
	}
	var a, c, v, small, b int64
	for th := range int64(threads) {
		for i := range int64(calls) {
			a += th<<32 | i
			c += int64(int32(th<<32 | i + 2))
			v += int64(len(fmt.Sprintf("call-%d-%d", th, i))) + i&15
			small -= i & 127
			b += i & 0xffff
		}
	}
	const n = threads * calls
	for i, want := range []map[string]any{
		1: {"n": n, "d": n, "a": a, "c": c, "tids": threads, "comm": "work", "place": "f_six", "callers": 0, "same": true},
		2: {"n": n, "d": n, "v": v, "place": "f_str", "caller": true, "same": true},
		3: {"a": small, "least": -127, "b": b, "ta": "TINYINT", "tb": "USMALLINT"},
		4: {"n": n, "same": true},
		5: {"n": 0},
		6: {"n": 4 * n},
	} {
		for name, w := range want {
			if g := got[i][0][name]; fmt.Sprint(g) != fmt.Sprint(w) {
				t.Errorf("query %d: %s is %v, want %v", i, name, g, w)
			}
		}
	}
	first := got[7][0]["earliest"].(string)
	if got[7][0]["t"] != "TIMESTAMP_NS" || !strings.HasPrefix(first, "1970-") {
		t.Errorf("times: %v", got[7][0])
	}

	boot := time.Date(2026, 1, 31, 8, 0, 0, 5, time.UTC)
	later := t.TempDir()
	if _, _, _, err := Convert(file, later, &Options{Boot: boot}); err != nil {
		t.Fatal(err)
	}
	moved := ask(fmt.Sprintf("select (epoch_ns(min(time)) - (select epoch_ns(min(time)) from 'kprobes.six.parquet'))::varchar d from '%s/kprobes.six.parquet'", later))
	if d := moved[0][0]["d"]; d != strconv.FormatInt(boot.UnixNano(), 10) {
		t.Errorf("times are later by %v, want %d", d, boot.UnixNano())
	}
}

// TestConvertRefuses gives Convert what is no file of its kind.
func TestConvertRefuses(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("no trace"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{bad, bad + "nosuch"} {
		if _, _, _, err := Convert(path, t.TempDir(), nil); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
