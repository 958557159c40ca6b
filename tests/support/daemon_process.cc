#include "tests/support/daemon_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/server/eventually.h"
#include "tests/support/metrics_page.h"

namespace augur::tests {
namespace {

constexpr std::chrono::seconds kReadyLimit{60};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string MakeScratchFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "augur-test-XXXXXX").string();
  return mkdtemp(pattern.data()) == nullptr ? "" : pattern;
}

}  // namespace

std::string DemoModelFolder() { return AUGUR_SOURCE_DIR "/deploy/models/demo-9m"; }

DaemonProcess::DaemonProcess(std::string folder) : folder_(std::move(folder)) {}

std::unique_ptr<DaemonProcess> DaemonProcess::Start(const std::vector<std::string>& flags) {
  const std::string folder = MakeScratchFolder();
  if (folder.empty()) return nullptr;
  std::unique_ptr<DaemonProcess> daemon(new DaemonProcess(folder));
  if (daemon->Launch(flags) && daemon->WaitReady()) return daemon;
  std::fprintf(stderr, "augurd did not become ready; it says:\n%s\n", daemon->Log().c_str());
  return nullptr;
}

DaemonProcess::~DaemonProcess() {
  if (pid_ > 0 && !WaitExit(std::chrono::milliseconds(0))) {
    Signal(SIGKILL);
    WaitExit();
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

bool DaemonProcess::Launch(const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {AUGUR_AUGURD,      "--listen",    "127.0.0.1:0",
                                        "--metrics",       "127.0.0.1:0", "--port-file",
                                        folder_ + "/ports"};
  if (std::find(flags.begin(), flags.end(), "--model") == flags.end()) {
    arguments.insert(arguments.end(), {"--model", DemoModelFolder()});
  }
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const int log = open((folder_ + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return false;
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    // Only calls that are safe between fork and exec of a process with threads.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    if (getppid() == parent) execv(argv[0], argv.data());
    _exit(127);
  }
  close(log);
  return pid_ > 0;
}

bool DaemonProcess::WaitReady() {
  const std::string ports = folder_ + "/ports";
  const bool over = server::Eventually(
      [&] { return std::filesystem::exists(ports) || WaitExit(std::chrono::milliseconds(0)); },
      kReadyLimit);
  if (!over || exit_status_) return false;
  std::istringstream lines(ReadFile(ports));
  for (std::string name, address; lines >> name >> address;) {
    if (name == "grpc") grpc_address_ = address;
    if (name == "metrics") metrics_address_ = address;
  }
  return !grpc_address_.empty() && !metrics_address_.empty();
}

void DaemonProcess::Signal(int signal) const { kill(pid_, signal); }

std::optional<int> DaemonProcess::WaitExit(std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  const auto reap = [&] {
    int status = 0;
    if (exit_status_ || waitpid(pid_, &status, WNOHANG) != pid_) return exit_status_.has_value();
    exit_status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
  };
  if (reap() || limit.count() == 0) return exit_status_;
  server::Eventually([&] { return reap() || std::chrono::steady_clock::now() > end; },
                     std::chrono::ceil<std::chrono::seconds>(limit));
  return exit_status_;
}

std::string DaemonProcess::Log() const { return ReadFile(folder_ + "/log"); }

double DaemonProcess::Metric(const std::string& sample) const {
  return SumSamples(FetchMetrics(metrics_address_), sample);
}

}  // namespace augur::tests
