package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"kprobes.dev/kprobes/internal/testprog"
)

// fleet are the files that users copy.
const fleet = "../../examples/fleet"

// yamlIn reads the documents of a file of YAML.
func yamlIn(t *testing.T, name string) (all []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(fleet, name))
	if err != nil {
		t.Fatal(err)
	}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var one map[string]any
		err := d.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, one)
	}
}

// valueAt follows keys, and indices of lists, in a document.
func valueAt(t *testing.T, of any, keys ...any) any {
	t.Helper()
	for _, k := range keys {
		var next any
		switch k := k.(type) {
		case string:
			m, _ := of.(map[string]any)
			next = m[k]
		case int:
			if l, _ := of.([]any); k < len(l) {
				next = l[k]
			}
		}
		if next == nil {
			t.Fatalf("there is no %v of %v", k, keys)
		}
		of = next
	}
	return of
}

// TestFleet has the programs that read the files of examples/fleet check them: kprobe agent and promtool. What containers are given is where their configurations look for it.
func TestFleet(t *testing.T) {
	dir := t.TempDir()
	daemons := yamlIn(t, "daemonset.yaml")
	text, _ := valueAt(t, daemons[0], "data", "probes.yaml").(string)
	if strings.Count(text, "POD_IP") != 1 {
		t.Errorf("want the pod's address once:\n%s", text)
	}
	for name, text := range map[string]string{"agent.yaml": strings.ReplaceAll(text, "POD_IP", "192.0.2.1"), "token": httpToken} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{filepath.Join(fleet, "probes.yaml"), filepath.Join(dir, "agent.yaml")} {
		if o := run(t, command(t, "agent", "-c", file, "--check")); o.code != 0 {
			t.Errorf("%s: %v", file, o)
		}
	}
	prometheus, err := os.ReadFile(filepath.Join(fleet, "prometheus.yml"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "prometheus.yml"), prometheus, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("promtool", "check", "config", filepath.Join(dir, "prometheus.yml")).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v: %s", err, out)
	}
	compose := yamlIn(t, "compose.yaml")[0]
	probes := yamlIn(t, "probes.yaml")[0]
	scraped := yamlIn(t, "prometheus.yml")[0]
	endpoint := "http://" + valueAt(t, yamlIn(t, "collector.yaml")[0], "receivers", "otlp", "protocols", "http", "endpoint").(string)
	if valueAt(t, probes, "listen") != valueAt(t, scraped, "scrape_configs", 0, "static_configs", 0, "targets", 0) || valueAt(t, probes, "otlp", "endpoint") != endpoint {
		t.Error("the programs of compose.yaml do not find each other")
	}
	pod := valueAt(t, daemons[1], "spec", "template", "spec")
	want := fmt.Sprint([]any{"SYS_PTRACE", "SYS_ADMIN", "DAC_OVERRIDE"})
	for what, got := range map[string]any{
		"compose.yaml": valueAt(t, compose, "services", "agent", "cap_add"), "daemonset.yaml": valueAt(t, pod, "containers", 0, "securityContext", "capabilities", "add"),
	} {
		if fmt.Sprint(got) != want {
			t.Errorf("%s: the agent has %v, want %s", what, got, want)
		}
	}
	if valueAt(t, compose, "services", "agent", "pid") != "host" || valueAt(t, pod, "hostPID") != true {
		t.Error("an agent does not see the machine's processes")
	}
}

// TestAgentConfined has an agent as the containers of examples/fleet have it: the static program alone in its file system, with /proc and /sys, and root with three capabilities. (CAP_SYS_CHROOT is
// the test's.) It probes the processes of another user, those that run and those that come.
func TestAgentConfined(t *testing.T) {
	root := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(root, "kprobe"), "kprobes.dev/kprobes/cmd/kprobe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	err := errors.Join(os.Mkdir(filepath.Join(root, "proc"), 0o755), os.Mkdir(filepath.Join(root, "sys"), 0o755),
		os.WriteFile(filepath.Join(root, "token"), []byte(httpToken), 0o400))
	if err != nil {
		t.Fatal(err)
	}
	prog := public(t, testprog.Build(t, "brief"))
	start := func() *testprog.Proc {
		return testprog.Start(t, "/usr/bin/setpriv", "--reuid", strconv.Itoa(nobody), "--regid", strconv.Itoa(nobody), "--clear-groups", prog)
	}
	p := start()
	a := &agentSession{t: t, file: filepath.Join(root, "probes.yaml")} // its directory is the root of the agent
	a.write(programOf("shop", fmt.Sprintf("/proc/%d/root%s", os.Getpid(), prog), "", briefProbe, briefReturn))
	a.beginAs(exec.Command("unshare", "-m", "sh", "-c", `
		mount --make-rprivate / && mount --rbind /proc "$0/proc" && mount --rbind /sys "$0/sys" &&
		exec setpriv --bounding-set -all,+sys_ptrace,+sys_admin,+dac_override,+sys_chroot --inh-caps=-all chroot "$0" /kprobe agent -c /probes.yaml`, root))
	a.processes(1, 1)
	right(t, p, "go 20")
	q := start()
	right(t, q, "go 30")
	a.processes(2, 2)
	a.is(`kprobe_target_met_total{target="shop",how="first"}`, 1)
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="a"}`, 50)
	a.is(`kprobe_n_count{target="shop",group="kprobes",event="a"}`, 50)
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="b"}`, 50)
	q.Quit(nil)
	a.processes(2, 1)
	a.stops()
	right(t, p, "go 10")
}
