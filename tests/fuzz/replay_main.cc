// Runs every file of a folder through a fuzz target: ok-* must be accepted, bad-* refused, and what
// the fuzzer found may be either.
// usage: NAME_replay CORPUS_FOLDER
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  int accepted = 0;
  int wrong = 0;
  for (const std::filesystem::path& path : paths) {
    // Before it runs, so that the last line of a process that ends names its input.
    std::fprintf(stderr, "%s\n", path.filename().c_str());
    std::ifstream file(path, std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(file), {}};
    const bool taken = augur::tests::RunTarget(input);
    accepted += taken ? 1 : 0;
    const std::string name = path.filename();
    if ((taken && name.starts_with("bad-")) || (!taken && name.starts_with("ok-"))) {
      std::fprintf(stderr, "%s: %s\n", name.c_str(), taken ? "was accepted" : "was refused");
      ++wrong;
    }
  }
  std::printf("%zu files, %d accepted, %d wrong\n", paths.size(), accepted, wrong);
  return wrong == 0 && !paths.empty() ? 0 : 1;
}
