"""augurd's command line: what it refuses, with which exit status and which one line."""

import json
import pathlib
import shutil
import signal
import socket
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import daemon as support  # noqa: E402  (the path is set above)

support.parse_settings()
from support.daemon import settings  # noqa: E402


class StartupTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="augur-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def augurd(self, *arguments):
        return support.run([settings.augurd, *arguments])

    def start(self, *arguments, model=None):
        return self.augurd("--model", model or settings.model, "--listen", "127.0.0.1:0", "--metrics",
                           "127.0.0.1:0", *arguments)

    def refused(self, result, status, *words):
        self.assertEqual(result.returncode, status, result)
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        for word in words:
            self.assertIn(word, lines[0])

    def copy_model(self, **config_changes):
        model = self.folder / "model"
        shutil.copytree(settings.model, model, symlinks=True)
        config = json.loads((model / "config.json").read_text())
        config.update(config_changes)
        (model / "config.json").write_text(json.dumps(config))
        return model

    def test_help_and_version(self):
        self.assertIn("--port-file", self.augurd("--help").stdout)
        self.assertRegex(self.augurd("--version").stdout, r"^augurd \d+\.\d+\.\d+\n$")
        self.assertEqual(self.augurd("--help").returncode, 0)

    def test_flags(self):
        self.refused(self.augurd("--nonsense"), 2, "--nonsense")
        self.refused(self.augurd(), 2, "model")
        self.refused(self.start("--threads", "many"), 2, "threads", "many")
        self.refused(self.start("--set", "batsh=3"), 2, "batsh", "batch")

    def test_config_file(self):
        config = self.folder / "augurd.yaml"
        config.write_text("batch: 4\nkv_byts: 64MiB\n")
        self.refused(self.start("--config", str(config)), 2, "augurd.yaml:2", "kv_byts", "kv_bytes")
        config.write_text("batch: none\n")
        self.refused(self.start("--config", str(config)), 2, "augurd.yaml:1", "batch", "none")
        config.write_text("batch: [\n")
        self.refused(self.start("--config", str(config)), 2, "augurd.yaml")
        self.refused(self.start("--config", str(self.folder / "missing.yaml")), 2, "missing.yaml")

    def test_deployed_config_is_complete(self):
        deployed = pathlib.Path(settings.source) / "deploy" / "augurd.yaml"
        result = self.augurd("--config", str(deployed), "--check-config")
        self.assertEqual(result.returncode, 0, result)
        for line in result.stdout.splitlines():
            key = line.split(":")[0]
            self.assertRegex(deployed.read_text(), rf"(?m)^#?{key}:", key)

    def test_models(self):
        self.refused(self.start(model=str(self.folder / "missing")), 2, "missing")
        self.refused(self.start(model=str(self.folder)), 2, "config.json")
        model = self.copy_model(model_type="unheard")
        self.refused(self.start(model=str(model)), 2, "config.json", "model_type", "unheard")

    def test_model_with_another_shape(self):
        model = self.copy_model(intermediate_size=900)
        self.refused(self.start(model=str(model)), 2, "mlp", "900", "896")

    def test_model_whose_weights_are_cut(self):
        model = self.copy_model()
        weights = model / "model.safetensors"
        data = weights.read_bytes()
        weights.unlink()
        weights.write_bytes(data[:-1000])
        self.refused(self.start(model=str(model)), 2, "model.safetensors")

    def test_without_a_tokenizer_it_serves_ids(self):
        model = self.copy_model()
        (model / "tokenizer.json").unlink()
        with support.Daemon(model=model) as daemon:
            result = support.run([settings.augur, "info", "--json", "--server", daemon.address])
            self.assertEqual(json.loads(result.stdout)["text"], False)
            refused = support.run([settings.augur, "complete", "--server", daemon.address, "text"])
            self.assertEqual(refused.returncode, 1)
            self.assertIn("FAILED_PRECONDITION: text", refused.stderr)

    def test_port_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            place = f"127.0.0.1:{taken.getsockname()[1]}"
            self.refused(self.augurd("--model", settings.model, "--listen", place, "--metrics",
                                     "127.0.0.1:0"), 4, place)
            self.refused(self.augurd("--model", settings.model, "--listen", "127.0.0.1:0", "--metrics",
                                     place), 4, place)

    def test_two_daemons_do_not_share_a_port(self):
        with support.Daemon() as first:
            self.refused(self.augurd("--model", settings.model, "--listen", first.address, "--metrics",
                                     "127.0.0.1:0"), 4, first.address)

    def test_port_file_and_clean_end(self):
        for stop in (signal.SIGTERM, signal.SIGINT):
            with support.Daemon() as daemon:
                self.assertEqual(set(daemon.addresses), {"grpc", "metrics"})
                # The log has a thread of its own, which may be a moment behind the port file.
                self.assertTrue(support.eventually(lambda: " ready " in daemon.log()))
                self.assertIn("kv_capacity_tokens=", daemon.log())
                daemon.process.send_signal(stop)
                self.assertEqual(daemon.process.wait(support.EXIT_LIMIT_S), 0)


if __name__ == "__main__":
    unittest.main()
