// engine_simulation [--seed N] [--operations N] [--operations-per-seed N] [--processes N]
//
// Runs worlds of consecutive seeds until the operations are spent; exits 1 and prints the seed of
// the first that breaks. `--seed N --operations 1` runs that world again. With several processes,
// process i takes every processes-th seed from seed + i on, and its share of the operations.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/engine/simulation.h"

namespace {

using augur::tests::SimulationResult;

struct Arguments {
  int64_t seed = 1;
  int64_t operations = 20'000'000;
  int64_t per_seed = 20'000;
  int64_t processes = 1;
};

void Print(const char* what, const SimulationResult& total, double seconds) {
  std::printf("%s%" PRId64 " operations in %.1f s (%.0f a second): %" PRId64 " steps, %" PRId64
              " requests, %" PRId64 " prefix-hit blocks, %" PRId64 " saved\n"
              "  segments %" PRId64 ", admissions %" PRId64 ", preemptions %" PRId64
              ", cancels %" PRId64 ", copies %" PRId64 ", group plans %" PRId64 "\n",
              what, total.operations(), seconds, static_cast<double>(total.operations()) / seconds,
              total.steps, total.requests, total.prefix_hits, total.saved, total.segments,
              total.admissions, total.preemptions, total.cancels, total.copies,
              total.group_plans);
  std::fflush(stdout);
}

// `current`: where others read which seed runs.
int RunWorlds(const Arguments& arguments, int64_t process, volatile int64_t* current) {
  const auto begin = std::chrono::steady_clock::now();
  const int64_t share = arguments.operations / arguments.processes;
  SimulationResult total;
  int64_t seed = arguments.seed + process;
  for (; total.operations() < share || seed == arguments.seed + process;
       seed += arguments.processes) {
    // Written before it runs: a CHECK in the code under test ends the process.
    *current = seed;
    if (arguments.processes == 1) std::printf("\rseed %" PRId64 " ", seed);
    std::fflush(stdout);
    const SimulationResult one =
        augur::tests::RunSimulation(static_cast<uint64_t>(seed), arguments.per_seed);
    total.Add(one);
    if (!one.fault.empty()) {
      std::printf("\nseed %" PRId64 ": %s, %" PRId64 " operations in all\n", seed,
                  one.fault.c_str(), total.operations());
      std::fflush(stdout);
      return 1;
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  Print("\nclean: ", total, seconds.count());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const int64_t value = std::atoll(argv[i + 1]);
    if (flag == "--seed") arguments.seed = value;
    if (flag == "--operations") arguments.operations = value;
    if (flag == "--operations-per-seed") arguments.per_seed = value;
    if (flag == "--processes") arguments.processes = value;
  }
  if (arguments.processes == 1) {
    int64_t current = 0;
    return RunWorlds(arguments, 0, &current);
  }
  auto* current = static_cast<volatile int64_t*>(
      mmap(nullptr, sizeof(int64_t) * arguments.processes, PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (current == MAP_FAILED) return 1;
  std::vector<pid_t> children;
  for (int64_t process = 0; process < arguments.processes; ++process) {
    const pid_t child = fork();
    if (child == 0) _exit(RunWorlds(arguments, process, current + process));
    children.push_back(child);
  }
  int failed = 0;
  for (size_t process = 0; process < children.size(); ++process) {
    int status = 0;
    waitpid(children[process], &status, 0);
    if (status == 0) continue;
    failed = 1;
    if (WIFSIGNALED(status)) std::printf("seed %" PRId64 ": ended by signal %d\n",
                                         int64_t{current[process]}, WTERMSIG(status));
  }
  return failed;
}
