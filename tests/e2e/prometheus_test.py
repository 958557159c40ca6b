"""Debian's Prometheus scrapes a daemon under load; promtool accepts the page; the counters add up."""

import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import daemon as support  # noqa: E402  (the path is set above)

support.parse_settings()

import grpc  # noqa: E402
from augur.v1 import completions_pb2 as pb  # noqa: E402
from augur.v1 import completions_pb2_grpc as rpc  # noqa: E402

LIMIT_S = 10
CLIENTS = 4
CALLS_A_CLIENT = 18
VLLM_NAMES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info",
              "lora_requests_info")
# Long enough for the call to arrive, without which the daemon counts nothing.
DEADLINE_S = 1
OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    """Scrapes one target five times a second into a folder of its own; the with block ends it."""

    def __init__(self, target):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="augur-prometheus-"))
        (self.folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
            "scrape_configs": [{"job_name": "augurd", "static_configs": [{"targets": [target]}]}]}))
        # Another process could take the port first: Prometheus would end, and the next try finds another.
        for _ in range(5):
            self.address = f"127.0.0.1:{free_port()}"
            self._log = open(self.folder / "log", "wb")
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data",
                 f"--web.listen-address={self.address}", "--storage.tsdb.retention.time=1h"],
                stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL, preexec_fn=support.die_with_parent)
            if support.eventually(lambda: self.ready() or self.process.poll() is not None) and self.ready():
                return
            self.stop()
        raise AssertionError((self.folder / "log").read_text(errors="replace"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(support.EXIT_LIMIT_S)
        self._log.close()

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=LIMIT_S) as answer:
            return answer.read().decode()

    def ready(self):
        try:
            return "Ready" in self.get("/-/ready")
        except OSError:
            return False

    def query(self, expression):
        """Labels and value of each sample, now."""
        answer = json.loads(self.get("/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
        assert answer["status"] == "success", answer
        return [(sample["metric"], float(sample["value"][1])) for sample in answer["data"]["result"]]

    def value(self, expression):
        samples = self.query(expression)
        return samples[0][1] if samples else 0.0


class PrometheusTest(unittest.TestCase):
    def setUp(self):
        self.daemon = support.Daemon("--set", "batch=4", "--set", "queue_requests=2")
        self.addCleanup(self.daemon.kill)
        self.outcomes = {}
        self.lock = threading.Lock()

    def count(self, outcome):
        with self.lock:
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def client(self, number):
        """Calls that end in all kinds of ways."""
        with grpc.insecure_channel(self.daemon.address, options=OPTIONS) as channel:
            stub = rpc.CompletionsStub(channel)
            for turn in range(CALLS_A_CLIENT):
                kind = (turn + number) % 6
                request = pb.CompleteRequest(
                    text="Lines with a key %d %d" % (number, turn),
                    sampling=pb.SamplingParams(temperature=-1 if kind == 3 else 1, seed=turn,
                                               n=4 if kind == 4 else 1),
                    stopping=pb.StoppingCriteria(max_tokens=4000 if kind in (1, 2) else 12, ignore_eos=kind in (1, 2),
                                                 stop=["e"] if kind == 5 else []))
                call = stub.Complete(request, timeout=DEADLINE_S if kind == 1 else None)
                try:
                    for index, message in enumerate(call):
                        if kind == 2 and index == 3:
                            call.cancel()
                    self.count("OK")
                except grpc.RpcError as error:
                    self.count(error.code().name)
                stub.Tokenize(pb.TokenizeRequest(text="abc"))

    def test_scrapes_under_load_and_adds_up(self):
        with Prometheus(self.daemon.addresses["metrics"]) as prometheus:
            # It looks for targets every five seconds.
            self.assertTrue(support.eventually(lambda: prometheus.value("up") == 1))
            clients = [threading.Thread(target=self.client, args=(number,)) for number in range(CLIENTS)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            total = CLIENTS * CALLS_A_CLIENT
            self.assertEqual(sum(self.outcomes.values()), total)
            self.assertGreaterEqual(len(self.outcomes), 4, self.outcomes)
            # The warm-up counts as one request.
            self.assertTrue(support.eventually(lambda: prometheus.value("sum(augur_requests_total)") == total + 1),
                            prometheus.query("augur_requests_total"))
            self.assertTrue(support.eventually(lambda: prometheus.value("augur_open_streams") == 0))
            self.check_sums(prometheus, total)
            self.assertEqual(prometheus.value("min_over_time(up[10m])"), 1.0)
            self.assertTrue(support.eventually(lambda: prometheus.value("count_over_time(up[10m])") >= 5))
            self.assertGreater(prometheus.value("max_over_time(augur_running_requests[10m])"), 0)
            self.assertGreater(prometheus.value("histogram_quantile(0.5, augur_inter_token_seconds_bucket)"), 0)

    def check_sums(self, prometheus, total):
        by_code = {labels["code"]: value for labels, value in prometheus.query("sum by (code) (augur_requests_total)")}
        # A client may hear of its own deadline or cancel where the server had ended well.
        for code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"):
            self.assertEqual(by_code[code], self.outcomes.get(code, 0), code)
        finished = prometheus.value('sum(augur_requests_total{code="OK"})')
        reasons = prometheus.value('sum(augur_requests_total{finish_reason!="none"})')
        errors = prometheus.value('sum(augur_requests_total{code!="OK"})')
        self.assertEqual(finished, reasons)
        self.assertEqual(reasons + errors, total + 1)
        # Of those, the engine's: accepted ones end once.
        self.assertEqual(prometheus.value("sum(augur_engine_requests_total)"),
                         prometheus.value("augur_accepted_requests_total"))
        self.assertEqual(prometheus.value('augur_unary_calls_total{method="Tokenize",code="OK"}'), total)

    def test_promtool_accepts_the_page(self):
        self.client(0)
        page = self.daemon.metrics()
        own = "".join(line + "\n" for line in page.splitlines() if "vllm:" not in line)
        checked = support.run(["promtool", "check", "metrics"], input=own)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))
        # Routers read the names of vLLM verbatim, colon included: of the whole page that is all it remarks upon.
        checked = support.run(["promtool", "check", "metrics"], input=page)
        remarks = {line for line in (checked.stdout + checked.stderr).splitlines() if line}
        self.assertEqual(remarks, {f"vllm:{name} metric names should not contain ':'" for name in VLLM_NAMES})
        self.assertEqual(checked.returncode, 3, "3: remarks; 1: it does not parse")


if __name__ == "__main__":
    unittest.main()
