"""The Helm chart: rendered, every object judged by its published model, bounded and unprivileged, wired to flags and metrics that exist; values that make no
sense are refused by name.

LOSSGAUGE_RENDER_CHART: the renderer (render_chart.go); LOSSGAUGE_DEPLOY_MODULES: node_modules with the models; without them it says that it skipped.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import jsonschema
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "lossgauge"
RULES = ROOT / "dashboards" / "rules"
PROMETHEUS_OPERATOR = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")
JOBSET = ("jobset.x-k8s.io/v1alpha2/JobSet",)
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times as fast
ODD_RUN = 'gpt "small" \'x\' 🚀'


class Chart(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.renderer = os.environ.get("LOSSGAUGE_RENDER_CHART", "")
        if not os.access(cls.renderer, os.X_OK):
            raise unittest.SkipTest("the renderer was not built: no Go")
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)

    def run_renderer(self, values=None, api_versions=PROMETHEUS_OPERATOR + JOBSET, kube="v1.31.0"):
        (self.directory / "values.yaml").write_text(json.dumps(values or {}, ensure_ascii=False))  # JSON is YAML
        return subprocess.run([self.renderer, CHART, "-values", self.directory / "values.yaml", "-api_versions", ",".join(api_versions), "-kube_version", kube],
                              capture_output=True, text=True)

    def render(self, values=None, **options):
        """kind -> objects"""
        done = self.run_renderer(values, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        objects = {}
        for document in yaml.load_all(done.stdout, Loader=LOADER):
            if document:
                objects.setdefault(document["kind"], []).append(document)
        return objects


EVERYTHING = {"job": {"enabled": True, "run": ODD_RUN}, "jobset": {"enabled": True, "run": "many"}, "daemon": {"enabled": True, "storage": {"storageClassName": "fast"}},
              "forwardToken": {"secret": "fleet"},
              "dashboards": {"enabled": True}, "podMonitor": {"labels": {"release": "kube-prometheus"}}, "imagePullSecrets": [{"name": "pull"}]}


def pods(objects):
    """(what, pod template) of everything that runs."""
    for kind in ("Job", "Deployment"):
        for one in objects.get(kind, []):
            yield kind, one["spec"]["template"]
    for one in objects.get("JobSet", []):
        for job in one["spec"]["replicatedJobs"]:
            yield "JobSet", job["template"]["spec"]["template"]


def containers(pod):
    return {container["name"]: container for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]}


class RenderedTest(Chart):
    def test_every_object_is_one_that_kubernetes_knows(self):
        modules = os.environ.get("LOSSGAUGE_DEPLOY_MODULES", "")
        if not os.path.isdir(modules) or not shutil.which("node"):
            self.skipTest("the published models were not installed")
        for values in (EVERYTHING, {**EVERYTHING, "sidecar": {"native": False, "extraArgs": ["--mode=shadow"]}, "restartProbe": {"enabled": False}}):
            objects = self.render(values)
            self.assertEqual(set(objects), {"Job", "JobSet", "Deployment", "Service", "PersistentVolumeClaim", "ConfigMap", "NetworkPolicy", "PodMonitor", "PrometheusRule"})
            # No model of JobSet is published; what it starts are Jobs.
            jobs = [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
                    for one in objects.pop("JobSet") for job in one["spec"]["replicatedJobs"]]
            (self.directory / "objects.json").write_text(json.dumps([one for several in objects.values() for one in several] + jobs))
            done = subprocess.run(["node", ROOT / "tests" / "deploy" / "check_objects.mjs", self.directory / "objects.json", modules, modules],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_with_no_values_nothing_runs(self):
        self.assertEqual(set(self.render(api_versions=())), {"NetworkPolicy"})
        self.assertEqual(set(self.render()), {"NetworkPolicy", "PodMonitor", "PrometheusRule"})

    def test_the_sidecar_is_native_so_it_never_keeps_a_job_from_completing(self):
        for what, pod in pods(self.render(EVERYTHING)):
            if what != "Deployment":
                self.assertEqual([c["name"] for c in pod["spec"]["containers"]], ["trainer"], what)
                self.assertEqual([(c["name"], c["restartPolicy"]) for c in pod["spec"]["initContainers"]], [("lossgauged", "Always")], what)

    def test_on_old_clusters_the_sidecar_ends_by_itself(self):
        for what, pod in pods(self.render({**EVERYTHING, "sidecar": {"native": False}}, kube="v1.27.3")):
            if what != "Deployment":
                self.assertNotIn("initContainers", pod["spec"])
                sidecar = containers(pod)["lossgauged"]
                self.assertNotIn("restartPolicy", sidecar)
                self.assertIn("--exit_after_end", sidecar["args"])

    def test_rings_are_one_bounded_memory_volume_that_the_sidecar_may_only_read(self):
        for what, pod in pods(self.render(EVERYTHING)):
            if what == "Deployment":
                continue
            volume = next(v for v in pod["spec"]["volumes"] if v["name"] == "lossgauge-rings")
            self.assertEqual(volume["emptyDir"], {"medium": "Memory", "sizeLimit": "64Mi"})
            both = containers(pod)
            mounts = {name: next(m for m in c["volumeMounts"] if m["name"] == "lossgauge-rings") for name, c in both.items()}
            self.assertTrue(mounts["lossgauged"]["readOnly"])
            self.assertNotIn("readOnly", mounts["trainer"])
            self.assertEqual(mounts["lossgauged"]["mountPath"], mounts["trainer"]["mountPath"])
            self.assertIn(f"--ring_dir={mounts['trainer']['mountPath']}", both["lossgauged"]["args"])
            self.assertIn({"name": "LOSSGAUGE_RING_DIR", "value": mounts["trainer"]["mountPath"]}, both["trainer"]["env"])

    def test_nothing_runs_privileged_or_writes_its_root_file_system_or_is_unbounded(self):
        for what, pod in pods(self.render(EVERYTHING)):
            self.assertTrue(pod["spec"]["securityContext"]["runAsNonRoot"], what)
            self.assertEqual(pod["spec"]["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertFalse(pod["spec"]["automountServiceAccountToken"])
            self.assertFalse(any("hostPath" in volume for volume in pod["spec"]["volumes"]))
            for container in containers(pod).values():
                context = container["securityContext"]
                self.assertEqual((context["privileged"], context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]), (False, False, True))
                self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
                self.assertIn("memory", container["resources"]["limits"])
                self.assertIn("memory", container["resources"]["requests"])

    def test_the_restart_probe_stands_on_the_trainer_and_asks_the_sidecar_on_the_pods_address(self):
        for what, pod in pods(self.render(EVERYTHING)):
            if what == "Deployment":
                continue
            both = containers(pod)
            run = next(entry["value"] for entry in both["trainer"]["env"] if entry["name"] == "LOSSGAUGE_RUN")
            port = next(p["containerPort"] for p in both["lossgauged"]["ports"] if p["name"] == "lossgauge-grpc")
            for probe in ("startupProbe", "livenessProbe"):
                self.assertEqual(both["trainer"][probe]["grpc"], {"port": port, "service": f"run/{run}/restart"})
            self.assertNotIn("grpc", both["lossgauged"]["livenessProbe"])
            self.assertIn(f"--grpc_listen=0.0.0.0:{port}", both["lossgauged"]["args"])
        self.assertEqual(run, "many")

    def test_an_odd_run_name_arrives_as_it_is(self):
        job = self.render(EVERYTHING)["Job"][0]["spec"]["template"]
        trainer = containers(job)["trainer"]
        self.assertIn({"name": "LOSSGAUGE_RUN", "value": ODD_RUN}, trainer["env"])
        self.assertEqual(trainer["livenessProbe"]["grpc"]["service"], f"run/{ODD_RUN}/restart")

    def test_one_rank_that_is_restarted_starts_the_whole_jobset_anew_under_a_new_name_of_the_attempt(self):
        jobset = self.render(EVERYTHING)["JobSet"][0]
        self.assertEqual(jobset["spec"]["failurePolicy"]["maxRestarts"], 3)
        job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
        self.assertEqual((job["backoffLimit"], job["parallelism"], job["completions"], job["completionMode"]), (0, 2, 2, "Indexed"))
        self.assertEqual(job["template"]["spec"]["restartPolicy"], "Never")
        environment = containers(job["template"])["trainer"]["env"]
        names = [entry["name"] for entry in environment]
        self.assertLess(names.index("JOBSET_RESTART"), names.index("LOSSGAUGE_ATTEMPT"))  # a variable can be used after its definition only
        self.assertIn("$(JOBSET_RESTART)", next(entry["value"] for entry in environment if entry["name"] == "LOSSGAUGE_ATTEMPT"))

    def test_with_a_daemon_sidecars_forward_to_its_service(self):
        objects = self.render(EVERYTHING)
        service = objects["Service"][0]
        port = next(p["port"] for p in service["spec"]["ports"] if p["name"] == "lossgauge-grpc")
        for what, pod in pods(objects):
            if what != "Deployment":
                self.assertIn(f"--forward_to={service['metadata']['name']}.training.svc:{port}", containers(pod)["lossgauged"]["args"])
        deployment = objects["Deployment"][0]["spec"]
        self.assertEqual((deployment["replicas"], deployment["strategy"]), (1, {"type": "Recreate"}))  # one writer of the state
        self.assertLessEqual(service["spec"]["selector"].items(), deployment["template"]["metadata"]["labels"].items())
        self.assertEqual(deployment["selector"]["matchLabels"], service["spec"]["selector"])
        claim = objects["PersistentVolumeClaim"][0]
        self.assertEqual(claim["spec"]["storageClassName"], "fast")
        self.assertEqual(deployment["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], claim["metadata"]["name"])

    def test_sidecars_show_the_token_that_the_daemon_asks_for(self):
        for what, pod in pods(self.render({**EVERYTHING, "forwardToken": {"secret": "fleet", "key": "word"}})):
            lossgauged = containers(pod)["lossgauged"]
            flag = "token_file" if what == "Deployment" else "forward_token_file"
            self.assertIn(f"--{flag}=/etc/lossgauge/token/word", lossgauged["args"], what)
            self.assertIn({"name": "lossgauge-token", "mountPath": "/etc/lossgauge/token", "readOnly": True}, lossgauged["volumeMounts"])
            # lossgauged refuses a token that everybody may read, which a mounted Secret is by default.
            self.assertIn({"name": "lossgauge-token", "secret": {"secretName": "fleet", "defaultMode": 0o440}}, pod["spec"]["volumes"])
            self.assertIn("fsGroup", pod["spec"]["securityContext"])  # else its group is root's, and so is the token
        for what, pod in pods(self.render({"job": {"enabled": True}})):
            self.assertNotIn("lossgauge-token", json.dumps(pod))

    def test_finished_pods_are_not_scraped_and_the_job_is_named_as_the_alerts_look_for(self):
        objects = self.render(EVERYTHING)
        monitor = objects["PodMonitor"][0]
        self.assertEqual(monitor["metadata"]["labels"]["release"], "kube-prometheus")
        endpoint = monitor["spec"]["podMetricsEndpoints"][0]
        drop = next(rule for rule in endpoint["relabelings"] if rule["action"] == "drop")
        self.assertEqual([bool(re.fullmatch(drop["regex"], phase)) for phase in ("Succeeded", "Failed", "Running", "Pending")], [True, True, False, False])
        self.assertTrue(any(rule.get("targetLabel") == "job" and "lossgauge" in rule["replacement"] for rule in endpoint["relabelings"]))
        for what, pod in pods(objects):
            self.assertLessEqual(monitor["spec"]["selector"]["matchLabels"].items(), pod["metadata"]["labels"].items(), what)
            self.assertIn(endpoint["port"], [port["name"] for c in containers(pod).values() for port in c.get("ports", [])], what)

    def test_rules_and_dashboards_are_the_shipped_ones_with_the_users_runbooks(self):
        objects = self.render({**EVERYTHING, "prometheusRule": {"runbookUrl": "https://wiki.example/lossgauge"}})
        shipped = [group for path in sorted(RULES.glob("*.yml"))
                   for group in yaml.safe_load(path.read_text().replace("https://lossgauge.example/runbooks", "https://wiki.example/lossgauge"))["groups"]]
        self.assertEqual(sorted(objects["PrometheusRule"][0]["spec"]["groups"], key=lambda g: g["name"]), sorted(shipped, key=lambda g: g["name"]))
        found = {name: json.loads(text) for one in objects["ConfigMap"] for name, text in one["data"].items()}
        grafana = ROOT / "dashboards" / "grafana"
        self.assertEqual(found, {path.name: json.loads(path.read_text().replace("https://lossgauge.example/runbooks", "https://wiki.example/lossgauge"))
                                 for path in grafana.glob("*.json") if not path.name.startswith("package")})
        self.assertTrue(all(one["metadata"]["labels"]["grafana_dashboard"] == "1" for one in objects["ConfigMap"]))
        without = self.render({"prometheusRule": {"watchdog": False}})["PrometheusRule"][0]
        self.assertNotIn("LossgaugeWatchdog", json.dumps(without))

    def test_ports_are_open_for_those_who_scrape_and_among_ranks_only(self):
        policy = self.render({"networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]}})["NetworkPolicy"][0]["spec"]
        self.assertEqual([p["port"] for p in policy["ingress"][0]["ports"]], [9788, 9789])
        self.assertEqual(policy["ingress"][0]["from"], [{"namespaceSelector": {"matchLabels": {"a": "b"}}}])
        self.assertEqual(policy["policyTypes"], ["Ingress"])

    def test_every_flag_is_one_that_lossgauged_has(self):
        known = set(re.findall(r"ABSL_FLAG\([\w:]+, (\w+),", "".join(path.read_text() for path in sorted((ROOT / "server" / "main").glob("*flags.cc")))))
        used = set()
        for native in (True, False):
            for _, pod in pods(self.render({**EVERYTHING, "sidecar": {"native": native}})):
                used |= {re.match(r"--(\w+)", flag).group(1) for flag in containers(pod)["lossgauged"]["args"]}
        self.assertIn("ring_dir", used)
        self.assertLessEqual(used, known)


class BadValuesTest(Chart):
    def refused(self, values, *words, **options):
        done = self.run_renderer(values, **options)
        self.assertNotEqual(done.returncode, 0, values)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_values_that_contradict_are_refused_by_name(self):
        self.refused({"job": {"enabled": True, "run": "a"}, "jobset": {"enabled": True, "run": "a"}}, "job.run and jobset.run", '"a"')
        self.refused({"sidecar": {"ports": {"http": 9000, "grpc": 9000}}}, "sidecar.ports.http and sidecar.ports.grpc", "9000")
        self.refused({"daemon": {"ports": {"http": 9000, "grpc": 9000}}}, "daemon.ports.http and daemon.ports.grpc")
        self.refused({"daemon": {"enabled": True}, "sidecar": {"forwardTo": "elsewhere:1"}}, "daemon.enabled", "sidecar.forwardTo", "elsewhere:1")
        self.refused({"daemon": {"enabled": True}}, "daemon.enabled", "forwardToken.secret", "token")
        self.refused({"forwardToken": {"secret": "fleet"}}, "forwardToken.secret", "fleet", "nothing is forwarded")
        self.refused({"job": {"enabled": True}}, "sidecar.native", "1.27.3", kube="v1.27.3")

    def test_definitions_that_the_cluster_lacks_are_named(self):
        self.refused({"podMonitor": {"enabled": True}}, "podMonitor.enabled", "PodMonitor", api_versions=())
        self.refused({"prometheusRule": {"enabled": True}}, "prometheusRule.enabled", "PrometheusRule", api_versions=PROMETHEUS_OPERATOR[:1])
        self.refused({"jobset": {"enabled": True}}, "jobset.enabled", "jobset.x-k8s.io/v1alpha2", api_versions=PROMETHEUS_OPERATOR)
        self.assertNotIn("PodMonitor", self.render({"podMonitor": {"enabled": False}}))


class SchemaTest(unittest.TestCase):
    """What helm itself looks at before it renders."""

    def setUp(self):
        self.schema = json.loads((CHART / "values.schema.json").read_text())
        self.values = yaml.safe_load((CHART / "values.yaml").read_text())

    def test_the_charts_own_values_fit(self):
        jsonschema.Draft7Validator.check_schema(self.schema)
        jsonschema.validate(self.values, self.schema)
        self.assertEqual(set(self.values), set(self.schema["properties"]) - {"global"})

    def test_values_of_a_wrong_type_or_range_are_refused_where_they_stand(self):
        for path, value in ((("sidecar", "ringSize"), "64"), (("sidecar", "ringSize"), "-1Mi"), (("sidecar", "ports"), {"http": 80, "grpc": 9789}), (("job", "run"), ""),
                            (("jobset", "pods"), 0), (("podMonitor", "enabled"), "maybe"), (("sidecar", "forwardTo"), "no-port"), (("job", "typo"), 1),
                            (("podSecurityContext", "runAsNonRoot"), False), (("prometheusRule", "runbookUrl"), "wiki/"), (("daemon", "resources"), {"requests": {}, "limits": {}})):
            values = json.loads(json.dumps(self.values))
            values[path[0]][path[1]] = value
            errors = list(jsonschema.Draft7Validator(self.schema).iter_errors(values))
            self.assertTrue(errors, path)
            self.assertTrue(all(list(error.absolute_path)[:1] == [path[0]] for error in errors), errors)

    def test_chart_and_program_have_one_version(self):
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        version = re.search(r"project\(lossgauge VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
        self.assertEqual((chart["version"], chart["appVersion"]), (version, version))


if __name__ == "__main__":
    unittest.main()
