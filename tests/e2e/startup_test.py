"""augurd's command line: what it refuses, with which exit status and which one line."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
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

    def test_a_config_that_is_a_pipe_does_not_hang(self):
        pipe = self.folder / "pipe.yaml"
        os.mkfifo(pipe)
        self.refused(self.start("--config", str(pipe)), 2, "pipe.yaml")

    def test_served_name_must_be_text(self):
        self.refused(self.start("--served-name", b"\xff\xfe"), 2, "served_name", "UTF-8")

    def test_port_file_of_a_running_daemon_survives_another(self):
        with support.Daemon() as first:
            ports = self.folder / "ports"
            ports.write_text("of the first")
            self.refused(self.augurd("--model", settings.model, "--listen", first.address, "--metrics",
                                     "127.0.0.1:0", "--port-file", str(ports)), 4, first.address)
            self.assertEqual(ports.read_text(), "of the first")
        self.refused(self.start("--port-file", str(self.folder)), 2, str(self.folder))
        self.refused(self.start("--port-file", str(self.folder / "no" / "ports")), 2, "no/ports")
        self.assertTrue(self.folder.is_dir())

    def test_a_log_that_nobody_reads_does_not_keep_the_process(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        ports = self.folder / "ports"
        process = subprocess.Popen([settings.augurd, "--model", settings.model, "--listen", "127.0.0.1:0",
                                    "--metrics", "127.0.0.1:0", "--port-file", str(ports)], stderr=writer,
                                   preexec_fn=support.die_with_parent)
        self.addCleanup(process.kill)
        self.assertTrue(support.eventually(ports.exists))
        # Through another description of the pipe, so that the daemon's own keeps blocking.
        filler = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while os.write(filler, b"x" * 4096):
                pass
        os.close(filler)
        os.close(writer)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(support.EXIT_LIMIT_S), 0)

    def test_idle_connections_do_not_stop_the_metrics(self):
        with support.Daemon() as daemon:
            host, port = daemon.addresses["metrics"].split(":")
            with contextlib.ExitStack() as idle:
                for _ in range(30):
                    idle.enter_context(socket.create_connection((host, int(port))))
                self.assertIn("augur_", daemon.metrics())

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

    def test_hostile_files(self):
        """One line each, status 2, at once: the library's tests have the rest."""
        model = self.copy_model()
        header = b'{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}'
        tokenizer = json.loads((model / "tokenizer.json").read_text())
        tokenizer["model"]["vocab"]["line\nbreak"] = 1
        for name, data, *words in [
                ("config.json", b"[" * 1000000, "nested deeper than 64"),
                ("config.json", b'{"model_type":"llama","model_type":"llama"}', "model_type", "twice"),
                ("config.json", b"[" + b"0," * 2000000 + b"0]", "a JSON object"),
                ("model.safetensors", (2**62).to_bytes(8, "little") + header, "header length"),
                ("model.safetensors", len(header).to_bytes(8, "little") + header, "too large"),
                ("model.safetensors.index.json", b'{"weight_map":{"a":"../../secret"}}', "same folder"),
                ("tokenizer.json", json.dumps(tokenizer).encode(), "line\\nbreak", "id of its own"),
                ("tokenizer.json", b'{"decoder":{"type":"ByteLevel"},"model":{"vocab":{"a":0,"b":4000000}}}', "model.vocab", "4000000"),
                ("tokenizer.json", (model / "tokenizer.json").read_bytes()[:4096], "not valid JSON")]:
            with self.subTest(name=name, words=words):
                path = model / name
                before = path.read_bytes() if path.exists() else None
                path.unlink(missing_ok=True)
                path.write_bytes(data)
                self.refused(self.start(model=str(model)), 2, name, *words)
                path.unlink()
                if before is not None:
                    path.write_bytes(before)

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
