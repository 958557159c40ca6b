#include "loadtest/command_line.h"

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "loadtest/exit_status.h"

namespace augur::loadtest {

int CommandLine::Fail(int status, const absl::Status& why) const {
  std::fprintf(stderr, "%s: %s\n", name_, std::string(why.message()).c_str());
  return status;
}

int CommandLine::FailCall(const absl::Status& why) const {
  return Fail(kExitFailed, absl::UnknownError(absl::StrCat(absl::StatusCodeToString(why.code()),
                                                           ": ", std::string(why.message()))));
}

bool CommandLine::WriteFile(const char* flag, const std::string& path, const std::string& text,
                            std::ios::openmode mode) const {
  std::ofstream file(path, std::ios::binary | mode);
  file << text;
  file.close();
  if (!file) std::fprintf(stderr, "%s: %s: cannot write %s\n", name_, flag, path.c_str());
  return static_cast<bool>(file);
}

CLI::Validator Between(double low, double high) {
  return CLI::Validator(
      [low, high](const std::string& text) {
        double number = 0;
        const bool parsed = CLI::detail::lexical_cast(text, number);
        if (parsed && number >= low && number <= high) return std::string();
        return absl::StrCat("Value ", text, " not in range ", low, " to ", high);
      },
      /*validator_desc=*/"");
}

bool ParseFlags(CLI::App* app, int argc, const char* const* argv, int* status) {
  const auto parse = [&] {
    CLI11_PARSE(*app, argc, argv);
    return -1;
  };
  const int result = parse();
  *status = result == 0 ? kExitOk : kExitUsage;
  return result < 0;
}

}  // namespace augur::loadtest
