#include "server/port_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace augur::server {

void RemovePortFile(const std::string& path) { std::remove(path.c_str()); }

absl::Status WritePortFile(const std::string& path, const std::string& grpc_address,
                           const std::string& metrics_address) {
  const std::string aside = path + ".new";
  bool written = false;
  {
    std::ofstream file(aside, std::ios::trunc);
    file << "grpc " << grpc_address << "\nmetrics " << metrics_address << "\n";
    file.close();
    written = !file.fail();
  }
  if (written && std::rename(aside.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  std::remove(aside.c_str());
  return absl::InvalidArgumentError(
      absl::StrCat("--port-file ", path, ": cannot write: ", std::strerror(error)));
}

}  // namespace augur::server
