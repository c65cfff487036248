"""An OTLP receiver: the protocol's own gRPC service, and its HTTP path; keeps what it gets."""

import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc


class Span:
    """A received span, with its service's name and its attributes as a dict."""

    def __init__(self, span, resource):
        self.trace_id, self.span_id, self.parent_id = (
            i.hex() for i in (span.trace_id, span.span_id, span.parent_span_id)
        )
        self.name, self.start, self.end = span.name, span.start_time_unix_nano, span.end_time_unix_nano
        self.attributes = values(span.attributes)
        self.resource = values(resource.attributes)
        self.service = self.resource["service.name"]
        self.links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]
        self.failed = span.status.code == 2


def values(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Listens on loopback, on ports of the system's choice, as a context manager."""

    def __init__(self):
        self._lock = threading.Lock()
        self._spans = []

    @property
    def spans(self):
        with self._lock:
            return list(self._spans)

    def trace(self, trace_id):
        """The spans of a trace."""
        return [span for span in self.spans if span.trace_id == trace_id]

    def _keep(self, request):
        spans = [
            Span(span, resource.resource)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self._spans += spans

    def Export(self, request, context):  # noqa: N802
        self._keep(request)
        return pb.ExportTraceServiceResponse()

    def __enter__(self):
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver._keep(pb.ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._grpc = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._grpc)
        self.grpc_url = f"http://127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}"
        self._grpc.start()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http_url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._grpc.stop(None)
        self._http.shutdown()
        self._http.server_close()
