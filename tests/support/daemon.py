"""A real augurd as a child process, for Python tests: the twin of daemon_process.h.

Which binaries, stubs and sources are tested comes from the command line: call parse_settings() before unittest
looks at it.
"""

import argparse
import ctypes
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request

READY_LIMIT_S = 60
EXIT_LIMIT_S = 60
SCRAPE_LIMIT_S = 10
PR_SET_PDEATHSIG = 1
POLL_S = 0.01

settings = argparse.Namespace()
_libc = ctypes.CDLL(None)


def parse_settings():
    """Takes --augurd, --augur, --stubs and --source out of sys.argv and makes the stubs importable."""
    parser = argparse.ArgumentParser()
    for name in ("--augurd", "--augur", "--stubs", "--source"):
        parser.add_argument(name, required=True)
    _, rest = parser.parse_known_args(namespace=settings)
    settings.model = f"{settings.source}/deploy/models/demo-9m"
    sys.argv[1:] = rest
    import grpc
    sys.path.insert(0, settings.stubs)
    # The generated grpc/health hides behind the grpc package otherwise.
    grpc.__path__.append(f"{settings.stubs}/grpc")


def eventually(condition, limit_s=20):
    """Whether `condition` became true in time."""
    pause = threading.Event()
    for _ in range(int(limit_s / POLL_S)):
        if condition():
            return True
        pause.wait(POLL_S)
    return bool(condition())


def die_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Daemon:
    """augurd on the bundled model and free ports, ready to be called; stop() or the with block ends it."""

    def __init__(self, *flags, model=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="augur-test-"))
        self._log = open(self.folder / "log", "wb")
        self.process = subprocess.Popen(
            [settings.augurd, "--model", str(model or settings.model), "--listen", "127.0.0.1:0", "--metrics",
             "127.0.0.1:0", "--port-file", str(self.folder / "ports"), *flags],
            stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
        ports = self.folder / "ports"
        ready = eventually(lambda: ports.exists() or self.process.poll() is not None, READY_LIMIT_S)
        if not ready or self.process.poll() is not None:
            log = self.log()
            self.kill()
            raise AssertionError(f"augurd did not become ready; it says:\n{log}")
        self.addresses = dict(line.split() for line in ports.read_text().splitlines())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    @property
    def address(self):
        return self.addresses["grpc"]

    def log(self):
        return (self.folder / "log").read_text(errors="replace")

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.addresses['metrics']}/metrics", timeout=SCRAPE_LIMIT_S) as answer:
            return answer.read().decode()

    def metric(self, sample):
        """The value of a sample without labels, or with exactly these."""
        match = re.search(rf"^{re.escape(sample)} (\S+)$", self.metrics(), re.MULTILINE)
        return float(match.group(1)) if match else None

    def terminate(self):
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(EXIT_LIMIT_S)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def run(command, **options):
    """Runs a command to its end, with a limit; text in and out."""
    options.setdefault("stdin", subprocess.DEVNULL if "input" not in options else None)
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          timeout=EXIT_LIMIT_S, preexec_fn=die_with_parent,
                          **{key: value for key, value in options.items() if value is not None})
