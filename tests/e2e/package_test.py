"""What deploy/package.sh makes of this build: programs that start by themselves, with every library inside but
those that package.sh leaves to the machine."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import daemon as support  # noqa: E402  (the path is set above)

support.parse_settings()
from support.daemon import settings  # noqa: E402

PROGRAMS = ("augurd", "augur", "augur-bench")
# The C and C++ libraries, the GPU's driver and the CUDA toolkit.
OF_MACHINE = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|pthread|rt|resolv|stdc\+\+|gcc_s|cublas|cublasLt|cudart|cuda))\.so")
# Nothing of the caller's: no LD_LIBRARY_PATH above all.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "LD_LIBRARY_PATH": ""}


def run(command):
    return subprocess.run([str(word) for word in command], env=ENVIRONMENT, cwd="/", stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60)


def foreign_libraries(package, program):
    """name: path (or "not found") of what `program` would load from neither the package nor the machine's own."""
    listed = run(["ldd", program])
    assert listed.returncode == 0, listed.stderr
    found = dict(re.findall(r"^\t(\S+) => (not found|\S+)", listed.stdout, re.MULTILINE))
    assert found, listed.stdout
    return {name: path for name, path in found.items()
            if not OF_MACHINE.match(name) and pathlib.Path(path).resolve().parent != package / "lib"}


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="augur-test-")).resolve()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.package = cls.folder / "package"
        build = pathlib.Path(settings.augurd).resolve().parents[1]
        made = run([f"{settings.source}/deploy/package.sh", cls.package, build])
        assert made.returncode == 0, made.stderr

    def test_programs_start(self):
        for name in PROGRAMS:
            result = run([self.package / "bin" / name, "--help"])
            self.assertEqual(result.returncode, 0, result)
        version = run([self.package / "bin/augurd", "--version"])
        self.assertRegex(version.stdout, r"^augurd \d+\.\d+\.\d+\n$")
        self.assertEqual(version.returncode, 0, version)

    def test_the_bundled_model_is_there(self):
        result = run([self.package / "bin/augurd", "--check-config", "--model", self.package / "models/demo-9m"])
        self.assertEqual(result.returncode, 0, result)
        self.assertIn('served_name: "demo-9m"', result.stdout)
        for name in ("config.json", "tokenizer.json"):
            self.assertTrue((self.package / "models/demo-9m" / name).is_file(), name)

    def test_libraries_come_along(self):
        for name in PROGRAMS:
            self.assertEqual(foreign_libraries(self.package, self.package / "bin" / name), {})
        for library in (self.package / "lib").iterdir():
            self.assertFalse(OF_MACHINE.match(library.name), f"{library.name} is the machine's own")

    def test_a_missing_library_shows(self):
        broken = self.folder / "broken"
        (broken / "bin").mkdir(parents=True)
        shutil.copy(self.package / "bin/augurd", broken / "bin")
        shutil.copytree(self.package / "lib", broken / "lib", symlinks=True)
        lost = next((broken / "lib").glob("libgrpc.so*"))
        lost.unlink()
        self.assertEqual(list(foreign_libraries(broken, broken / "bin/augurd")), [lost.name])


if __name__ == "__main__":
    unittest.main(verbosity=2)
