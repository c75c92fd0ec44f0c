"""A TCP relay that stands for a bad network: delay, a rate limit, stalls as after a lost packet, a partition, connections cut.

    with Relay("127.0.0.1:9789") as relay:
        relay.delay = 0.05            # seconds each way
        relay.rate = 100_000          # bytes a second each way; None = no limit
        relay.loss = 0.01             # of all pieces: one that is "lost" comes 200 ms later, and all behind it wait, as TCP does
        relay.partition = True        # nothing goes through; whoever connects is taken and hears nothing
        relay.cut()                   # all connections end at once
        ... relay.address

All may be changed while connections are open. One thread, asyncio.
"""

import asyncio
import random
import socket
import threading
import time

PIECE = 16_384
RETRANSMISSION = 0.2


class Relay:
    def __init__(self, target, seed=1):
        host, port = target.rsplit(":", 1)
        self.target = (host, int(port))
        self.delay, self.rate, self.loss, self.partition = 0.0, None, 0.0, False
        self.connections, self.bytes, self.stalls = 0, 0, 0
        self.address = None
        self._chance = random.Random(seed)
        self._writers = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_):
        self.cut()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def cut(self):
        self._loop.call_soon_threadsafe(lambda: [writer.transport.abort() for writer in list(self._writers)])

    def _run(self):
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self):
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = "127.0.0.1:%d" % server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader, writer):
        self._writers.add(writer)
        self.connections += 1
        there = None
        try:
            await self._while_partitioned()
            far_reader, there = await asyncio.open_connection(*self.target)
            self._writers.add(there)
            for one in (writer, there):
                one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.gather(self._carry(reader, there), self._carry(far_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in (writer, there):
                if one is not None:
                    self._writers.discard(one)
                    one.transport.abort()

    async def _while_partitioned(self):
        while self.partition:
            await asyncio.sleep(0.02)

    async def _carry(self, reader, writer):
        """One direction. What is on the way is bounded, so that a slow other end is felt by the sender."""
        on_the_way = asyncio.Queue(maxsize=256)
        deliver = asyncio.ensure_future(self._deliver(on_the_way, writer))
        try:
            while True:
                piece = await reader.read(PIECE)
                due = time.monotonic() + self.delay
                if piece and self._chance.random() < self.loss:
                    due += RETRANSMISSION
                    self.stalls += 1
                await on_the_way.put((due, piece))
                if not piece:
                    await deliver
                    return
                if self.rate:
                    await asyncio.sleep(len(piece) / self.rate)
        finally:
            deliver.cancel()

    async def _deliver(self, on_the_way, writer):
        while True:
            due, piece = await on_the_way.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self._while_partitioned()
            if not piece:
                raise ConnectionResetError  # either end's end is both ends' end: gRPC never half-closes
            self.bytes += len(piece)  # before who receives them may look
            writer.write(piece)
            await writer.drain()
