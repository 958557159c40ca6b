// Files that a person names on the command line, whole and bounded: a pipe may be one, a device
// that never ends must not take the machine's memory.
//
// Thread: any. Ownership: values. Units: bytes. Failure: InvalidArgument naming flag and file.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace augur::loadtest {

inline constexpr size_t kMostFileBytes = size_t{256} << 20;

// The whole file; one that is larger is refused.
absl::StatusOr<std::string> ReadTextFile(std::string_view flag, const std::string& path,
                                         size_t most_bytes = kMostFileBytes);

// Well-formed and no overlong forms: the wire takes nothing else.
bool IsUtf8(std::string_view text);

}  // namespace augur::loadtest
