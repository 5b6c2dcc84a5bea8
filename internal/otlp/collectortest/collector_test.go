package collectortest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/debugexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

// collector is a Collector that writes what it takes to a file, as text.
type collector struct{ http, grpc, file string }

// newCollector prepares a Collector with a configuration file.
func newCollector(t *testing.T, config string) *otelcol.Collector {
	t.Helper()
	c, err := otelcol.NewCollector(otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "collectortest", Version: "test"}, Factories: factories, DisableGracefulShutdown: true,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			URIs: []string{"file:" + config}, ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// factories are what a configuration may name.
func factories() (f otelcol.Factories, err error) {
	f.Telemetry = otelconftelemetry.NewFactory()
	if f.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory()); err != nil {
		return f, err
	}
	f.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](debugexporter.NewFactory())
	return f, err
}

// start runs a Collector until the test ends.
func start(t *testing.T) *collector {
	t.Helper()
	dir := t.TempDir()
	c := &collector{http: free(t), grpc: free(t), file: filepath.Join(dir, "spans")}
	config := fmt.Sprintf(`
receivers: {otlp: {protocols: {http: {endpoint: %s}, grpc: {endpoint: %s}}}}
exporters: {debug: {verbosity: detailed, use_internal_logger: false, output_paths: [%s], sampling_initial: 1000000, sampling_thereafter: 1}}
service:
  telemetry: {metrics: {level: none}, logs: {output_paths: [%s]}}
  pipelines: {traces: {receivers: [otlp], exporters: [debug]}}
`, c.http, c.grpc, c.file, filepath.Join(dir, "log"))
	file := filepath.Join(dir, "collector.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	col := newCollector(t, file)
	ended := make(chan error, 1)
	go func() { ended <- col.Run(context.Background()) }()
	within(t, "the Collector to run", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the Collector ended: %v", err)
		default:
		}
		return col.GetState() == otelcol.StateRunning
	})
	t.Cleanup(func() {
		col.Shutdown()
		if err := <-ended; err != nil {
			t.Errorf("the Collector: %v", err)
		}
	})
	return c
}

// free gives an address that nobody listens at.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// span is a span as the Collector has written it.
type span struct {
	service, name, status string
	attrs                 map[string]string
}

// spans reads what the Collector has written of a service.
func (c *collector) spans(t *testing.T, service string) (out []*span) {
	t.Helper()
	b, err := os.ReadFile(c.file)
	if err != nil {
		t.Fatal(err)
	}
	var s *span
	of, resource := "", false
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch attr, isAttr := strings.CutPrefix(key, "     -> "); {
		case strings.HasPrefix(line, "ResourceSpans #"):
			s, of = nil, ""
		case line == "Resource attributes:":
			resource = true
		case strings.HasPrefix(line, "ScopeSpans #"):
			resource = false
		case strings.HasPrefix(line, "Span #"):
			if s = (&span{service: of, attrs: map[string]string{}}); of == service {
				out = append(out, s)
			}
		case isAttr && resource && attr == "service.name":
			of = value
		case s == nil:
		case isAttr:
			s.attrs[attr] = value
		case strings.TrimSpace(key) == "Name":
			s.name = value
		case strings.TrimSpace(key) == "Status code":
			s.status = value
		}
	}
	return out
}
