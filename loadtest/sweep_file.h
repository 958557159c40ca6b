// A sweep as a YAML file: the options of a command line, each key an option's name without dashes,
// its value a scalar or a list.
//
//   tasks: [needle, many-keys]
//   length: [2000, 4000, 8000]
//   policies: [dense, sparse, dense/forecast, forecast]
//   top-k-blocks: [4, 8, 16, 32]
//
// Thread: plain functions. Failure: InvalidArgument with file, line and what was expected.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace augur::loadtest {

// The arguments behind argv[0] with those of the file that --sweep FILE or --sweep=FILE names put
// before them, but for options that the command line gives itself. Without --sweep: as they are.
absl::StatusOr<std::vector<std::string>> WithSweepFile(int argc, const char* const* argv);

// The arguments of a file's text: {"--length", "2000,4000"} for each key.
absl::StatusOr<std::vector<std::vector<std::string>>> SweepArguments(const std::string& path,
                                                                     const std::string& text);

}  // namespace augur::loadtest
