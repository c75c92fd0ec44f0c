"""The relay does to a connection what it says, measured by what must hold whatever the machine's load."""

import socket
import threading
import time
import unittest

from relay import Relay


class Echo:
    """Gives back whatever comes."""

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def stop(self):
        try:
            self.listener.shutdown(socket.SHUT_RDWR)  # close alone leaves a listener that a thread waits on
        except OSError:
            pass
        self.listener.close()

    def __exit__(self, *_):
        self.stop()

    def serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.echo, args=(connection,), daemon=True).start()

    @staticmethod
    def echo(connection):
        try:
            while data := connection.recv(65_536):
                connection.sendall(data)
        except OSError:
            pass
        connection.close()


class RelayTest(unittest.TestCase):
    def setUp(self):
        self.echo = self.enterContext(Echo())
        self.relay = self.enterContext(Relay(self.echo.address))

    def enterContext(self, context):  # unittest has it from Python 3.11 on
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    def connect(self):
        host, port = self.relay.address.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)))
        connection.settimeout(60)
        self.addCleanup(connection.close)
        return connection

    def round_trip(self, connection, data=b"x"):
        begin = time.monotonic()
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        back = b""
        while len(back) < len(data):
            piece = connection.recv(65_536)
            self.assertTrue(piece, "the connection ended")
            back += piece
        sender.join()
        self.assertEqual(back, data)
        return time.monotonic() - begin

    def test_what_goes_in_comes_out_in_order_whatever_is_set(self):
        data = bytes(range(256)) * 4_000
        connection = self.connect()
        self.round_trip(connection, data)
        self.relay.delay, self.relay.loss = 0.01, 0.1
        self.round_trip(connection, data)
        self.assertGreater(self.relay.stalls, 0)
        self.assertEqual(self.relay.bytes, 4 * len(data))

    def test_a_delay_is_at_least_that_long_each_way(self):
        self.relay.delay = 0.15
        self.assertGreaterEqual(self.round_trip(self.connect()), 0.3)

    def test_a_rate_is_not_exceeded(self):
        self.relay.rate = 1_000_000
        # The first and the last piece are not waited for.
        self.assertGreaterEqual(self.round_trip(self.connect(), b"y" * 500_000), 0.4)

    def test_a_partition_lets_nothing_through_and_loses_nothing(self):
        connection = self.connect()
        self.round_trip(connection)
        self.relay.partition = True
        connection.sendall(b"later")
        connection.settimeout(0.3)
        with self.assertRaises(TimeoutError):
            connection.recv(10)
        fresh = self.connect()
        fresh.sendall(b"too")
        fresh.settimeout(0.1)
        with self.assertRaises(TimeoutError):
            fresh.recv(10)
        self.relay.partition = False
        for one, text in ((connection, b"later"), (fresh, b"too")):
            one.settimeout(60)
            self.assertEqual(one.recv(10), text)

    def test_a_cut_ends_all_connections_and_new_ones_are_taken(self):
        connection = self.connect()
        self.round_trip(connection)
        self.relay.cut()
        try:
            self.assertEqual(connection.recv(10), b"")
        except ConnectionError:
            pass
        self.round_trip(self.connect())
        self.assertEqual(self.relay.connections, 2)

    def test_a_target_that_is_away_ends_the_connection(self):
        self.echo.stop()
        connection = self.connect()
        try:
            self.assertEqual(connection.recv(10), b"")
        except ConnectionError:
            pass


if __name__ == "__main__":
    unittest.main()
