// Command otel tells how its contexts carry spans.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"unsafe"

	"go.opentelemetry.io/otel/trace"
)

// Contexts of the program's own.
type (
	second struct {
		n int
		context.Context
	}
	inner struct {
		a, b int
		context.Context
	}
	third struct {
		name string
		inner
	}
	two struct {
		context.Context
		other context.Context
	}
	far struct {
		_ [1 << 21]byte
		context.Context
	}
)

// words are those of an interface.
type words struct{ first, second uintptr }

func tableOf(ctx context.Context) uint64 { return uint64((*words)(unsafe.Pointer(&ctx)).first) }

func typeOf(v any) uint64 { return uint64((*words)(unsafe.Pointer(&v)).first) }

func main() {
	background := context.Background()
	cancel, stop := context.WithCancel(background)
	stop()
	told := map[string]uint64{
		"background": tableOf(background), "todo": tableOf(context.TODO()), "cancel": tableOf(cancel),
		"value": tableOf(trace.With(background)[0]), "without": tableOf(context.WithoutCancel(background)),
		"second": tableOf(second{1, background}), "*second": tableOf(&second{1, background}), "two": tableOf(&two{background, background}),
		"far": tableOf(&far{Context: background}), "third": tableOf(third{"", inner{1, 2, background}}),
		"second at": uint64(unsafe.Offsetof(second{}.Context)), "third at": uint64(unsafe.Offsetof(third{}.inner) + unsafe.Offsetof(inner{}.Context)),
		"key": typeOf(trace.Key()),
	}
	for name, s := range trace.Spans() {
		told["span "+name] = typeOf(s)
	}
	for name, n := range trace.Offsets() {
		told["offset "+name] = n
	}
	if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
		log.Fatal(err)
	}
}
