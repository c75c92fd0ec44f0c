#!/usr/bin/python3
"""From a job's publish to a client that watches steps, through everything: ring, drain, join, judge, commit, snapshot, stream.

    watch_latency.py BIN_DIR [SECONDS]

A fake job publishes 8 ranks at 100 steps/s; a client reads /api/v1/steps/watch and compares each step's publish time with its own clock (one machine).
"""
import datetime
import http.client
import json
import pathlib
import subprocess
import sys
import tempfile
import time


def main():
    binaries = pathlib.Path(sys.argv[1])
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 10
    with tempfile.TemporaryDirectory() as work:
        rings = pathlib.Path(work) / "rings"
        rings.mkdir(mode=0o750)
        log = open(pathlib.Path(work) / "log", "w+")
        sidecar = subprocess.Popen([binaries / "lossgauged", "sidecar", f"--ring_dir={rings}", f"--state_dir={work}/state",
                                    "--http_listen=127.0.0.1:9877", "--grpc_listen=none"], stderr=log)
        job = subprocess.Popen([binaries / "fake_job", f"--ring_dir={rings}", "--ranks=8", "--rate=100", f"--steps={int((seconds + 8) * 100)}"])
        try:
            time.sleep(3)
            connection = http.client.HTTPConnection("127.0.0.1", 9877, timeout=10)
            connection.request("GET", "/api/v1/runs")
            run = json.loads(connection.getresponse().read())["runs"][0]["run"]
            connection.request("GET", f"/api/v1/steps/watch?run={run}")
            stream = connection.getresponse()
            latencies = []
            deadline = time.time() + seconds
            while time.time() < deadline:
                line = stream.readline()
                now = time.time_ns()
                if not line.startswith(b"data:"):
                    continue
                for step in json.loads(line[5:]).get("steps", []):
                    published = datetime.datetime.fromisoformat(step["publishTime"][:26]).replace(tzinfo=datetime.timezone.utc).timestamp()
                    latencies.append(now / 1e6 - published * 1e3)
            latencies.sort()
            print(f"{len(latencies)} steps: p50 {latencies[len(latencies) // 2]:.1f} ms, p99 {latencies[int(len(latencies) * 0.99)]:.1f} ms, "
                  f"max {latencies[-1]:.1f} ms")
        finally:
            job.kill()
            sidecar.terminate()
            sidecar.wait()


if __name__ == "__main__":
    main()
