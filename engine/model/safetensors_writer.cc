#include "engine/model/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace augur::engine {
namespace {

const char* HeaderNameOf(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kBF16:
      return "BF16";
    case kernels::DType::kF16:
      return "F16";
    case kernels::DType::kF32:
      break;
  }
  return "F32";
}

void Append(const TensorToWrite& tensor, std::string* data) {
  if (tensor.dtype == kernels::DType::kF32) {
    data->append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size_bytes());
    return;
  }
  for (const float value : tensor.values) {
    const uint16_t bits = tensor.dtype == kernels::DType::kBF16 ? kernels::BF16FromFloat(value)
                                                                : kernels::F16FromFloat(value);
    data->append(reinterpret_cast<const char*>(&bits), sizeof bits);
  }
}

absl::Status NotWritten(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": cannot be written: ", std::strerror(errno)));
}

// All bytes are on disk when this returns true, else there is no file.
bool WriteAll(const std::string& path, const std::string& bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  bool written = true;
  for (size_t at = 0; at < bytes.size() && written;) {
    const ssize_t wrote = write(fd, bytes.data() + at, bytes.size() - at);
    if (wrote >= 0) at += wrote;
    written = wrote >= 0 || errno == EINTR;
  }
  written = written && fsync(fd) == 0;
  const int reason = errno;
  if (close(fd) == 0 && written) return true;
  unlink(path.c_str());
  if (!written) errno = reason;
  return false;
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                              const std::map<std::string, std::string>& metadata) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::string data;
  for (const TensorToWrite& tensor : tensors) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    AUGUR_CHECK(elements == static_cast<int64_t>(tensor.values.size()));
    const size_t begin = data.size();
    Append(tensor, &data);
    header[tensor.name] = {{"dtype", HeaderNameOf(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // numbers are aligned in a mapped file
  const uint64_t length = text.size();
  const std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  if (!WriteAll(temporary, bytes + text + data)) return NotWritten(path);
  if (rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  absl::Status status = NotWritten(path);
  unlink(temporary.c_str());
  return status;
}

}  // namespace augur::engine
