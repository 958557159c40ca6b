// A real augurd as a child process, on free loopback ports, in a scratch folder of its own.
//
// Thread: one owner at a time. Ownership: the destructor kills what still runs, reaps it and
// removes the folder; should the test die first, the kernel kills the child. Failure: Start gives
// null when the daemon could not be started or was not ready in time, with its log on standard
// error.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace augur::tests {

// The model that comes with the sources.
std::string DemoModelFolder();

class DaemonProcess {
 public:
  // augurd on the bundled model (unless the flags name another) with port 0 twice, a port file and
  // `flags` after these. Waits until ready.
  static std::unique_ptr<DaemonProcess> Start(const std::vector<std::string>& flags = {});
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  const std::string& grpc_address() const { return grpc_address_; }
  const std::string& metrics_address() const { return metrics_address_; }
  pid_t pid() const { return pid_; }

  void Signal(int signal) const;
  // Exit status, or 128 + signal; nullopt while it runs on.
  std::optional<int> WaitExit(std::chrono::milliseconds limit = std::chrono::seconds(60));
  // What it has written to standard output and standard error so far.
  std::string Log() const;

  // The one value of a sample, e.g. Metric("augur_kv_blocks{state=\"free\"}"): labels are those
  // given, in any order and beside others; several matching samples are added up. -1 where there is
  // none.
  double Metric(const std::string& sample) const;

 private:
  explicit DaemonProcess(std::string folder);
  bool Launch(const std::vector<std::string>& flags);
  bool WaitReady();

  const std::string folder_;
  std::string grpc_address_;
  std::string metrics_address_;
  pid_t pid_ = -1;
  std::optional<int> exit_status_;
};

}  // namespace augur::tests
