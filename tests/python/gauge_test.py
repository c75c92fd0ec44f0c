"""A gauge's life in Python: what it records, how it ends, and that it can never hurt the job."""

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import torch

import device  # noqa: F401 (default device)
import lossgauge
import ring
from lossgauge.verdict import VerdictPoll


def run_script(text, directory, **environment):
    return subprocess.run([sys.executable, "-c", text], env=dict(os.environ, RING=directory, **environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def events(directory):
    (path,) = [name for name in os.listdir(directory) if name.endswith(".events")]
    return ring.dump(os.path.join(directory, path))["records"]


OPEN = "import os, lossgauge\ngauge = lossgauge.Gauge(run='life', ring_dir=os.environ['RING'])\n"


class Gauge(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(7)
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.logits, self.labels = torch.randn(8, 33), torch.randint(0, 33, (8,))
        self.labels[3] = -100

    def open(self, **options):
        gauge = lossgauge.Gauge(run="python-test", ring_dir=self.directory.name, **options)
        self.addCleanup(gauge.close)
        return gauge

    def test_records_what_the_loss_was(self):
        gauge = self.open(vocab_size=33, byte_table=bytes([2] * 33))
        z = self.logits.clone().requires_grad_()
        loss = gauge.cross_entropy(z, self.labels)
        loss.backward()
        gauge.step(grad_norm=torch.tensor(1.25), lr=1e-3, loss=loss.item())
        (record,) = ring.records(gauge)
        self.assertEqual("7", record["finite_tokens"])
        self.assertEqual("8", record["tokens"])
        self.assertAlmostEqual(loss.item(), record["nll_sum"] / 7, places=6)
        self.assertEqual(1.25, record["grad_norm"])
        self.assertEqual("14", record["total_target_bytes"])
        self.assertAlmostEqual((7 * z.grad.double()).square().sum().item(), record["logit_grad_sq_sum"], places=5)
        self.assertAlmostEqual(self.logits[self.labels != -100].abs().max().item(), record["max_abs_logit"], places=6)

    def test_losses_are_the_same_bits_with_the_gauge_on_off_and_broken(self):
        broken = lossgauge.Gauge(run="x", ring_dir="/proc/nowhere")
        self.addCleanup(broken.close)
        self.assertFalse(broken.state().telemetry_on)
        self.assertIn("/proc/nowhere", broken.state().message)
        results = []
        for gauge in (None, self.open(), broken):
            z = self.logits.clone().requires_grad_()
            loss = lossgauge.cross_entropy(z, self.labels, gauge=gauge, label_smoothing=0.1, z_loss=1e-4)
            loss.backward()
            results.append((loss.detach(), z.grad))
            if gauge is not None:
                gauge.step(grad_norm=1.0)
        for loss, gradient in results[1:]:
            self.assertTrue(torch.equal(loss, results[0][0]) and torch.equal(gradient, results[0][1]))

    def test_micro_batches_are_places_of_one_step(self):
        gauge = self.open()
        gauge.cross_entropy(self.logits, self.labels)
        gauge.step()
        gauge.cross_entropy(self.logits[:5], self.labels[:5])
        gauge.cross_entropy(self.logits[5:], self.labels[5:])
        gauge.step()
        whole, halves = ring.records(gauge)
        for name in ("mask_fingerprint", "target_fingerprint", "worst_row_position", "worst_logit_position", "nll_sum", "log_z_sq_sum"):
            self.assertEqual(whole[name], halves[name], name)

    def test_evaluation_does_not_count_into_the_step(self):
        gauge = self.open()
        with gauge.phase("evaluation"):
            gauge.cross_entropy(self.logits, self.labels)
        gauge.evaluation(0, 3.5, 7)
        gauge.cross_entropy(self.logits[:2], self.labels[:2])
        gauge.step()
        by_block = {record["block"]: record for record in ring.records(gauge)}
        self.assertEqual("2", by_block["0"]["tokens"])
        self.assertEqual("8", by_block["1"]["tokens"])
        with self.assertRaisesRegex(ValueError, "phase: expected one of"):
            gauge.phase("lunch")

    def test_observes_a_loss_of_another_library(self):
        gauge = self.open()
        gauge.observe(loss_sum=torch.tensor(20.5), tokens=7, positions=8, grad_norm=0.5)
        gauge.observe_logits(self.logits, self.labels)
        gauge.step()
        (record,) = ring.records(gauge)
        self.assertEqual("14", record["finite_tokens"])
        self.assertEqual(0.5, record["grad_norm"])
        gauge.observe(loss_sum=20.5, tokens=7)
        gauge.step()
        self.assertAlmostEqual(20.5, ring.records(gauge)[1]["nll_sum"])
        gauge.observe(loss_sum=torch.tensor(3.25).bfloat16(), tokens=(self.labels != -100).sum(), denominator=torch.tensor(14), grad_norm=torch.tensor(2.0))
        gauge.step()
        record = ring.records(gauge)[2]
        self.assertEqual(("7", "7", 3.25, 14.0, 2.0), (record["tokens"], record["finite_tokens"], record["nll_sum"], record["denominator_max"], record["grad_norm"]))

    def test_bad_arguments_are_named(self):
        for name, options in (("run", {"run": ""}), ("gradient_reduction", {"gradient_reduction": "average"}), ("tp", {"tp": 4}), ("tp", {"tp": (2, 5), "world_size": 2, "rank": 0}),
                              ("byte_table", {"byte_table": b"abc", "vocab_size": 4})):
            with self.subTest(name=name), self.assertRaises(ValueError) as caught:
                lossgauge.Gauge(**dict({"run": "x", "ring_dir": self.directory.name}, **options))
            self.assertIn(name, str(caught.exception))
        gauge = self.open()
        with self.assertRaisesRegex(ValueError, "loss_sum: expected a number"):
            gauge.observe(loss_sum="much", tokens=1)
        with self.assertRaisesRegex(ValueError, "tokens: expected a number"):
            gauge.observe(loss_sum=1.0, tokens=torch.ones(2))
        with self.assertRaisesRegex(ValueError, "denominator"):
            gauge.step(denominator=-1)

    def test_a_closed_gauge_is_an_error(self):
        gauge = self.open()
        gauge.close("done")
        gauge.close()
        self.assertTrue(gauge.closed)
        for call in (gauge.step, gauge.state, lambda: gauge.cross_entropy(self.logits, self.labels), lambda: lossgauge.cross_entropy(self.logits, self.labels, gauge=gauge)):
            with self.assertRaisesRegex(lossgauge.FailedPrecondition, "closed"):
                call()

    def test_how_a_script_ends_is_recorded(self):
        finished, abandoned = "1", "2"  # LG_CLOSE_* of ring_abi.h
        for text, how, word in ((OPEN + "gauge.step()", finished, ""), (OPEN + "gauge.close('all done')", finished, "all done"),
                                (OPEN + "gauge.step()\nimport gc; del gauge; gc.collect()", finished, ""),
                                (OPEN + "gauge.step()\nraise KeyError('boom')", abandoned, "KeyError: 'boom'"),
                                (OPEN + "gauge.abandon('no use')", abandoned, "no use"),
                                (OPEN + "with gauge:\n  raise KeyError('inside')", abandoned, "KeyError: 'inside'")):
            with self.subTest(text), tempfile.TemporaryDirectory() as directory:
                run_script(text, directory)
                (event,) = events(directory)
                self.assertEqual(("end", how, word), (event["kind"], event["count"], event.get("text", "")))

    def test_a_forked_child_counts_nothing_and_ends_nothing(self):
        gauge = self.open()
        gauge.cross_entropy(self.logits, self.labels)
        logits, labels = self.logits.cpu(), self.labels.cpu()  # CUDA does not work in a forked child
        child = os.fork()
        if child == 0:
            code = 1
            try:
                loss = gauge.cross_entropy(logits, labels)
                code = 0 if torch.isfinite(loss) else 2
            finally:
                os._exit(code)
        self.assertEqual(0, os.waitpid(child, 0)[1])
        gauge.step()
        self.assertEqual("8", ring.records(gauge)[0]["tokens"])

    def test_64_threads_at_once(self):
        gauge = self.open()
        failures = []

        def work():
            try:
                for _ in range(20):
                    z = self.logits.clone().requires_grad_()
                    gauge.cross_entropy(z, self.labels, denominator=1, position_base=0).backward()
            except Exception as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gauge.step()
        self.assertEqual([], failures)
        self.assertEqual(str(64 * 20 * 8), ring.records(gauge)[0]["tokens"])

    def test_prints_nothing_and_needs_no_writable_place(self):
        said = run_script(OPEN + "import torch; gauge.cross_entropy(torch.randn(2, 3), torch.tensor([0, 1])); gauge.step()", "/proc/1/nowhere")
        self.assertEqual((0, "", ""), (said.returncode, said.stdout, said.stderr))

    def test_importing_loads_neither_torch_nor_the_library(self):
        said = run_script("import sys, lossgauge; print('torch' in sys.modules, lossgauge.library._library)", "", LOSSGAUGE_LIBRARY="/nowhere")
        self.assertEqual("False None\n", said.stdout, said.stderr)

    def test_a_refusal_is_told_in_lossgauged_s_words(self):
        class Refusing(http.server.BaseHTTPRequestHandler):
            body = b""

            def do_GET(self):
                self.send_response(404)
                self.end_headers()
                self.wfile.write(self.body)

            def log_message(self, *_):
                pass

        with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            poll = VerdictPoll("job", "127.0.0.1:{}".format(server.server_port))
            for Refusing.body, words in ((b'{"error": {"code": 5, "message": "no run named \\"job\\""}}', 'answered 404: no run named "job"'),
                                         (b"<html>", "answered 404: Not Found"), (b'{"error": 7}', "answered 404: Not Found")):
                said = poll._ask()
                self.assertEqual("unknown", said.action)
                self.assertIn(words, said.reason)
            server.shutdown()

    def test_the_sidecar_is_asked_without_the_clusters_proxy(self):
        class Sidecar(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"action": "CONTINUE"}')

            def log_message(self, *_):
                pass

        with http.server.HTTPServer(("127.0.0.1", 0), Sidecar) as server, mock.patch.dict(os.environ, http_proxy="http://127.0.0.1:1", no_proxy=""):
            threading.Thread(target=server.handle_request, daemon=True).start()
            poll = VerdictPoll("x", "127.0.0.1:{}".format(server.server_address[1]))
            self.assertEqual("continue", poll._ask().action)

    def test_the_verdict_of_nobody_is_unknown_at_once(self):
        gauge = self.open(sidecar="127.0.0.1:1")
        self.assertEqual("unknown", gauge.verdict().action)


if __name__ == "__main__":
    unittest.main()
