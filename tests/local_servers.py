"""Small servers for tests of clients: HTTP and gRPC, in a thread, that answer as a function says."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc


@dataclass
class Reply:
    """What is answered: after a time, in chunks or whole; a status of None closes the connection instead."""

    status: int | None = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    chunked: bool = False
    close: bool = False


@dataclass(frozen=True)
class Asked:
    """A request that came: the how-manieth, on which connection."""

    number: int
    connection: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def refusal(after_ms):
    """What this application answers while it is full."""
    body = json.dumps({"error": {"code": "overloaded", "message": "full", "retry_after_ms": after_ms}}).encode()
    return Reply(503, body, {"Retry-After": "1"})


class HttpServer:
    """Answers each request by a function of it; keeps them."""

    def __init__(self, answer=lambda asked: Reply(), tls=None):
        self.answer, self.asked, self.connections, self.left = answer, [], 0, 0
        self._tls = tls
        self._loop = asyncio.new_event_loop()

    def __enter__(self):
        started = threading.Event()

        async def serve():
            self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0, ssl=self._tls)
            self.port = self._server.sockets[0].getsockname()[1]
            started.set()

        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(serve(), self._loop).result()
        assert started.wait(10)
        self.url = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_):
        async def end():
            self._server.close()
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _talk(self, reader, writer):
        self.connections += 1
        connection = self.connections
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                asked = Asked(len(self.asked), connection, method, path, headers, body)
                self.asked.append(asked)
                reply = self.answer(asked)
                await self._wait(reader, reply.delay_s)
                if reply.status is None:
                    break
                writer.write(self._written(reply))
                if reply.close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left += 1
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()

    async def _wait(self, reader, seconds):
        """Wait, or raise once the client has disconnected."""
        if seconds:
            try:
                async with asyncio.timeout(seconds):
                    if not await reader.read(1):
                        raise ConnectionError
            except TimeoutError:
                pass

    @staticmethod
    def _written(reply):
        headers = dict(reply.headers)
        if reply.close:
            headers["Connection"] = "close"
        body = reply.body
        if reply.chunked:
            headers["Transfer-Encoding"] = "chunked"
            parts = [body[:1], body[1:]]
            body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"
        else:
            headers["Content-Length"] = str(len(body))
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {reply.status} Some Words\r\n{lines}\r\n".encode() + body


class GrpcServer:
    """Answers each call's bytes by a function of the method and the bytes: bytes, or an error to raise."""

    def __init__(self, answer=lambda method, content: b"", credentials=None, options=()):
        self.answer, self.asked, self.ended = answer, [], 0
        self._credentials, self._options = credentials, options

    def __enter__(self):
        outer = self

        class Handler(grpc.GenericRpcHandler):
            def service(self, details):
                def call(content, context):
                    outer.asked.append((details.method, content, dict(details.invocation_metadata)))
                    context.add_callback(outer._count)
                    answer = outer.answer(details.method, content)
                    if isinstance(answer, bytes):
                        return answer
                    code, text, trailers = answer
                    context.set_trailing_metadata(trailers)
                    context.abort(code, text)

                return grpc.unary_unary_rpc_method_handler(call)

        unlimited = [("grpc.max_receive_message_length", -1), *self._options]
        self._server = grpc.server(ThreadPoolExecutor(8), handlers=[Handler()], options=unlimited)
        if self._credentials is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._server.add_secure_port("127.0.0.1:0", self._credentials)
        self._server.start()
        self.url = f"{'grpc' if self._credentials is None else 'grpcs'}://127.0.0.1:{self.port}"
        return self

    def _count(self):
        self.ended += 1

    def stop(self, grace_s):
        """Take no more calls, and end when those under way are over; an event that is set then."""
        return self._server.stop(grace_s)

    def __exit__(self, *_):
        self._server.stop(0).wait()
