// Package otlp sends spans to whoever takes OTLP, the protocol of OpenTelemetry: over HTTP, over gRPC, or to a file.
//
// An Exporter takes spans one by one, and hands them in batches to a Sender. Every span that it was given is in exactly one
// of the numbers of its Stats once it is closed: sent, rejected by the collector, failed, or dropped since the queue was full.
//
// The encodings are those of opentelemetry-proto 1.x (trace/v1/trace.proto, collector/trace/v1/trace_service.proto), and the rules for
// retries those of the OTLP specification 1.x. There are so few messages that they are written by hand; the module otlptest decodes them
// with the published package.
package otlp
