import asyncio

from scripts.lab.client import Connection, is_ready


async def answered(*answers: bytes) -> tuple[list[tuple[int, bytes]], list[bytes], int]:
    """What a connection returns for a request after the other, the requests, and how many times it connected."""
    left, requests, connections = list(answers), [], 0

    async def talk(reader, writer):
        nonlocal connections
        connections += 1
        while left and (request := await reader.read(1000)):
            requests.append(request)
            answer = left.pop(0)
            writer.write(answer)
            if not answer or b"close" in answer:
                break
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        connection = Connection("127.0.0.1", server.sockets[0].getsockname()[1], 30)
        returned = [await connection.post(b"image") for _ in answers]
        connection.close()
    return returned, requests, connections


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


async def test_a_connection_is_kept():
    returned, requests, connections = await answered(OK, OK.replace(b"200 OK", b"503 No"))
    assert returned == [(200, b"hi"), (503, b"hi")]
    assert connections == 1
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.splitlines()[0] == b"POST /classify HTTP/1.1"
    assert {b"Content-Type: image/jpeg", b"Content-Length: 5"} < set(head.splitlines())
    assert body == b"image"


async def test_after_a_connection_that_ended_or_broke_the_next_request_has_a_new_one():
    ended = OK.replace(b"OK", b"OK\r\nConnection: close")
    returned, _, connections = await answered(ended, b"", b"HTTP/1.1 200 OK\r\n\r\n", OK)
    assert returned == [(200, b"hi"), (0, b"{}"), (0, b"{}"), (200, b"hi")]
    assert connections == 4


async def test_a_server_that_is_not_there_is_no_answer():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    assert await Connection("127.0.0.1", port).post(b"") == (0, b"{}")
    assert not is_ready(f"http://127.0.0.1:{port}")
