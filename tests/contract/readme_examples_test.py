"""Runs the examples of server/rpc/README.md and server/web/README.md against a server on free ports.

    readme_examples_test.py API_EXAMPLE_SERVER
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVER = ''
BLOCK = re.compile(r'^```(sh|python)\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class ReadmeExamples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen([SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        cls.grpc, cls.http = cls.server.stdout.readline().split()
        cls.stubs = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls):
        cls.server.stdin.close()
        cls.server.stdout.close()
        code = cls.server.wait(timeout=20)
        cls.stubs.cleanup()
        if code != 0:
            raise AssertionError(f'the server ended with {code}')

    def run_blocks(self, readme):
        """The output of each block that could be run."""
        outputs = []
        environment = dict(os.environ, STUBS=self.stubs.name, PYTHONPATH=self.stubs.name, PYTHONDONTWRITEBYTECODE='1')
        for kind, text in BLOCK.findall((ROOT / readme).read_text()):
            if text.startswith('grpcurl') and not shutil.which('grpcurl'):
                print(f'not run, grpcurl is not installed: {text}', file=sys.stderr)
                continue
            text = text.replace('127.0.0.1:9789', self.grpc).replace('127.0.0.1:9788', self.http)
            command = ['bash', '-eu', '-c', text] if kind == 'sh' else ['/usr/bin/python3', '-c', text]
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 0, f'{readme}:\n{text}\n{done.stdout}\n{done.stderr}')
            outputs.append(done.stdout)
        return '\n'.join(outputs)

    def test_grpc_examples_run_and_print_what_they_say(self):
        output = self.run_blocks('server/rpc/README.md')
        self.assertIn('CONTINUE because of fresh', output)
        self.assertIn('3 2.004', output)  # step 3 of WatchSteps

    def test_http_examples_run_and_print_what_they_say(self):
        output = self.run_blocks('server/web/README.md')
        self.assertIn('"action":"CONTINUE"', output)
        self.assertIn('"ledgerEntries":"1"', output)
        self.assertIn('data: {"steps":[', output)
        self.assertIn('lossgauged lives', output)

    def test_reflection_lists_the_services(self):
        import grpc
        # ServerReflectionInfo with list_services (field 7) set to "".
        with grpc.insecure_channel(self.grpc) as channel:
            call = channel.stream_stream('/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo')
            answer = next(iter(call(iter([bytes([58, 0])]), timeout=20)))
        self.assertIn(b'lossgauge.v1.LossGauge', answer)
        self.assertIn(b'grpc.health.v1.Health', answer)


if __name__ == '__main__':
    SERVER = sys.argv.pop()
    unittest.main()
