// augurd as a child process on free loopback ports, with what it printed and how it ended.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "eventually.h"

extern char** environ;

namespace augur::server {

class AugurdProcess {
 public:
  explicit AugurdProcess(const std::vector<std::string>& arguments) {
    static std::atomic<int> serial{0};
    folder_ =
        testing::TempDir() + "/augurd_" + std::to_string(getpid()) + "_" + std::to_string(serial++);
    std::filesystem::create_directories(folder_);
    std::vector<std::string> all = {AUGURD};
    for (const std::string& argument : arguments)
      all.push_back(argument == "PORT_FILE" ? port_file() : argument);
    std::vector<char*> argv;
    for (std::string& argument : all) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, (folder_ + "/out").c_str(), O_CREAT | O_WRONLY,
                                     0600);
    posix_spawn_file_actions_addopen(&actions, 2, (folder_ + "/err").c_str(), O_CREAT | O_WRONLY,
                                     0600);
    EXPECT_EQ(posix_spawn(&pid_, AUGURD, &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }

  ~AugurdProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  AugurdProcess(const AugurdProcess&) = delete;
  AugurdProcess& operator=(const AugurdProcess&) = delete;

  std::string port_file() const { return folder_ + "/port"; }
  std::string out() const { return Read(folder_ + "/out"); }
  std::string err() const { return Read(folder_ + "/err"); }

  bool WaitUntilReady() const {
    return Eventually([&] { return std::filesystem::exists(port_file()); },
                      std::chrono::seconds(60));
  }
  // The address behind "grpc" or "metrics" in the port file.
  std::string Address(const std::string& what) const {
    std::ifstream file(port_file());
    for (std::string name, address; file >> name >> address;) {
      if (name == what) return address;
    }
    return "";
  }

  void Signal(int signal) const { kill(pid_, signal); }

  // Exit status; -1 when it was killed by a signal, -2 when it does not end.
  int Wait() {
    int status = 0;
    const bool ended = Eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; },
                                  std::chrono::seconds(60));
    if (!ended) return -2;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  std::string folder_;
  pid_t pid_ = -1;
};

}  // namespace augur::server
