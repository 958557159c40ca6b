#include "tests/fuzz/memory_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "tests/fuzz/fuzz_target.h"

namespace augur::tests {

MemoryFile::MemoryFile(std::string_view bytes, size_t size) : fd_(memfd_create("fuzz", 0)) {
  FUZZ_REQUIRE(fd_ >= 0);
  FUZZ_REQUIRE(write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  FUZZ_REQUIRE(ftruncate(fd_, static_cast<off_t>(std::max(size, bytes.size()))) == 0);
}

MemoryFile::~MemoryFile() { close(fd_); }

std::string MemoryFile::path() const { return "/proc/self/fd/" + std::to_string(fd_); }

}  // namespace augur::tests
