"""The `augur` command line against a running daemon: output, progress, exit status, Ctrl-C."""

import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import daemon as support  # noqa: E402  (the path is set above)

support.parse_settings()
from support.daemon import settings  # noqa: E402

QUESTION = ("What is the special magic number for amber-falcon mentioned in the text? "
            "The special magic number for amber-falcon is")
GREEDY = ("--temperature", "0")


class AugurClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = support.Daemon()
        cls.handbook = f"{settings.source}/deploy/handbook.txt"

    @classmethod
    def tearDownClass(cls):
        cls.daemon.kill()

    def augur(self, command, *arguments, **options):
        return support.run([settings.augur, command, "--server", self.daemon.address, *arguments], **options)

    def start(self, *arguments, **options):
        return subprocess.Popen([settings.augur, "complete", "--server", self.daemon.address, *arguments],
                                preexec_fn=support.die_with_parent, **options)

    def test_answers_from_a_document(self):
        result = self.augur("complete", "-f", self.handbook, "-q", QUESTION, *GREEDY, "--max-tokens", "20",
                            "--stop", "\n", "--timings", "--progress", "always")
        self.assertEqual(result.returncode, 0, result)
        self.assertEqual(result.stdout.strip(), "7391846.")
        self.assertIn("prefill 512/", result.stderr)
        for words in ("prompt tokens", "first token", "finish reason     stop"):
            self.assertIn(words, result.stderr)

    def test_several_choices(self):
        flags = ("--seed", "7", "--max-tokens", "12", "--ignore-eos", "--priority", "3", "The package")
        alone = self.augur("complete", *flags, "--quiet").stdout
        result = self.augur("complete", "-n", "3", *flags)
        self.assertEqual(result.returncode, 0, result)
        parts = result.stdout.split("--- choice ")[1:]
        texts = {part[0]: part.split(" (length)\n", 1)[1] for part in parts}
        self.assertEqual(set(texts), {"0", "1", "2"})
        self.assertEqual(texts["0"], alone + "\n")
        self.assertEqual(len(set(texts.values())), 3)
        self.assertIn(" 36 generated", result.stderr)

    def test_biases_and_special_tokens(self):
        flags = (*GREEDY, "--max-tokens", "2", "--ignore-eos", "--quiet", "--logit-bias", "1=100", "The package")
        self.assertEqual(self.augur("complete", *flags).stdout, "")
        self.assertEqual(self.augur("complete", "--show-special-tokens", *flags).stdout, "<|end|>" * 2)
        bad = self.augur("complete", "--logit-bias", "1:100", "The package")
        self.assertEqual((bad.returncode, "--logit-bias" in bad.stderr), (2, True), bad)

    def test_stop_text_and_attention(self):
        flags = (*GREEDY, "--quiet", "--max-tokens", "60", "--stop", " ", "--policy", "sparse", "The package")
        cut = self.augur("complete", *flags).stdout
        self.assertEqual(self.augur("complete", "--include-stop", *flags).stdout, cut + " ")
        refused = self.augur("complete", "--policy", "forecast", "The package")
        self.assertEqual((refused.returncode, "attention.policy" in refused.stderr), (1, True), refused)
        refused = self.augur("complete", "--values", "sampled", "The package")
        self.assertIn("attention.value_mode", refused.stderr)

    def test_document_on_standard_input(self):
        text = pathlib.Path(self.handbook).read_text()
        from_file = self.augur("complete", "-f", self.handbook, "-q", QUESTION, *GREEDY, "--quiet")
        from_stdin = self.augur("complete", "-f", "-", "-q", QUESTION, *GREEDY, "--quiet", input=text)
        self.assertEqual(from_file.stdout, from_stdin.stdout)
        self.assertEqual(from_file.stderr, "")

    def test_without_a_terminal_there_is_no_bar(self):
        result = self.augur("complete", *GREEDY, "--max-tokens", "5", "The package")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"^3 prompt tokens \(\d+ cached\), 5 generated \(length\); .*\n$")

    def test_bar_on_a_terminal(self):
        master, slave = pty.openpty()
        process = self.start("-f", self.handbook, *GREEDY, "--max-tokens", "5", "--no-prefix-cache",
                             stdout=subprocess.PIPE, stderr=slave)
        os.close(slave)
        process.communicate(timeout=support.EXIT_LIMIT_S)
        seen = b""
        try:
            while part := os.read(master, 4096):
                seen += part
        except OSError:  # the other end is closed
            pass
        os.close(master)
        self.assertEqual(process.returncode, 0, seen)
        self.assertIn(b"\r[####", seen)
        self.assertIn(b"\r\x1b[K", seen)

    def test_ctrl_c_cancels(self):
        process = self.start(*GREEDY, "--max-tokens", "8000", "--ignore-eos", "The package",
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertTrue(process.stdout.read(20))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=support.EXIT_LIMIT_S)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(errors.decode(), "augur: interrupted, the call is cancelled\n")
        self.assertTrue(support.eventually(lambda: self.daemon.metric("augur_open_streams") == 0))

    def test_closed_output(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            process = self.start("The package", stdout=full, stderr=subprocess.PIPE)
            _, errors = process.communicate(timeout=support.EXIT_LIMIT_S)
        self.assertEqual(process.returncode, 1)
        self.assertIn(b"standard output takes no more", errors)

    def test_failures_are_one_line(self):
        refused = self.augur("complete", "--temperature", "-1", "The package")
        self.assertEqual(refused.returncode, 1)
        self.assertRegex(refused.stderr, r"^augur: INVALID_ARGUMENT: .*temperature.*\n$")
        late = self.augur("complete", "--deadline", "0.2", "--max-tokens", "8000", "--ignore-eos", "The")
        self.assertEqual(late.returncode, 1)
        self.assertRegex(late.stderr, r"^augur: DEADLINE_EXCEEDED: .*\n$")
        absent = support.run([settings.augur, "info", "--server", "127.0.0.1:1"])
        self.assertEqual(absent.returncode, 1)
        self.assertRegex(absent.stderr, r"^augur: UNAVAILABLE: .*127.0.0.1:1.*\n$")

    def test_bad_usage(self):
        for arguments in (["complete"], ["complete", "--bogus", "x"], ["complete", "-f", "/missing"],
                          ["complete", "--max-tokens", "x", "y"], ["complete", "-f", self.handbook, "text"],
                          ["complete", "--quiet", "--timings", "text"],
                          ["complete", "--quiet", "--logprobs", "1", "text"], ["tokenize", "--tokenizer", "/missing"]):
            result = self.augur(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        binary = support.run([settings.augur, "complete", "-f", settings.augur])
        self.assertEqual(binary.returncode, 2)
        self.assertIn("not UTF-8", binary.stderr)

    def test_several_stops(self):
        result = self.augur("complete", *GREEDY, "--quiet", "--stop", "qqqq", "--stop", " ", "--max-tokens", "50",
                            "The package is")
        self.assertEqual(result.returncode, 0, result)
        self.assertNotIn(" ", result.stdout)

    def test_echo_and_logprobs(self):
        plain = self.augur("complete", *GREEDY, "--quiet", "--max-tokens", "4", "The package is")
        echoed = self.augur("complete", *GREEDY, "--max-tokens", "4", "--echo", "--logprobs", "2", "The package is")
        self.assertEqual(echoed.returncode, 0, echoed)
        self.assertEqual(echoed.stdout, "The package is" + plain.stdout)
        *lines, summary = echoed.stderr.splitlines()
        self.assertIn("4 generated", summary)
        first, *others = lines
        self.assertIn("the prompt's first token", first)
        self.assertEqual(len(lines), int(summary.split(" ")[0]) + 4)
        for line in others:
            self.assertRegex(line, r"^ *-\d+\.\d{4}  rank \d+  \".*\"   \".*\" -\d+\.\d{4}, \".*\" -\d+\.\d{4}$")
        for line in lines[-4:]:
            self.assertIn("rank 1 ", line)

    def test_penalties(self):
        plain = self.augur("complete", *GREEDY, "--quiet", "--max-tokens", "60", "The package")
        changed = self.augur("complete", *GREEDY, "--quiet", "--max-tokens", "60", "--repetition-penalty", "1.5",
                             "--presence-penalty", "0.5", "--frequency-penalty", "0.5", "The package")
        self.assertEqual((plain.returncode, changed.returncode), (0, 0))
        self.assertNotEqual(plain.stdout, changed.stdout)
        words = changed.stdout.split()
        self.assertGreater(len(set(words)) / len(words), 0.8)
        refused = self.augur("complete", "--repetition-penalty", "0", "The package")
        self.assertRegex(refused.stderr, r"^augur: INVALID_ARGUMENT: .*repetition_penalty.*\n$")

    def test_info(self):
        table = self.augur("info")
        self.assertEqual(table.returncode, 0)
        self.assertIn("context      8,192 tokens\n", table.stdout)
        model = json.loads(self.augur("info", "--json").stdout)
        self.assertEqual((model["model"], model["policies"]), ("demo-9m", ["dense", "sparse"]))
        self.assertNotIn("kv", model)

    def test_info_kv(self):
        table = self.augur("info", "--kv").stdout
        self.assertIn("full context 128 blocks, 128 resident = 128 frames of 196608 bytes", table)
        kv = json.loads(self.augur("info", "--kv", "--json").stdout)["kv"]
        self.assertEqual((kv["residency"], kv["page_bytes"]), ("device", 16384))
        pool = kv["pools"][0]
        self.assertEqual((pool["tier"], pool["unit_bytes"]), ("device", 196608))
        self.assertEqual(pool["held"] + pool["cached"] + pool["free"], pool["total"])

    def test_health(self):
        for service in ([], ["--service", "augur.v1.Completions"], ["--service", "live"]):
            result = self.augur("health", *service)
            self.assertEqual((result.returncode, result.stdout), (0, "SERVING\n"))
        unknown = self.augur("health", "--service", "unknown")
        self.assertEqual(unknown.returncode, 1)
        self.assertRegex(unknown.stderr, "^augur: NOT_FOUND")

    def test_health_watch_sees_the_end(self):
        with support.Daemon() as daemon:
            watch = subprocess.Popen([settings.augur, "health", "--watch", "--server", daemon.address],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     preexec_fn=support.die_with_parent)
            self.assertEqual(watch.stdout.readline(), b"SERVING\n")
            self.assertEqual(daemon.terminate(), 0)
            rest, errors = watch.communicate(timeout=support.EXIT_LIMIT_S)
            self.assertEqual(rest, b"NOT_SERVING\n")
            self.assertEqual(watch.returncode, 1)
            self.assertIn(b"UNAVAILABLE", errors)

    def test_tokenize_by_daemon_and_offline(self):
        offline = ("--tokenizer", f"{settings.model}/tokenizer.json")
        for text in ("", "Hello 123", "Größe \U0001f600\n", "<|begin|>x<|end|>"):
            for flags in ((), ("--no-special-tokens",), ("--no-parse-special",)):
                mine = support.run([settings.augur, "tokenize", *offline, *flags], input=text)
                self.assertEqual(mine.returncode, 0, mine)
                if not text:
                    continue  # the daemon refuses an empty text
                theirs = self.augur("tokenize", *flags, input=text)
                self.assertEqual(theirs.stdout, mine.stdout)
                self.assertIsInstance(json.loads(mine.stdout)["ids"], list)


if __name__ == "__main__":
    unittest.main()
