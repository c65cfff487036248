import asyncio

from ensemble_serving.transports import Server, connect


def once(url, request, **more):
    """Send a request on a connection of its own."""

    async def send():
        transport = connect(Server(url, **more))
        try:
            return await transport.send(request)
        finally:
            await transport.close()

    return asyncio.run(send())
