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
JOBSET = ROOT / "deploy" / "kubernetes" / "jobset.yaml"
UNIT = ROOT / "deploy" / "systemd" / "lossgauged.service"
YAMLLINT = """{extends: default, rules: {line-length: {max: 150}, document-start: disable, comments: {min-spaces-from-content: 1},
  comments-indentation: disable, key-duplicates: enable, indentation: {spaces: 2, indent-sequences: consistent}}}"""
# Exposure that systemd gives the unit: 0 is none, 10 is all. What remains is the host's network, and the directory of the rings.
MAX_EXPOSURE = 1.3


def flags_of(text):
    return set(re.findall(r"--([a-z_]+)=", text))


def known_flags():
    sources = "".join(path.read_text() for path in sorted((ROOT / "server" / "main").glob("*.cc")))
    return set(re.findall(r"ABSL_FLAG\([\w:]+, (\w+),", sources))


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
        files = [KUBERNETES, JOBSET, *sorted((ROOT / "dashboards").glob("*.yml"))]
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
        # One that is not ready does not take the trainer's pod out of its service, and is not ended by a kubelet for what a restart may not heal.
        self.assertEqual(self.sidecar["livenessProbe"]["httpGet"]["path"], "/-/healthy")
        self.assertNotIn("readinessProbe", self.sidecar)
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


