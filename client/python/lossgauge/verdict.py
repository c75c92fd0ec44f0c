"""The sidecar's verdict for a training loop that may not wait for it."""

import json
import os
import threading
import urllib.error
import urllib.parse
import urllib.request

from .arguments import encoded

SECONDS_BETWEEN = 5.0
TIMEOUT = 2.0
_MOST_BYTES = 1 << 20
# A proxy of the cluster (http_proxy) knows no sidecar, which is on this node, and need not learn of runs.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ACTIONS = ("continue", "watch", "restart", "halt", "unknown")


class Verdict:
    """action: "continue", "watch", "restart", "halt" or "unknown". reason: why, in words. raw: the sidecar's whole answer, as JSON."""

    def __init__(self, action="unknown", reason="", raw=None):
        self.action, self.reason, self.raw = action, reason, raw

    def __repr__(self):
        return "Verdict({!r}, {!r})".format(self.action, self.reason)


class VerdictPoll:
    """Asks GET /api/v1/verdict in a thread of its own, begun by the first question."""

    def __init__(self, run, sidecar):
        address = os.fsdecode(encoded("sidecar", sidecar) or b"") or os.environ.get("LOSSGAUGE_SIDECAR") or "127.0.0.1:9788"
        query = urllib.parse.urlencode({"run": encoded("run", run) or b""})
        self._url = "{}/api/v1/verdict?{}".format(address if "://" in address else "http://" + address, query)
        self._lock = threading.Lock()
        self._last = Verdict(reason="the sidecar has not been asked yet")
        self._stop = threading.Event()
        self._pid = None

    def last(self):
        with self._lock:
            if self._pid != os.getpid() and not self._stop.is_set():  # also in a forked child, where the parent's thread is not
                self._pid = os.getpid()
                threading.Thread(target=self._run, name="lossgauge-verdict", daemon=True).start()
            return self._last

    def stop(self):
        self._stop.set()

    def _run(self):
        while True:
            said = self._ask()
            with self._lock:
                self._last = said
            if self._stop.wait(SECONDS_BETWEEN):
                return

    def _ask(self):
        try:
            with _opener.open(self._url, timeout=TIMEOUT) as reply:
                answer = json.loads(reply.read(_MOST_BYTES))
        except urllib.error.HTTPError as refusal:
            return Verdict(reason="{} answered {}: {}".format(self._url, refusal.code, _words(refusal)))
        except Exception as failure:  # whatever it is, the job goes on
            return Verdict(reason="no answer from {}: {}".format(self._url, failure))
        return parse(answer)


def _words(refusal):
    """What lossgauged says of an error, as far as it is lossgauged."""
    try:
        return str(json.loads(refusal.read(_MOST_BYTES))["error"]["message"])
    except Exception:
        return refusal.reason


def parse(answer):
    """Verdict of the sidecar's JSON."""
    if not isinstance(answer, dict):
        return Verdict(reason="not an answer of lossgauged: {}".format(type(answer).__name__))
    action = str(answer.get("action", "")).lower()
    return Verdict(action if action in ACTIONS else "unknown", str(answer.get("reason", "")), answer)
