"""A server of the Open Inference Protocol that does what a test tells it: real ones answer no nonsense."""

import asyncio
import datetime
import ipaddress
import json
import ssl

import grpc
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message_factory import GetMessageClass

from deployments.ingress.open_inference.grpc import SERVICE
from ensemble_serving.protocol import inference_pb2 as pb

UNIFORM = np.full(4, 0.25, np.float32)


class Abort(Exception):
    """The status that a call is answered with."""

    def __init__(self, code):
        self.code = code


class StandIn:
    """Answers `behave(images)`, an array, which may raise `Abort`; the same by gRPC and by HTTP."""

    def __init__(self, behave=None, shape=(-1, 8, 8, 3), classes=4):
        self.behave = behave or (lambda rows: np.tile(UNIFORM, (rows, 1)))
        self.shape, self.classes = shape, classes
        self.output = self.described = "scores"
        self.versions, self.version = ["9", "10"], "10"
        self.headers, self.seconds_left, self.asked, self.writers = [], [], [], set()

    async def start(self, way, port=0, host="127.0.0.1", key=None, certificate=None):
        if way == "http":
            context = None
            if key is not None:
                context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                context.load_cert_chain(certificate, key)
            self.server = await asyncio.start_server(self._http, host, port, ssl=context)
            return self.server.sockets[0].getsockname()[1]
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        methods = {name: getattr(self, name) for name in vars(type(self)) if name[0].isupper()}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                method,
                GetMessageClass(SERVICE.methods_by_name[name].input_type).FromString,
                lambda answer: answer.SerializeToString(),
            )
            for name, method in methods.items()
        }
        self.server.add_registered_method_handlers(SERVICE.full_name, handlers)
        if key is None:
            port = self.server.add_insecure_port(f"{host}:{port}")
        else:
            credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
            port = self.server.add_secure_port(f"{host}:{port}", credentials)
        await self.server.start()
        return port

    async def stop(self):
        if isinstance(self.server, asyncio.Server):
            self.server.close()
            for writer in self.writers:
                writer.transport.abort()
            while self.writers:
                await asyncio.sleep(0)
        else:
            await self.server.stop(None)

    async def _scores(self, rows):
        answer = self.behave(rows)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def ModelReady(self, request, context):  # noqa: N802
        return pb.ModelReadyResponse(ready=True)

    async def ModelMetadata(self, request, context):  # noqa: N802
        answer = pb.ModelMetadataResponse(name=request.name, versions=self.versions)
        answer.inputs.add(name="image", datatype="UINT8", shape=self.shape)
        answer.outputs.add(name=self.described, datatype="FP32", shape=[-1, self.classes])
        return answer

    async def ModelInfer(self, request, context):  # noqa: N802
        self.headers.append(dict(context.invocation_metadata()))
        self.seconds_left.append(context.time_remaining())
        self.asked.append((request.model_version, request.inputs[0].shape[0]))
        try:
            scores = await self._scores(request.inputs[0].shape[0])
        except Abort as err:
            await context.abort(grpc.StatusCode[err.code], "as told")
        answer = pb.ModelInferResponse(model_name=request.model_name, model_version=self.version)
        answer.outputs.add(name=self.output, datatype="FP32", shape=scores.shape)
        answer.raw_output_contents.append(scores.astype(np.float32).tobytes())
        return answer

    async def _http(self, reader, writer):
        self.writers.add(writer)
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split()
                headers = {}
                while (header := await reader.readline()).strip():
                    name, _, value = header.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                status, content = await self._answer(method, path, headers, body)
                writer.write(f"HTTP/1.1 {status} -\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def _answer(self, method, path, headers, body):
        if method == "GET":
            image = {"name": "image", "datatype": "UINT8", "shape": self.shape}
            output = {"name": self.described, "datatype": "FP32", "shape": [-1, self.classes]}
            told = {"inputs": [image], "outputs": [output], "versions": self.versions}
            return 200, json.dumps(told if path.endswith("/m") else {}).encode()
        self.headers.append(headers)
        try:
            scores = await self._scores(json.loads(body)["inputs"][0]["shape"][0])
        except Abort as err:
            return {"UNAVAILABLE": 503, "INVALID_ARGUMENT": 400, "INTERNAL": 500}[err.code], b"as told"
        output = {"name": self.output, "datatype": "FP32", "shape": scores.shape, "data": scores.ravel().tolist()}
        return 200, json.dumps({"model_version": self.version, "outputs": [output]}).encode()


def certificate(name):
    """A self-signed certificate for a name and loopback, and its key, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", "::1")]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name), *addresses]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, pkcs8, plain), made.public_bytes(pem)