class JobSetTest(unittest.TestCase):
    """What the Job and the JobSet controller make of a pod's end, by the rules of the manifest."""

    def setUp(self):
        self.jobset = yaml.safe_load(JOBSET.read_text())
        self.policy = self.jobset["spec"]["failurePolicy"]
        self.job = self.jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
        self.pod = self.job["template"]["spec"]
        self.trainer = self.pod["containers"][0]

    def job_failure(self, exit_code=None, condition=None):
        """Reason and message of the Job's failure, in the words of the Job controller."""
        for index, rule in enumerate(self.job["podFailurePolicy"]["rules"]):
            codes = rule.get("onExitCodes")
            if codes and exit_code is not None and codes["containerName"] == "trainer" and (exit_code in codes["values"]) == (codes["operator"] == "In"):
                self.assertEqual(rule["action"], "FailJob")
                return "PodFailurePolicy", f"Container trainer for pod default/node-0 failed with exit code {exit_code} matching FailJob rule at index {index}"
            if condition in [one["type"] for one in rule.get("onPodConditions", [])]:
                self.assertEqual(rule["action"], "FailJob")
                return "PodFailurePolicy", f"Pod default/node-0 has condition {condition} matching FailJob rule at index {index}"
        self.assertEqual(self.job["backoffLimit"], 0)
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"

    def action(self, **how):
        reason, message = self.job_failure(**how)
        for rule in self.policy["rules"]:
            if reason in rule["onJobFailureReasons"] and any(re.search(pattern, message) for pattern in rule["onJobFailureMessagePatterns"]):
                return rule["action"]
        return "RestartJobSet"  # what JobSet does if no rule matches

    def test_exit_codes_become_actions(self):
        self.assertEqual(self.action(exit_code=93), "RestartJobSet")
        self.assertEqual(self.action(exit_code=94), "FailJobSet")
        for other in (1, 9, 137, 193, 194, 930, 940):
            self.assertEqual(self.action(exit_code=other), "RestartJobSet")
        self.assertEqual(self.action(condition="DisruptionTarget"), "RestartJobSetAndIgnoreMaxRestarts")
        self.assertGreater(self.policy["maxRestarts"], 0)

    def test_the_codes_are_those_of_supervise_sh(self):
        text = (ROOT / "deploy" / "supervise.sh").read_text()
        for action, code in (("RESTART", 93), ("HALT", 94)):
            self.assertIn(f"${{LOSSGAUGE_{action}_CODE:-{code}}}", text)
        grace = int(re.search(r"LOSSGAUGE_GRACE:-(\d+)", text).group(1))
        self.assertGreater(self.pod["terminationGracePeriodSeconds"], grace)

    def test_names_of_rules_are_such_as_jobset_takes(self):
        for rule in self.policy["rules"]:
            self.assertRegex(rule["name"], r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")

    def test_only_the_first_pod_is_supervised(self):
        with tempfile.TemporaryDirectory() as directory:
            supervise = pathlib.Path(directory) / "supervise.sh"
            supervise.write_text('#!/bin/sh\necho "supervised: $*"\n')
            supervise.chmod(0o755)
            command = [word.replace("/usr/share/lossgauge/supervise.sh", str(supervise)) for word in self.trainer["command"]]
            self.assertNotEqual(command, self.trainer["command"])
            for index, said in (("0", "supervised: echo trained"), ("1", "trained")):
                done = subprocess.run([*command, "echo", "trained"], capture_output=True, text=True,
                                      env={"PATH": "/usr/bin:/bin", "JOB_COMPLETION_INDEX": index})
                self.assertEqual(done.stdout.strip(), said, done.stderr)

    def test_a_restarted_job_is_a_new_attempt_and_no_kubelet_restarts_a_part_of_it(self):
        environment = {entry["name"]: entry for entry in self.trainer["env"]}
        self.assertEqual(environment["LOSSGAUGE_ATTEMPT"]["valueFrom"]["fieldRef"]["fieldPath"], "metadata.labels['jobset.sigs.k8s.io/restart-attempt']")
        self.assertTrue(environment["LOSSGAUGE_RUN"]["value"])
        self.assertEqual(self.pod["restartPolicy"], "Never")
        self.assertNotIn("livenessProbe", self.trainer)

    def test_sidecars_forward_to_the_daemon_that_the_trainer_asks(self):
        sidecar = self.pod["initContainers"][0]
        self.assertEqual(sidecar["restartPolicy"], "Always")
        address = next(entry["value"] for entry in self.trainer["env"] if entry["name"] == "LOSSGAUGE_ADDRESS")
        self.assertIn(f"--forward_to={address}", sidecar["args"])
        self.assertLessEqual(flags_of(" ".join(sidecar["args"])), known_flags())

    def test_sidecars_and_the_supervisor_show_a_token_that_not_everybody_may_read(self):
        sidecar = self.pod["initContainers"][0]
        path = next(entry["value"] for entry in self.trainer["env"] if entry["name"] == "LOSSGAUGE_TOKEN_FILE")
        self.assertIn(f"--forward_token_file={path}", sidecar["args"])
        for container in (sidecar, self.trainer):
            self.assertEqual([mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "lossgauge-token"], [path.rsplit("/", 1)[0]])
        volume = next(volume for volume in self.pod["volumes"] if volume["name"] == "lossgauge-token")["secret"]
        self.assertEqual(volume["defaultMode"] & 0o007, 0)
        self.assertEqual(volume["defaultMode"] & 0o040, 0o040)
        self.assertEqual(self.pod["securityContext"]["fsGroup"], self.pod["securityContext"]["runAsGroup"])

    def test_nothing_runs_privileged(self):
        self.assertTrue(self.pod["securityContext"]["runAsNonRoot"])
        for container in (*self.pod["initContainers"], *self.pod["containers"]):
            self.assertEqual(container["securityContext"]["capabilities"], {"drop": ["ALL"]})
            self.assertIn("memory", container["resources"]["limits"])


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

    def test_a_service_that_hangs_is_started_again(self):
        text = without_comments(UNIT)
        for line in ("Type=notify", "WatchdogSec=30", "Restart=on-failure"):  # on-failure holds for the watchdog, too
            self.assertRegex(text, rf"(?m)^{line}$")

    def test_every_flag_is_one_that_lossgauged_has(self):
        self.assertLessEqual(flags_of(without_comments(UNIT)), known_flags())

    def test_drop_ins_of_the_readme_fit_the_unit_and_daemon_and_sidecar_fit_each_other(self):
        drop_ins = re.findall(r"```ini\n(.*?)```", (ROOT / "deploy" / "README.md").read_text(), re.S)
        started = [line for text in drop_ins for line in re.findall(r"^ExecStart=(.+)$", text, re.M)]
        self.assertEqual(len(started), len(drop_ins))
        for text, command in zip(drop_ins, started):
            self.assertIn("ExecStart=\n", text)  # a second command of a simple service is an error
            self.assertLessEqual(flags_of(command), known_flags())
            self.assertRegex(text, "(?m)^IPAddressAllow=")  # the unit denies all but loopback
        daemon = next(command for command in started if command.startswith("/usr/bin/lossgauged daemon "))
        sidecar = next(command for command in started if "--forward_to=" in command)
        of = lambda flag, command: re.search(rf"--{flag}=(\S+)", command).group(1)  # noqa: E731
        self.assertEqual(of("token_file", daemon), of("forward_token_file", sidecar))
        self.assertEqual(of("grpc_listen", daemon).split(":")[1], of("forward_to", sidecar).split(":")[1])


if __name__ == "__main__":
    unittest.main()
