"""Holds the tree to tests/tidy/tidy_rules.py, and shows that every rule finds a planted fault."""

import pathlib
import sys
import unittest

import tidy_rules
from tidy_rules import RULES, Tree, check

ROOT = pathlib.Path(__file__).resolve().parents[2]

LONG_BODY = "".join(f"  Do({i});\n" for i in range(70))

# rule -> ((path, text, what must be found: True or False), ...). Strings are cut where the rule would find them
# in this file.
PLANTED = {
    "top-level": (("scratch/notes.cc", "", True), ("engine/notes.cc", "", False)),
    "path-words": (("engine/string_utils.cc", "", True), ("server/common/a.cc", "", True),
                   ("engine/kv_manager.h", "", False), ("engine/manager2.h", "", True),
                   ("engine/uncommon.cc", "", False)),
    "include-direction": (("memory/a.cc", '#include "engine/request.h"\n', True),
                          ("kernels/a.cc", '#include "memory/pool.h"\n', True),
                          ("engine/a.cc", '#include "server/router.h"\n', True),
                          ("loadtest/a.cc", '#include "engine/request.h"\n', True),
                          ("server/a.cc", '#include "tests/support/daemon.h"\n', True),
                          ("kernels/cpu/a.cc", '#include "kernels/cuda/b.h"\n', True),
                          ("engine/a.cc", '#include "memory/pool.h"\n', False),
                          ("tests/a.cc", '#include "server/router.h"\n', False)),
    "library-direction": (("engine/a.cc", "#include <grpcpp/grpcpp.h>\n", True),
                          ("engine/a.cc", "#include <prometheus/counter.h>\n", True),
                          ("memory/a.cc", '#include "yaml-cpp/yaml.h"\n', True),
                          ("engine/a.cc", '#include "spdlog/spdlog.h"\n', True),
                          ("kernels/a.cc", '#include "absl/status/status.h"\n', True),
                          ("kernels/a.cc", "#include <boost/any.hpp>\n", True),
                          ("server/a.cc", '#include "gtest/gtest.h"\n', True),
                          ("kernels/a.cc", "#include <vector>\n#include <sys/mman.h>\n", False),
                          ("server/a.cc", "#include <grpcpp/grpcpp.h>\n", False)),
    "include-resolves": (("engine/a.cc", '#include "engine/missing.h"\n', True),
                         ("engine/a.cc", '#include "missing.h"\n', True),
                         ("engine/a.cc", '#include "absl/status/status.h"\n', False)),
    "header-guard": (("engine/a.h", "int A();\n", True), ("engine/a.h", "#pragma once\nint A();\n", False)),
    "file-length": (("engine/a.cc", "int a;\n" * 801, True), ("engine/a.cc", "int a;\n" * 800, False)),
    "function-length": (("engine/a.cc", f"namespace n {{\nint F(int x) {{\n{LONG_BODY}}}\n}}\n", True),
                        ("engine/a.h", f"class C {{\n  C() : a_(1), b_{{2}} {{\n{LONG_BODY}}}\n}};\n", True),
                        ("engine/a.cc", f"TEST(A, B) {{\n  if (a) {{\n{LONG_BODY}  }}\n}}\n", True),
                        ("tests/a.py", "def f():\n" + "    g()\n" * 70, True),
                        ("kernels/a.cc", f"void F() {{\n{LONG_BODY}}}\n", False),
                        ("kernels/a.cc", f"void F() {{\n{LONG_BODY * 3}}}\n", True),
                        ("engine/a.cc", f"struct S {{\n{'  int a;' + chr(10)}" * 1 + "  int b;\n" * 80 + "};\n", False),
                        ("engine/a.cc", "const int kTable[] = {\n" + "  1,\n" * 90 + "};\n", False),
                        ("engine/a.cc", 'int F() {\n  Say("{{{");  // {\n  return \'{\';\n}\n' * 30, False)),
    "unfinished": (("engine/a.cc", "// FIX" + "ME later\n", True), ("deploy/a.yaml", "# X" + "XX\n", True),
                   ("engine/a.cc", 'mkstemp("a-XX' + 'XXXX");\n', False)),
    "using-namespace": (("engine/a.cc", "using  namespace std;\n", True),
                        ("engine/a.cc", "// using namespace is banned\n", False)),
    "environment": (("engine/a.cc", 'auto* a = std::getenv("A");\n', True),
                    ("server/a_main.cc", 'auto* a = std::getenv("A");\n', False)),
    "volatile-word": (("memory/a.cc", "volatile int a;\n", True),
                      ("kernels/a.cu", 'asm volatile("bar.sync 0;");\n', False)),
    "exceptions": (("engine/a.cc", "void F() { throw 1; }\n", True), ("server/a.cc", "  try {\n", True),
                   ("engine/a.cc", "// try again\n", False), ("tests/a.cc", "  try {\n", False)),
    "fixed-sleeps": (("tests/a.cc", "std::this_thread::sleep_for(s);\n", True), ("tests/a.py", "time.sleep(1)\n", True),
                     ("tests/a.cc", "// no sleep_for here\n", False)),
    "machine-paths": (("deploy/a.md", "see /ho" + "me/me/a\n", True), ("engine/a.cc", '"/wo' + 'rk/a"\n', True),
                      ("deploy/a.md", "in $x/home" + "/a and net/work" + "/b\n", False)),
    "scripts": (("deploy/a.sh", "#!/usr/bin/env bash\nif then\n", True), ("deploy/a.sh", "echo\n", True),
                ("deploy/a.sh", "#!/usr/bin/env bash\necho\n", False)),
    "readme-map": (("README.md", "## Map\n`engine/missing.cc`\n## Life of a token\n## What do I run?\n", True),
                   ("README.md", "no sections\n", True),
                   ("README.md", "## Map\n`README.md`\n## Life of a token\n## What do I run?\n", False)),
}


class PlantedFaults(unittest.TestCase):
    def test_every_rule_has_a_plant_that_it_finds(self):
        for name in RULES:
            self.assertTrue(any(expected for _, _, expected in PLANTED.get(name, ())), name)

    def test_plants(self):
        for name, plants in PLANTED.items():
            for path, text, expected in plants:
                with self.subTest(rule=name, path=path, text=text[:60]):
                    found = [entry for entry in RULES[name](Tree({path: text})) if path.startswith(entry[0])]
                    self.assertEqual(bool(found), expected, found)

    def test_missing_top_level_entry(self):
        found = list(RULES["top-level"](Tree({"engine/a.cc": ""})))
        self.assertIn("memory", [path for path, _, _ in found])

    def test_script_that_is_not_executable(self):
        tree = Tree({"deploy/a.sh": "#!/usr/bin/env bash\n"}, {"deploy/a.sh": False})
        self.assertTrue(list(RULES["scripts"](tree)))

    def test_allowed_entry_that_is_not_needed(self):
        findings = check(Tree({"README.md": ""}))
        self.assertTrue(set(tidy_rules.ALLOWED) <= {
            (f.text.split("the rule ")[1].split(" here")[0], f.path) for f in findings if f.rule == "allowed"})


class WholeTree(unittest.TestCase):
    def test_tree(self):
        findings = check(Tree.read(ROOT))
        self.assertFalse(findings, "\n" + "\n".join(map(str, findings)))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main()
