"""The style rules that are tests: each takes the tree's files and yields what breaks it.

Add a rule as a function decorated with @rule and a planted fault in tidy_test.py that it must find. What may
break a rule stands in ALLOWED, with the reason; an entry that nothing needs any more is itself a fault.
"""

import ast
import os
import pathlib
import re
import subprocess
from dataclasses import dataclass

ALLOWED = {
    # (rule, path): reason
    ("exceptions", "server/server_config.cc"): "yaml-cpp reports by exception",
    ("exceptions", "loadtest/sweep_file.cc"): "yaml-cpp reports by exception",
    ("exceptions", "server/client/augur_main.cc"): "CLI11 reports by exception",
    ("exceptions", "server/augurd_main.cc"): "CLI11 reports by exception",
    ("exceptions", "engine/training/train_forecast_main.cc"): "CLI11 reports by exception",
    ("library-direction", "engine/training/train_forecast_main.cc"): "a command of its own, no part of the engine",
    ("exceptions", "server/metrics_exporter.cc"): "civetweb reports by exception that it cannot listen",
    ("fixed-sleeps", "tests/server/eventually.h"): "the one place that polls, with a limit",
    ("fixed-sleeps", "tests/kernels/thread_pool_test.cc"): "delays that make interleavings, awaited by nothing",
}

TOP_LEVEL = {
    ".ci", ".clang-format", ".editorconfig", ".gitignore", "CMakeLists.txt", "CMakePresets.json", "README.md",
    "deploy", "engine", "kernels", "loadtest", "memory", "proto", "server", "tests",
}
TOP_LEVEL_LATER = {"loadtest"}  # may still be missing

# Folder -> folders of ours that it may include. Arrows never point up.
LAYERS = {
    "kernels": {"kernels"},
    "memory": {"memory", "kernels"},
    "engine": {"engine", "memory", "kernels"},
    "server": {"server", "engine", "memory", "kernels"},
    "loadtest": {"loadtest"},
    "tests": {"tests", "server", "engine", "memory", "kernels", "loadtest"},
}

# Library -> beginnings of its headers.
LIBRARIES = {
    "grpc": ("grpc/", "grpcpp/", "augur/v1/"),
    "protobuf": ("google/protobuf/",),
    "prometheus": ("prometheus/", "civetweb"),
    "yaml": ("yaml-cpp/",),
    "spdlog": ("spdlog/", "fmt/"),
    "cli11": ("CLI/",),
    "json": ("nlohmann/",),
    "absl": ("absl/",),
    "openssl": ("openssl/",),
    "pcre2": ("pcre2",),
    "utf8proc": ("utf8proc",),
    "gtest": ("gtest/", "gmock/"),
    "cuda": ("cuda", "cublas", "cub/", "cooperative_groups", "mma.h", "nvtx"),
}
LIBRARIES_ALLOWED = {
    "kernels": {"cuda"},
    "memory": {"absl", "openssl"},
    "engine": {"absl", "json", "pcre2", "utf8proc", "openssl"},
    "server": set(LIBRARIES) - {"gtest", "cuda"},
    "loadtest": {"grpc", "protobuf", "cli11", "json", "absl", "yaml"},
    "tests": set(LIBRARIES),
}

CODE = (".h", ".cc", ".cu", ".cuh")
MAX_LINES = {".h": 800, ".cc": 800, ".cu": 800, ".cuh": 1200, ".py": 800, ".sh": 800}
MAX_FUNCTION = 70
MAX_KERNEL_FUNCTION = 200

BANNED_PATH_WORDS = {"util": "what it does", "utils": "what it does", "helper": "what it helps with",
                     "helpers": "what they help with", "common": "what is shared", "misc": "what it is",
                     "manager2": "how it differs"}


@dataclass(frozen=True)
class Finding:
    rule: str
    path: str
    line: int
    text: str

    def __str__(self):
        return f"{self.path}:{self.line}: [{self.rule}] {self.text}"


RULES = {}


def rule(function):
    RULES[function.__name__.replace("_", "-")] = function
    return function


class Tree:
    """Paths below the root (with /) and their texts; None for what is not UTF-8 text."""

    def __init__(self, texts, modes=None):
        self.texts = texts
        self.modes = modes or {}

    @staticmethod
    def read(root):
        """What git would commit; where there is no git, everything but build output."""
        root = pathlib.Path(root)
        listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"], capture_output=True, check=False)
        if listed.returncode == 0:
            paths = [name for name in listed.stdout.decode().split("\0") if name]
        else:
            paths = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
            paths = [path for path in paths if path.split("/")[0] != "build" and "__pycache__" not in path]
        texts, modes = {}, {}
        for path in sorted(set(paths)):
            full = root / path
            if not full.is_file():
                continue  # deleted, not yet committed
            modes[path] = os.access(full, os.X_OK)
            try:
                texts[path] = full.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                texts[path] = None
        return Tree(texts, modes)

    def code(self):
        return ((path, text) for path, text in self.texts.items()
                if text is not None and path.endswith(CODE))

    def exists(self, path):
        path = path.rstrip("/")
        return path in self.texts or any(known.startswith(path + "/") for known in self.texts)


