// A file that exists in memory alone, under a path that anything can open.
#pragma once

#include <string>
#include <string_view>

namespace augur::tests {

class MemoryFile {
 public:
  // Holds `bytes`, and zeros behind them up to `size` where that is more.
  explicit MemoryFile(std::string_view bytes, size_t size = 0);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const;

 private:
  int fd_;
};

}  // namespace augur::tests
