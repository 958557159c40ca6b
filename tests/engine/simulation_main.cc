// engine_simulation [--seed N] [--operations N] [--operations-per-seed N] [--processes N]
//
// Runs worlds of consecutive seeds until the operations are spent; exits 1 and prints the seed of
// the first that breaks. `--seed N --operations 1` runs that world again. With several processes,
// process i takes every processes-th seed from seed + i on, and its share of the operations.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <csignal>
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

// For the moment when a CHECK in the code under test, or a wild pointer, ends the process.
std::atomic<int64_t> running_seed{0};
std::atomic<int64_t> operations_before{0};

void OnCrash(int signal) {
  char text[120];
  const int length = std::snprintf(text, sizeof(text),
                                   "\nseed %" PRId64 ": signal %d, after %" PRId64
                                   " operations and those of its world\n",
                                   running_seed.load(), signal, operations_before.load());
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, text, length);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void Print(const char* what, const SimulationResult& total, double seconds) {
  std::printf("%s%" PRId64 " operations in %.1f s (%.0f a second): %" PRId64 " steps, %" PRId64
              " requests, %" PRId64 " prefix-hit blocks, %" PRId64
              " saved\n"
              "  segments %" PRId64 ", admissions %" PRId64 ", preemptions %" PRId64
              ", cancels %" PRId64 ", copies %" PRId64 ", group plans %" PRId64 "\n",
              what, total.operations(), seconds, static_cast<double>(total.operations()) / seconds,
              total.steps, total.requests, total.prefix_hits, total.saved, total.segments,
              total.admissions, total.preemptions, total.cancels, total.copies, total.group_plans);
  std::fflush(stdout);
}

int RunWorlds(const Arguments& arguments, int64_t process) {
  const auto begin = std::chrono::steady_clock::now();
  const int64_t share = arguments.operations / arguments.processes;
  SimulationResult total;
  int64_t seed = arguments.seed + process;
  for (; total.operations() < share || seed == arguments.seed + process;
       seed += arguments.processes) {
    running_seed = seed;
    operations_before = total.operations();
    const SimulationResult one =
        augur::tests::RunSimulation(static_cast<uint64_t>(seed), arguments.per_seed);
    total.Add(one);
    if (!one.fault.empty()) {
      std::printf("seed %" PRId64 ": %s, %" PRId64 " operations in all; again: --seed %" PRId64
                  " --operations 1\n",
                  seed, one.fault.c_str(), total.operations(), seed);
      std::fflush(stdout);
      return 1;
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  Print("clean: ", total, seconds.count());
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
  std::signal(SIGABRT, OnCrash);
  std::signal(SIGSEGV, OnCrash);
  if (arguments.processes == 1) return RunWorlds(arguments, 0);
  std::vector<pid_t> children;
  for (int64_t process = 0; process < arguments.processes; ++process) {
    const pid_t child = fork();
    if (child == 0) _exit(RunWorlds(arguments, process));
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) failed = 1;
  }
  return failed;
}
