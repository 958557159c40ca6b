"""augur-load against a running daemon: needle answers, sums beside the daemon's counters, exit status, files."""

import csv
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import daemon as support  # noqa: E402  (the path is set above)

support.parse_settings()
from support.daemon import settings  # noqa: E402

LOAD = str(pathlib.Path(settings.augur).with_name("augur-load"))
REFUSED = 3
INTERRUPTED = 130


def counters(stage, name):
    """All growths of a counter, by its labels."""
    return {key: value for key, value in stage["daemon"]["counters"].items()
            if key == name or key.startswith(name + "{")}


class AugurLoadTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = support.Daemon()
        cls.handbook = f"{settings.source}/deploy/handbook.txt"
        cls.folder = tempfile.TemporaryDirectory(prefix="augur-load-test-")

    @classmethod
    def tearDownClass(cls):
        cls.daemon.kill()
        cls.folder.cleanup()

    def file(self, name):
        return f"{self.folder.name}/{name}"

    def load(self, *arguments):
        return support.run([LOAD, "--address", self.daemon.address, *arguments])

    def report(self, *arguments):
        """Of a run that watches the daemon."""
        result = self.load("--metrics", self.daemon.addresses["metrics"], "--json", self.file("json"), *arguments)
        self.assertEqual(result.returncode, 0, result)
        return json.loads(pathlib.Path(self.file("json")).read_text()), result

    def check_sums(self, stage):
        self.assertEqual(stage["miscounted"], 0)
        outcomes = ("completed", "cancelled", "expired", "refused", "failed_after_acceptance", "lost", "interrupted")
        self.assertEqual(sum(stage[name] for name in outcomes), stage["sent"])
        self.assertEqual(sum(stage["finish_reasons"].values()), stage["completed"])

    def test_batch_sizes_with_needles(self):
        report, result = self.report(
            "--concurrency", "1,2,4", "--requests", "8", "--prompts", "needle", "--text", self.handbook, "--documents",
            "4", "--questions", "2", "--input-len", "500", "--csv", self.file("csv"), "--html", self.file("html"),
            "--svg", self.file("svg"), "--goodput", "e2el:60000", "--detailed")
        self.assertEqual([stage["max_concurrency"] for stage in report["stages"]], [1, 2, 4])
        for stage in report["stages"]:
            self.check_sums(stage)
            self.assertEqual(stage["sent"], 8)
            self.assertEqual((stage["answers"], stage["answers_right"]), (8, 8), stage["generated_texts"])
            self.assertEqual(stage["max_concurrent_requests"], stage["max_concurrency"])
            self.assertEqual(sum(counters(stage, "augur_requests_total").values()), 8)
            # A stop string is seen after its token, so the daemon may have gone on.
            self.assertGreaterEqual(sum(counters(stage, "augur_generated_tokens_total").values()),
                                    stage["total_output_tokens"])
            computed = sum(counters(stage, "augur_prompt_tokens_total").values())
            cached = sum(counters(stage, "augur_cached_tokens_total").values())
            self.assertEqual(cached, stage["total_cached_tokens"])
            self.assertGreater(cached, 0)  # of a document's second question
            self.assertEqual(computed + cached, stage["total_input_tokens"])
            for reason, count in stage["finish_reasons"].items():
                self.assertEqual(
                    stage["daemon"]["counters"][f'augur_requests_total{{code="OK",finish_reason="{reason}"}}'], count)
            # The client's clock holds the daemon's.
            self.assertGreaterEqual(stage["median_ttft_ms"], stage["median_server_ttft_ms"])
            self.assertGreaterEqual(stage["mean_e2el_ms"], stage["mean_server_total_ms"])
            self.assertEqual(stage["request_goodput"], stage["request_throughput"])
        self.assertIn("batch 4", result.stdout)
        self.assertEqual(result.stderr, "")
        with open(self.file("csv"), newline="") as lines:
            rows = list(csv.DictReader(lines))
        self.assertEqual([row["completed"] for row in rows], ["8", "8", "8"])
        for name in ("html", "svg"):
            text = pathlib.Path(self.file(name)).read_text()
            ElementTree.fromstring(text)
            self.assertNotRegex(text, r"<script|<link|src=|https:")

    def test_every_token_is_counted(self):
        report, _ = self.report("--concurrency", "3", "--requests", "6", "--input-len", "50", "--output-len",
                                "uniform:10,30")
        self.check_sums(report)  # of a single stage, so its keys stand at the top
        self.assertEqual(report["completed"], 6)
        self.assertEqual(sum(counters(report, "augur_generated_tokens_total").values()),
                         report["total_output_tokens"])
        self.assertEqual(report["total_input_tokens"], 300)

    def test_an_open_loop_with_a_mix(self):
        report, _ = self.report(
            "--rate", "25", "--duration", "1.5", "--prompts", "prose", "--text", self.handbook, "--input-len",
            "lognormal:120,60", "--output-len", "uniform:10,60", "--cancel-share", "0.2", "--cancel-after",
            "uniform:30,80", "--deadline-share", "0.2", "--deadline", "uniform:30,80", "--slow-share", "0.1",
            "--slow-pause", "3", "--attention", "default,dense,sparse/dense", "--choices", "1*3,3",
            "--shared-prefix", "0.5")
        stage = report["stages"][0]
        self.check_sums(stage)
        self.assertGreater(stage["sent"], 15)
        self.assertEqual(stage["failed"], 0)
        # One that is cut short may not have reached the daemon, or have ended there in another way.
        whole = sum(counters(stage, "augur_requests_total").values())
        self.assertLessEqual(whole, stage["sent"])
        self.assertGreaterEqual(whole, stage["completed"])
        self.assertGreaterEqual(counters(stage, "augur_requests_total")[
            'augur_requests_total{code="OK",finish_reason="length"}'], stage["completed"])

    def test_choices_are_counted_one_by_one(self):
        report, _ = self.report("--concurrency", "2", "--requests", "6", "--input-len", "50", "--output-len", "10",
                                "--choices", "3", "--temperature", "1", "--attention", "sparse/dense")
        self.check_sums(report)
        self.assertEqual((report["completed"], report["total_output_tokens"]), (6, 180))
        self.assertEqual(report["total_input_tokens"], 300)
        self.assertEqual(sum(counters(report, "augur_generated_tokens_total").values()), 180)

    def test_a_plan_is_the_same_again(self):
        arguments = ("--dry-run", "--rate", "20", "--duration", "2", "--cancel-share", "0.5", "--seed", "4")
        first, again = self.load(*arguments), self.load(*arguments)
        self.assertEqual(first.returncode, 0, first)
        self.assertEqual(first.stdout, again.stdout)
        head, *requests = map(json.loads, first.stdout.splitlines())
        self.assertEqual(head["requests"], len(requests))

    def test_exit_status(self):
        for status, parts, arguments in (
                (2, ("--arrivals",), ("--arrivals", "never")),
                (2, ("--concurrency",), ("--concurrency", "0")),
                (2, ("--text", "nowhere"), ("--prompts", "prose", "--text", self.file("nowhere"))),
                (2, ("--json", "nowhere"), ("--json", self.file("nowhere/a.json"))),
                (1, ("--metrics", "127.0.0.1:1"), ("--metrics", "127.0.0.1:1"))):
            result = self.load(*arguments)
            self.assertEqual(result.returncode, status, result)
            self.assertEqual(result.stdout, "")
            for part in ("augur-load: ", *parts):
                self.assertIn(part, result.stderr)
        nobody = support.run([LOAD, "--address", "127.0.0.1:1"])
        self.assertEqual(nobody.returncode, 1, nobody)
        self.assertIn("127.0.0.1:1", nobody.stderr)
        refused = self.load("--attention", "forecast", "--requests", "2", "--input-len", "20")
        self.assertEqual(refused.returncode, REFUSED, refused)
        self.assertIn("refused FAILED_PRECONDITION", refused.stdout)

    def test_an_interrupt_reports_what_was_done(self):
        process = subprocess.Popen(
            [LOAD, "--address", self.daemon.address, "--concurrency", "2", "--duration", "60", "--input-len", "20",
             "--output-len", "8"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=support.die_with_parent)
        before = self.daemon.metric('augur_requests_total{code="OK",finish_reason="length"}')
        self.assertTrue(support.eventually(lambda: self.daemon.metric(
            'augur_requests_total{code="OK",finish_reason="length"}') > before + 4))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED, err)
        self.assertIn("augur-load: interrupted", err)
        self.assertRegex(out, r"batch 2: interrupted")

    def test_the_readme_names_every_option(self):
        text = self.load("--help").stdout
        readme = pathlib.Path(f"{settings.source}/loadtest/README.md").read_text()
        options = set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", text, re.MULTILINE)) - {"--help", "--version"}
        self.assertGreater(len(options), 50)
        self.assertEqual([option for option in sorted(options) if f"`{option}" not in readme], [])


if __name__ == "__main__":
    unittest.main()
