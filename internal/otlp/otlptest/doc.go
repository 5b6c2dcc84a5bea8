// Package otlptest has the tests of package otlp that need the published protocol and the published gRPC: a module of its own, so that
// nobody else needs them.
package otlptest
