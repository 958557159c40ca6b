// What the commands of this folder say and write alike: one line on standard error under the
// command's name, files whole, options parsed to an exit status.
//
// Thread: one. Ownership: `name` outlives the object. Failure: each function says.
#pragma once

#include <CLI/CLI.hpp>
#include <ios>
#include <string>

#include "absl/status/status.h"

namespace augur::loadtest {

class CommandLine {
 public:
  explicit CommandLine(const char* name) : name_(name) {}

  // Says why; gives `status`.
  int Fail(int status, const absl::Status& why) const;
  // A failed call, told with its status: its message may be terse.
  int FailCall(const absl::Status& why) const;
  // Whether all of `text` is in the file; if not, says so with the flag that names the file. With
  // std::ios::app and no text: whether it can be written, before hours of work.
  bool WriteFile(const char* flag, const std::string& path, const std::string& text,
                 std::ios::openmode mode) const;

 private:
  const char* const name_;
};

// For an option's check: a number from low to high. CLI::Range lets NaN, which compares with
// nothing, pass.
CLI::Validator Between(double low, double high);

// Whether there is something to do; otherwise `status` is what to exit with. Mistakes are told by
// the app's failure_message.
bool ParseFlags(CLI::App* app, int argc, const char* const* argv, int* status);

}  // namespace augur::loadtest
