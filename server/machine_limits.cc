#include "server/machine_limits.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>

namespace augur::server {
namespace {

std::optional<int64_t> ParseLeadingInteger(const std::string& text) {
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  // "max" and an empty or missing file mean that there is no limit.
  if (error != std::errc() || stop == text.data()) return std::nullopt;
  return value;
}

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Path of this process in the unified hierarchy, "/" when unknown.
std::string CgroupPath(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) == 0) return line.substr(3);
  }
  return "/";
}

int64_t CeilCpus(const std::string& cpu_max) {
  const std::optional<int64_t> quota = ParseLeadingInteger(cpu_max);
  const size_t space = cpu_max.find(' ');
  if (!quota || space == std::string::npos) return std::numeric_limits<int>::max();
  const std::optional<int64_t> period = ParseLeadingInteger(cpu_max.substr(space + 1));
  if (!period || *period <= 0) return std::numeric_limits<int>::max();
  return (*quota + *period - 1) / *period;
}

int AffinityCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace

MachineLimits ReadMachineLimits(const std::string& root) {
  int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  int64_t cpus = AffinityCpus();
  const std::string base = root + "/sys/fs/cgroup";
  // A limit holds for everything below it, so all levels up to the root count.
  std::string path = CgroupPath(root);
  while (true) {
    const std::string folder = base + (path == "/" ? "" : path);
    if (const auto limit = ParseLeadingInteger(FirstLine(folder + "/memory.max"))) {
      memory = std::min(memory, *limit);
    }
    cpus = std::min(cpus, CeilCpus(FirstLine(folder + "/cpu.max")));
    const size_t slash = path.rfind('/');
    if (path.size() <= 1 || slash == std::string::npos) break;
    path = slash == 0 ? "/" : path.substr(0, slash);
  }
  if (const auto v1 = ParseLeadingInteger(FirstLine(base + "/memory/memory.limit_in_bytes"))) {
    memory = std::min(memory, *v1);
  }
  return {.memory_bytes = memory, .cpus = static_cast<int>(std::max<int64_t>(1, cpus))};
}

}  // namespace augur::server