def check(tree):
    """All findings, the allowed ones taken out; and one for each entry of ALLOWED that is not needed."""
    findings, used = [], set()
    for name, function in RULES.items():
        for path, line, text in function(tree):
            if (name, path) in ALLOWED:
                used.add((name, path))
            else:
                findings.append(Finding(name, path, line, text))
    for entry in ALLOWED.keys() - used:
        findings.append(Finding("allowed", entry[1], 0, f"nothing breaks the rule {entry[0]} here any more"))
    return findings


def blank_out(text, keep_strings=False):
    """C++ with comments (and the insides of literals) turned into spaces; line ends stay."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
                         re.DOTALL)

    def replace(match):
        found = match.group(0)
        if keep_strings and found[0] in "\"'R":
            return found
        return re.sub(r"[^\n]", " ", found)

    return pattern.sub(replace, text)


def lines_matching(text, pattern):
    for number, line in enumerate(text.split("\n"), 1):
        if re.search(pattern, line):
            yield number, line.strip()


def includes(text):
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if match:
            yield number, match.group(1), match.group(2)


@rule
def top_level(tree):
    seen = {path.split("/")[0] for path in tree.texts}
    for name in sorted(seen - TOP_LEVEL):
        yield name, 0, "is not one of the fixed top-level entries"
    for name in sorted(TOP_LEVEL - TOP_LEVEL_LATER - seen):
        yield name, 0, "is missing from the top level"


@rule
def path_words(tree):
    for path in tree.texts:
        for word in re.split(r"[/._-]", path.lower()):
            if word in BANNED_PATH_WORDS:
                yield path, 0, f'"{word}" says nothing: name {BANNED_PATH_WORDS[word]}'


@rule
def include_direction(tree):
    for path, text in tree.code():
        layer = path.split("/")[0]
        for number, _, header in includes(text):
            target = header.split("/")[0] if "/" in header else None  # <memory> is the standard library's
            if target in LAYERS and target not in LAYERS.get(layer, set()):
                yield path, number, f"{layer}/ must not include {header}"
            for one, other in (("cpu", "cuda"), ("cuda", "cpu")):
                if path.startswith(f"kernels/{one}/") and header.startswith(f"kernels/{other}/"):
                    yield path, number, f"kernels/{one} must not know {header}"


@rule
def library_direction(tree):
    for path, text in tree.code():
        allowed = LIBRARIES_ALLOWED.get(path.split("/")[0], set())
        for number, _, header in includes(text):
            for library, beginnings in LIBRARIES.items():
                if header.startswith(beginnings) and library not in allowed:
                    yield path, number, f"{library} must not be used here ({header})"
            if path.startswith("kernels/") and "/" in header and not header.startswith(
                    ("kernels/", "sys/", "cuda/", "cub/")):
                yield path, number, f"kernels/ needs nothing but the standard library and CUDA ({header})"


@rule
def include_resolves(tree):
    known = tuple(beginning for beginnings in LIBRARIES.values() for beginning in beginnings)
    for path, text in tree.code():
        for number, quote, header in includes(text):
            beside = f"{path.rsplit('/', 1)[0]}/{header}"
            resolves = header in tree.texts or (path.startswith("tests/") and beside in tree.texts)
            if quote == '"' and not resolves and not header.startswith(known):
                yield path, number, f'"{header}" is no file of ours (write includes from the root)'


@rule
def header_guard(tree):
    for path, text in tree.code():
        if path.endswith((".h", ".cuh")) and "#pragma once" not in text:
            yield path, 1, "has no #pragma once"


@rule
def file_length(tree):
    for path, text in tree.texts.items():
        limit = MAX_LINES.get(pathlib.PurePosixPath(path).suffix)
        if text is not None and limit is not None and text.count("\n") > limit:
            yield path, limit, f"{text.count(chr(10))} lines, at most {limit}"


def cpp_functions(text):
    """(first line, last line) of blocks at namespace or class level that are no namespace, type or table."""
    clean = re.sub(r"(?m)^\s*#.*(?:\\\n.*)*$", lambda m: re.sub(r"[^\n]", " ", m.group(0)), blank_out(text))
    stack, header_start, line = [], 0, 1
    starts = {}
    for at, char in enumerate(clean):
        if char == "\n":
            line += 1
        elif char in ";" and not any(stack):
            header_start = at + 1
        elif char == "{":
            if any(stack):
                stack.append(True)
                continue
            header = clean[header_start:at]
            is_open = re.search(r"\b(namespace|class|struct|union|enum|extern)\b[^()]*$", header) is not None
            is_table = re.search(r"=\s*$", header) is not None
            stack.append(not (is_open or is_table))
            if stack[-1]:
                leading = len(header) - len(header.lstrip())
                starts[len(stack)] = clean.count("\n", 0, header_start + leading) + 1
            header_start = at + 1
        elif char == "}" and stack:
            depth = len(stack)
            if stack.pop() and not any(stack):
                yield starts[depth], line
            if not any(stack):
                header_start = at + 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno


@rule
def function_length(tree):
    for path, text in tree.texts.items():
        if text is None or not path.endswith(CODE + (".py",)):
            continue
        limit = MAX_KERNEL_FUNCTION if path.startswith("kernels/") else MAX_FUNCTION
        functions = python_functions if path.endswith(".py") else cpp_functions
        for first, last in functions(text):
            if last - first + 1 > limit:
                yield path, first, f"a function of {last - first + 1} lines, at most {limit}"


@rule
def unfinished(tree):
    pattern = r"\b(FIX" + r"ME|X" + r"XX)\b"
    for path, text in tree.texts.items():
        if text is not None and not path.startswith("tests/golden/"):
            for number, line in lines_matching(text, pattern):
                yield path, number, line


@rule
def using_namespace(tree):
    for path, text in tree.code():
        for number, line in lines_matching(blank_out(text), r"\busing\s+namespace\b"):
            yield path, number, line


@rule
def environment(tree):
    for path, text in tree.code():
        if not path.endswith("_main.cc"):
            for number, line in lines_matching(blank_out(text), r"\b(secure_)?getenv\b"):
                yield path, number, f"behaviour by environment variable: {line}"


@rule
def volatile_word(tree):
    for path, text in tree.code():
        clean = re.sub(r"\basm\s+volatile\b|\b__asm__\s+volatile\b|\b__asm__\s+__volatile__\b", "asm", blank_out(text))
        for number, line in lines_matching(clean, r"\bvolatile\b"):
            yield path, number, f"use std::atomic: {line}"


@rule
def exceptions(tree):
    for path, text in tree.code():
        if not path.startswith("tests/"):
            for number, line in lines_matching(blank_out(text), r"\b(throw|try|catch)\b"):
                yield path, number, line


@rule
def fixed_sleeps(tree):
    pattern = r"\b(sleep_for|sleep_until|usleep|nanosleep|time\.sleep)\b|\bsleep\s*\("
    for path, text in tree.texts.items():
        if text is None or not path.startswith("tests/") or path.startswith("tests/tidy/"):
            continue
        if path.endswith(CODE + (".py",)):
            clean = blank_out(text) if path.endswith(CODE) else text
            for number, line in lines_matching(clean, pattern):
                yield path, number, f"wait for the event instead: {line}"


@rule
def machine_paths(tree):
    pattern = r"(?<![\w.}*])/(?:work|root|home)" + r"/"
    for path, text in tree.texts.items():
        if text is not None and not path.startswith("tests/golden/"):
            for number, line in lines_matching(text, pattern):
                yield path, number, f"a path of one machine: {line[:100]}"


@rule
def scripts(tree):
    for path, text in tree.texts.items():
        if text is None or not (path.endswith(".sh") or path.startswith(".ci/")):
            continue
        if not text.startswith("#!/usr/bin/env bash\n"):
            yield path, 1, "does not begin with #!/usr/bin/env bash"
        if not tree.modes.get(path, True):
            yield path, 0, "is not executable"
        syntax = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=False)
        if syntax.returncode != 0:
            yield path, 0, syntax.stderr.decode().strip()


@rule
def readme_map(tree):
    text = tree.texts.get("README.md") or ""
    for heading in ("## Map", "## Life of a token", "## What do I run?"):
        if heading + "\n" not in text:
            yield "README.md", 0, f'has no section "{heading}"'
    for heading in ("Map", "Life of a token"):
        section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
        for name in re.findall(r"`([\w./-]+)`", section.group(1) if section else ""):
            looks_like_path = "/" in name or name.endswith((".md", ".txt", ".json", ".sh"))
            if looks_like_path and not tree.exists(name):
                yield "README.md", 0, f"names {name}, which does not exist"
