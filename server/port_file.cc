#include "server/port_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace augur::server {

namespace {

std::string Aside(const std::string& path) { return path + ".new"; }

absl::Status CannotWrite(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("--port-file ", path, ": cannot write: ", why));
}

}  // namespace

absl::Status PreparePortFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status found = std::filesystem::status(path, error);
  if (std::filesystem::exists(found) && !std::filesystem::is_regular_file(found)) {
    return CannotWrite(path, "there is something else than a file");
  }
  if (!std::ofstream(Aside(path), std::ios::trunc)) return CannotWrite(path, std::strerror(errno));
  std::remove(Aside(path).c_str());
  std::remove(path.c_str());
  return absl::OkStatus();
}

absl::Status WritePortFile(const std::string& path, const std::string& grpc_address,
                           const std::string& metrics_address) {
  const std::string aside = Aside(path);
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
  return CannotWrite(path, std::strerror(error));
}

}  // namespace augur::server
