package soak

import (
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"crypto/sha512"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// Referee says who else counts the instructions of a Work.
type Referee string

// The referees.
const (
	Callgrind Referee = "callgrind"
	Kernel    Referee = "kernel"
	Nobody    Referee = "nobody"
)

// Work is a program with a known output. Where no comment says otherwise a field may be zero.
type Work struct {
	Name    string
	Package string // Debian's
	Path    string // of the program; Find tells it if that depends
	Find    func() (string, error)
	Args    []string
	Env     []string
	Vars    func(s *Stage) ([]string, error) // more of the environment
	Files   map[string]string                // in the directory it works in
	Ignore  *regexp.Regexp                   // files whose contents are not part of the output
	// Input makes the standard input; nil: it has none, and no middle either.
	Input func(s *Stage, size int) ([]byte, error)
	// Check says whether the output is what it must be, also without probes.
	Check   func(s *Stage, o *outcome) error
	Referee Referee
	NoTraps bool // it blocks or handles SIGTRAP sooner or later: no breakpoint may stand in it
	Go      bool
	Leaves  bool // calls are left by longjmp
	// Unsteady is how many of 100 places the kernel itself may count otherwise from run to
	// run.
	Unsteady int
}

// half is where the input is cut: behind a line if it has lines.
func (w *Work) half(in []byte) int {
	n := len(in) / 2
	if i := bytes.IndexByte(in[n:], '\n'); i >= 0 && i < len(in)/4 {
		n += i + 1
	}
	return n
}

//go:embed testdata
var data embed.FS

func file(name string) string {
	b, err := data.ReadFile("testdata/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(b)
}

// text is what programs read: words that compress, in lines; the same each time.
func text(size int) []byte {
	words := strings.Fields("the probe jump detour step boost return kernel thread record ring 17 4096 0x7fff a of to and register stack red zone flags")
	rng := rand.New(rand.NewPCG(3, 1))
	var b bytes.Buffer
	for b.Len() < size {
		for range 3 + rng.IntN(9) {
			b.WriteString(words[min(rng.IntN(len(words)), rng.IntN(len(words)))])
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%d\n", rng.IntN(100000))
	}
	return b.Bytes()
}

func plainText(scale int) func(*Stage, int) ([]byte, error) {
	return func(_ *Stage, size int) ([]byte, error) { return text(scale * size), nil }
}

// unwinder has a program map an unwinder, without which no return probe works by trampoline.
const unwinder = "LD_PRELOAD=libgcc_s.so.1"

// Works are all programs. Their order is that of the rounds.
func Works() []*Work {
	return append([]*Work{
		{
			Name: "sha256sum", Package: "coreutils", Path: "/usr/bin/sha256sum", Referee: Callgrind,
			Input: plainText(30000), Check: checkSum,
		},
		{
			Name: "gzip", Package: "gzip", Path: "/usr/bin/gzip", Args: []string{"-9", "-c"}, Referee: Callgrind,
			Input: plainText(15000), Check: checkGzip,
		},
		{
			Name: "gunzip", Package: "gzip", Path: "/usr/bin/gzip", Args: []string{"-d", "-c"}, Referee: Callgrind,
			Input: gzipped, Check: checkText(30000),
		},
		{
			Name: "bzip2", Package: "bzip2", Path: "/usr/bin/bzip2", Args: []string{"-1", "-c"}, Referee: Callgrind,
			Input: plainText(15000), Check: checkBzip2,
		},
		{
			Name: "bunzip2", Package: "bzip2", Path: "/usr/bin/bzip2", Args: []string{"-d", "-c"}, Referee: Callgrind,
			Input: bzipped, Check: checkText(30000),
		},
		{
			Name: "sqlite3", Package: "sqlite3", Path: "/usr/bin/sqlite3", Args: []string{"-batch", ":memory:"}, Referee: Callgrind,
			Env:   []string{unwinder},
			Input: script("sqlite.sql"),
		},
		{
			Name: "bash", Package: "bash", Path: "/usr/bin/bash", Args: []string{"script"}, Referee: Callgrind, NoTraps: true, Leaves: true,
			Env:   []string{unwinder},
			Files: map[string]string{"script": file("bash.sh")}, Input: plainText(2500),
		},
		{
			Name: "shell", Package: "bash", Path: "/usr/bin/bash", Args: []string{"script"}, Referee: Nobody, NoTraps: true, Leaves: true,
			Env:   []string{unwinder},
			Files: map[string]string{"script": file("shell.sh"), "all": string(text(2500))}, Input: plainText(1000),
		},
		{
			Name: "perl", Package: "perl", Path: "/usr/bin/perl", Args: []string{"script"}, Referee: Callgrind, Leaves: true,
			Env:   []string{"PERL_HASH_SEED=0", "PERL_PERTURB_KEYS=0"},
			Files: map[string]string{"script": file("perl.pl")}, Input: plainText(6000),
		},
		{
			Name: "python", Package: "python3", Path: "/usr/bin/python3", Args: []string{"-S", "-B", "script"}, Referee: Callgrind,
			Env:   []string{"PYTHONHASHSEED=0", "PYTHONHOME=/usr"},
			Files: map[string]string{"script": file("python.py")}, Input: plainText(6000), Unsteady: 10,
		},
		openssl("sha512", plainText(40000), checkSHA512, "dgst", "-sha512", "-r"),
		openssl("chacha", plainText(40000), nil, "enc", "-chacha20", "-e", "-K", sslKey, "-iv", sslIV),
		openssl("unchacha", chachaed, checkText(40000), "enc", "-chacha20", "-d", "-K", sslKey, "-iv", sslIV),
		openssl("ctr", plainText(40000), checkCTR, "enc", "-aes-256-ctr", "-e", "-K", sslKey, "-iv", sslIV),
		openssl("poly1305", plainText(40000), nil, "mac", "-macopt", "hexkey:"+sslKey, "poly1305"),
	}, goWorks()...)
}

// goWorks are those in Go.
func goWorks() []*Work {
	return []*Work{
		{
			Name: "compile", Find: goTool("compile"), Args: strings.Fields("-o out.o -p soak -complete -c=1 -trimpath . /dev/stdin"), Referee: Kernel,
			Env:   []string{"GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1"},
			Input: func(*Stage, int) ([]byte, error) { return []byte(goSource()), nil }, Go: true, Unsteady: 60,
		},
		{
			Name: "go", Find: goProgram, Args: strings.Fields("build -trimpath -p 1 -o out.a"), Referee: Kernel,
			Env: []string{"GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1"}, Vars: goVars,
			Files:  map[string]string{"soak.go": goSource(), "go.mod": "module soak\n\ngo 1.25\n"},
			Ignore: regexp.MustCompile(`^(cache|home|tmp)/`), Go: true, Unsteady: 80,
		},
	}
}

func script(name string) func(*Stage, int) ([]byte, error) {
	return func(_ *Stage, size int) ([]byte, error) {
		return []byte(strings.Repeat(file(name), size)), nil
	}
}

func gzipped(_ *Stage, size int) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(text(30000 * size)); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func bzipped(s *Stage, size int) ([]byte, error) {
	cmd := exec.Command(s.program, "-c")
	cmd.Stdin = bytes.NewReader(text(30000 * size))
	return cmd.Output()
}

func checkSum(s *Stage, o *outcome) error {
	sum := sha256.Sum256(s.input)
	return want(o.stdout, hex.EncodeToString(sum[:])+"  -\n")
}

func checkGzip(s *Stage, o *outcome) error {
	r, err := gzip.NewReader(strings.NewReader(o.stdout))
	if err != nil {
		return err
	}
	return unpacked(s, r)
}

func checkBzip2(s *Stage, o *outcome) error {
	return unpacked(s, bzip2.NewReader(strings.NewReader(o.stdout)))
}

func unpacked(s *Stage, r io.Reader) error {
	got, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return want(string(got), string(s.input))
}

// checkText says whether the output is the text that was packed, whatever its size.
func checkText(scale int) func(*Stage, *outcome) error {
	return func(_ *Stage, o *outcome) error {
		size := max(1, len(o.stdout)/scale)
		return want(o.stdout, string(text(scale*size)))
	}
}

// Key and initial vector of all encryptions.
const (
	sslKey = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	sslIV  = "0f0e0d0c0b0a09080706050403020100"
)

// openssl is a Work with OpenSSL's program, whose library takes what the CPU offers, AVX-512
// too.
func openssl(name string, in func(*Stage, int) ([]byte, error), check func(*Stage, *outcome) error, args ...string) *Work {
	return &Work{Name: "ssl-" + name, Package: "openssl", Path: "/usr/bin/openssl", Args: args, Env: []string{unwinder}, Referee: Kernel, Input: in, Check: check}
}

func chachaed(s *Stage, size int) ([]byte, error) {
	cmd := exec.Command(s.program, "enc", "-chacha20", "-e", "-K", sslKey, "-iv", sslIV)
	cmd.Stdin = bytes.NewReader(text(40000 * size))
	return cmd.Output()
}

func checkSHA512(s *Stage, o *outcome) error {
	sum := sha512.Sum512(s.input)
	return want(o.stdout, hex.EncodeToString(sum[:])+" *stdin\n")
}

func checkCTR(s *Stage, o *outcome) error {
	key, _ := hex.DecodeString(sslKey)
	iv, _ := hex.DecodeString(sslIV)
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	out := make([]byte, len(s.input))
	cipher.NewCTR(block, iv).XORKeyStream(out, s.input)
	return want(o.stdout, string(out))
}

func want(got, want string) error {
	if got != want {
		return fmt.Errorf("the output is wrong: %s", firstDifference(got, want))
	}
	return nil
}

// goSource is a package of many functions.
func goSource() string {
	text := file("soak.go.txt")
	_, body, _ := strings.Cut(text, "package soak\n")
	names := regexp.MustCompile(`\b(number|Tree|node|Words|Sum|Sort|Ints|Floats)\b`)
	for i := range 25 {
		text += names.ReplaceAllString(body, fmt.Sprintf("${1}%d", i))
	}
	return text
}

func goRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func goProgram() (string, error) {
	root, err := goRoot()
	return filepath.Join(root, "bin", "go"), err
}

func goTool(name string) func() (string, error) {
	return func() (string, error) {
		root, err := goRoot()
		return filepath.Join(root, "pkg", "tool", runtime.GOOS+"_"+runtime.GOARCH, name), err
	}
}

// goVars are what the go command needs to build with nothing but its own directory.
func goVars(s *Stage) ([]string, error) {
	root, err := goRoot()
	dir := filepath.Join(s.dir, "work")
	tmp := filepath.Join(s.dir, "tmp")
	return []string{
		"GOROOT=" + root, "GOCACHE=" + dir + "/cache", "GOPATH=" + dir + "/home", "GOTOOLCHAIN=local", "GOPROXY=off",
		"GOFLAGS=-buildvcs=false", "GOENV=off", "GOTELEMETRY=off", "GOTMPDIR=" + tmp, "CGO_ENABLED=0",
	}, errors.Join(err, os.MkdirAll(tmp, 0o755))
}
