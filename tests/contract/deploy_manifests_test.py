"""What deploy/ ships for Kubernetes and systemd: bounded, unprivileged, and wired to flags and metrics that exist."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes" / "trainer-with-sidecar.yaml"
UNIT = ROOT / "deploy" / "systemd" / "lossgauged.service"
YAMLLINT = """{extends: default, rules: {line-length: {max: 150}, document-start: disable, comments: {min-spaces-from-content: 1},
  comments-indentation: disable, key-duplicates: enable, indentation: {spaces: 2, indent-sequences: consistent}}}"""
# Exposure that systemd gives the unit: 0 is none, 10 is all. What remains is the host's network, and the directory of the rings.
MAX_EXPOSURE = 1.3


def flags_of(text):
    return set(re.findall(r"--([a-z_]+)=", text))


def known_flags():
    return set(re.findall(r"ABSL_FLAG\([\w:]+, (\w+),", (ROOT / "server" / "main" / "flags.cc").read_text()))


def without_comments(path):
    return "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))


class KubernetesTest(unittest.TestCase):
    def setUp(self):
        documents = {document["kind"]: document for document in yaml.safe_load_all(KUBERNETES.read_text())}
        self.job, self.monitor = documents["Job"], documents["PodMonitor"]
        self.pod = self.job["spec"]["template"]["spec"]
        self.sidecar = self.pod["initContainers"][0]
        self.trainer = self.pod["containers"][0]

    def test_yamllint_finds_nothing(self):
        yamllint = shutil.which("yamllint")
        if not yamllint:
            self.skipTest("yamllint was not found")
        files = [KUBERNETES, *sorted((ROOT / "dashboards").glob("*.yml"))]
        done = subprocess.run([yamllint, "--strict", "-d", YAMLLINT, *map(str, files)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_the_sidecar_is_native_so_it_never_keeps_the_job_from_completing(self):
        self.assertEqual(self.sidecar["restartPolicy"], "Always")
        self.assertEqual([container["name"] for container in self.pod["containers"]], ["trainer"])

    def test_the_rings_are_a_bounded_memory_volume_that_the_sidecar_may_only_read(self):
        rings = next(volume for volume in self.pod["volumes"] if volume["name"] == "rings")["emptyDir"]
        self.assertEqual(rings["medium"], "Memory")
        self.assertEqual(rings["sizeLimit"], "64Mi")
        mounts = {container["name"]: next(m for m in container["volumeMounts"] if m["name"] == "rings") for container in (self.sidecar, self.trainer)}
        self.assertTrue(mounts["lossgauged"]["readOnly"])
        self.assertEqual(mounts["lossgauged"]["mountPath"], mounts["trainer"]["mountPath"])
        environment = {entry["name"]: entry.get("value") for entry in self.trainer["env"]}
        self.assertEqual(environment["LOSSGAUGE_RING_DIR"], mounts["trainer"]["mountPath"])
        self.assertIn(f"--ring_dir={mounts['lossgauged']['mountPath']}", self.sidecar["args"])

    def test_nothing_runs_privileged_or_writes_its_root_file_system(self):
        self.assertTrue(self.pod["securityContext"]["runAsNonRoot"])
        self.assertEqual(self.pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault")
        self.assertFalse(self.pod["automountServiceAccountToken"])
        for container in (self.sidecar, self.trainer):
            context = container["securityContext"]
            self.assertFalse(context["allowPrivilegeEscalation"])
            self.assertTrue(context["readOnlyRootFilesystem"])
            self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
            self.assertIn("memory", container["resources"]["limits"])

    def test_the_probe_on_the_verdict_restarts_the_trainer_and_only_for_restart(self):
        run = next(entry["value"] for entry in self.trainer["env"] if entry["name"] == "LOSSGAUGE_RUN")
        self.assertEqual(self.trainer["livenessProbe"]["grpc"]["service"], f"run/{run}/restart")
        self.assertNotIn("grpc", self.sidecar["livenessProbe"])
        ports = {port["name"]: port["containerPort"] for port in self.sidecar["ports"]}
        self.assertEqual(self.trainer["livenessProbe"]["grpc"]["port"], ports["lossgauge-grpc"])

    def test_finished_pods_are_not_scraped_and_the_job_name_is_what_the_alerts_look_for(self):
        endpoint = self.monitor["spec"]["podMetricsEndpoints"][0]
        self.assertIn(endpoint["port"], [port["name"] for port in self.sidecar["ports"]])
        drop = next(rule for rule in endpoint["relabelings"] if rule["action"] == "drop")
        self.assertEqual(drop["sourceLabels"], ["__meta_kubernetes_pod_phase"])
        for phase, dropped in (("Succeeded", True), ("Failed", True), ("Running", False), ("Pending", False)):
            self.assertEqual(bool(re.fullmatch(drop["regex"], phase)), dropped)
        self.assertTrue(any(rule.get("targetLabel") == "job" and "lossgauge" in rule["replacement"] for rule in endpoint["relabelings"]))
        labels = self.job["spec"]["template"]["metadata"]["labels"]
        self.assertLessEqual(self.monitor["spec"]["selector"]["matchLabels"].items(), labels.items())

    def test_every_flag_is_one_that_lossgauged_has(self):
        self.assertLessEqual(flags_of(" ".join(self.sidecar["args"])), known_flags())


class SystemdTest(unittest.TestCase):
    def analyze(self, *arguments):
        tool = shutil.which("systemd-analyze")
        if not tool:
            self.skipTest("systemd-analyze was not found")
        return subprocess.run([tool, *arguments], capture_output=True, text=True)

    def test_the_exposure_is_what_the_unit_says_and_no_more(self):
        done = self.analyze("security", "--offline=true", str(UNIT))
        exposure = float(re.search(r"exposure level for \S+: ([\d.]+)", done.stdout).group(1))
        self.assertLessEqual(exposure, MAX_EXPOSURE)
        self.assertEqual(exposure, float(re.search(r"^# EXPOSURE: ([\d.]+)$", UNIT.read_text(), re.M).group(1)))

    def test_systemd_knows_every_directive(self):
        with tempfile.TemporaryDirectory() as directory:
            # The binary need not be installed here.
            path = pathlib.Path(directory) / UNIT.name
            path.write_text(UNIT.read_text().replace("/usr/bin/lossgauged", "/bin/true"))
            done = self.analyze("verify", "--man=no", str(path))
        complaints = [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]
        self.assertEqual(complaints, [])

    def test_what_would_break_lossgauged_stays_out(self):
        text = without_comments(UNIT)
        self.assertNotIn("ProcSubset=pid", text)  # hides the boot id
        self.assertNotIn("RemoveIPC=yes", text)  # deletes files in /dev/shm
        self.assertNotIn("MemoryMax=infinity", text)

    def test_every_flag_is_one_that_lossgauged_has(self):
        self.assertLessEqual(flags_of(without_comments(UNIT)), known_flags())


if __name__ == "__main__":
    unittest.main()
