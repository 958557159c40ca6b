#include "engine/model/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/json/json_fields.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

// Names some 100,000 tensors, is checked in a third of a second, and no file of a served family has
// a hundredth of it (safetensors' own reader stops at 100 MB).
constexpr int64_t kMaxHeaderBytes = 16 << 20;
constexpr int64_t kMaxIndexBytes = 16 << 20;
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxShards = 1000;  // each is an open file

std::string ShapeName(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<kernels::DType> ParseDType(const std::string& name) {
  if (name == "F32") return kernels::DType::kF32;
  if (name == "BF16") return kernels::DType::kBF16;
  if (name == "F16") return kernels::DType::kF16;
  return absl::InvalidArgumentError(
      absl::StrCat("expected dtype F32, BF16 or F16, found ", ShownText(name)));
}

// Reads exactly `bytes` or says why not.
absl::Status ReadAt(int fd, const std::string& path, int64_t offset, int64_t bytes, void* out) {
  char* target = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = pread(fd, target, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::InvalidArgumentError(absl::StrCat(path, ": ", strerror(errno)));
    if (got == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": expected ", bytes, " more bytes at offset ", offset, ", found the end"));
    }
    target += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

// The bytes that shape and dtype ask for; an overflow is an error.
absl::StatusOr<int64_t> BytesOfShape(const std::vector<int64_t>& shape, kernels::DType dtype) {
  int64_t bytes = static_cast<int64_t>(kernels::BytesOf(dtype));
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("shape ", ShapeName(shape), " is too large"));
    }
  }
  return bytes;
}

struct Entry {
  kernels::DType dtype;
  std::vector<int64_t> shape;
  int64_t begin;
  int64_t end;
};

absl::StatusOr<Entry> ParseEntry(JsonNode value, const std::string& file, std::string_view name,
                                 int64_t data_bytes) {
  const std::string where = absl::StrCat(file, ": tensor ", ShownText(name));
  if (!value.is_object()) return absl::InvalidArgumentError(where + ": expected an object");
  const JsonFields fields(value, where);
  AUGUR_ASSIGN_OR_RETURN(const std::string dtype_name, fields.String("dtype", std::nullopt));
  const absl::StatusOr<kernels::DType> dtype = ParseDType(dtype_name);
  if (!dtype.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", std::string(dtype.status().message())));
  }
  const std::optional<JsonNode> extents = fields.Find("shape");
  if (!extents || !extents->is_array()) return fields.Error("shape", "a list");
  if (extents->size() > kMaxRank)
    return fields.Error("shape", absl::StrCat("at most ", kMaxRank, " extents"));
  AUGUR_ASSIGN_OR_RETURN(std::vector<int64_t> shape, fields.IntOrList("shape", 0, INT64_MAX));
  AUGUR_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets,
                         fields.IntOrList("data_offsets", 0, data_bytes));
  if (offsets.size() != 2) return fields.Error("data_offsets", "two integers");
  const absl::StatusOr<int64_t> bytes = BytesOfShape(shape, *dtype);
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", std::string(bytes.status().message())));
  }
  if (offsets[1] - offsets[0] != *bytes) {
    return fields.Error("data_offsets", absl::StrCat(*bytes, " bytes for shape ", ShapeName(shape),
                                                     " of ", kernels::NameOf(*dtype)));
  }
  return Entry{*dtype, std::move(shape), offsets[0], offsets[1]};
}

}  // namespace

struct Checkpoint::File {
  std::string path;
  int fd = -1;
  int64_t bytes = 0;
  ~File() {
    if (fd >= 0) close(fd);
  }
};

Checkpoint::Checkpoint() = default;
Checkpoint::~Checkpoint() = default;

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& folder) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  const std::string single = folder + "/model.safetensors";
  const std::string index = single + ".index.json";
  if (!HasEntry(index)) {
    AUGUR_RETURN_IF_ERROR(checkpoint->AddFile(single));
    return checkpoint;
  }
  AUGUR_ASSIGN_OR_RETURN(const JsonDocument document, ReadJsonObject(index, kMaxIndexBytes));
  const JsonFields fields(document, index);
  const std::optional<JsonNode> map = fields.Find("weight_map");
  if (!map || !map->is_object()) return fields.Error("weight_map", "an object");
  std::set<std::string_view> shards;
  for (const auto& [name, shard] : *map) {
    // Shards lie beside their index: a name with a path in it is not one.
    if (!shard.is_string() ||
        shard.string().find_first_of(std::string_view("/\0", 2)) != std::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(index, ": tensor ", ShownText(name),
                       ": expected a file name in the same folder, found ", shard.Shown()));
    }
    shards.insert(shard.string());
    if (shards.size() > kMaxShards) {
      return fields.Error("weight_map", absl::StrCat("at most ", kMaxShards, " files"));
    }
  }
  for (const std::string_view shard : shards) {
    AUGUR_RETURN_IF_ERROR(checkpoint->AddFile(absl::StrCat(folder, "/", std::string(shard))));
  }
  for (const auto& [name, shard] : *map) {
    const auto found = checkpoint->tensors_.find(std::string(name));
    const std::string path = absl::StrCat(folder, "/", std::string(shard.string()));
    if (found != checkpoint->tensors_.end() && found->second.file->path == path) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        index, ": tensor ", ShownText(name), ": expected in ", shard.Shown(), ", found ",
        found == checkpoint->tensors_.end() ? "nowhere" : "in " + found->second.file->path));
  }
  return checkpoint;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::OpenFile(const std::string& path) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint);
  AUGUR_RETURN_IF_ERROR(checkpoint->AddFile(path));
  return checkpoint;
}

absl::Status Checkpoint::AddFile(const std::string& path) {
  auto file = std::make_unique<File>();
  file->path = path;
  file->fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->fd < 0) return absl::NotFoundError(absl::StrCat(path, ": ", strerror(errno)));
  struct stat info;
  if (fstat(file->fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a regular file"));
  }
  file->bytes = info.st_size;
  uint64_t header_bytes = 0;  // little-endian, as this machine is
  AUGUR_RETURN_IF_ERROR(ReadAt(file->fd, path, 0, sizeof header_bytes, &header_bytes));
  // A file may say 0 bytes and hold some: it grows, or is one of /proc.
  const int64_t most =
      std::clamp<int64_t>(file->bytes - int64_t{sizeof header_bytes}, 0, kMaxHeaderBytes);
  if (header_bytes > static_cast<uint64_t>(most)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": header length: expected at most ", most, ", found ", header_bytes));
  }
  std::string header(header_bytes, '\0');
  AUGUR_RETURN_IF_ERROR(
      ReadAt(file->fd, path, 8, static_cast<int64_t>(header_bytes), header.data()));
  num_bytes_ += file->bytes;
  files_.push_back(std::move(file));
  return AddHeader(files_.back().get(), header, 8 + static_cast<int64_t>(header_bytes));
}

absl::Status Checkpoint::AddHeader(const File* file, const std::string& header,
                                   int64_t data_start) {
  AUGUR_ASSIGN_OR_RETURN(const JsonDocument document,
                         JsonDocument::Parse(file->path + ": header", header));
  if (!document.root().is_object()) {
    return absl::InvalidArgumentError(file->path + ": header: expected a JSON object");
  }
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, value] : document.root()) {
    if (name == "__metadata__") continue;
    AUGUR_ASSIGN_OR_RETURN(Entry entry,
                           ParseEntry(value, file->path, name, file->bytes - data_start));
    ranges.emplace_back(entry.begin, entry.end);
    const int64_t elements =
        (entry.end - entry.begin) / static_cast<int64_t>(kernels::BytesOf(entry.dtype));
    // Ranges that overlap are found below; until then their sum has no bound.
    if (__builtin_add_overflow(num_elements_, elements, &num_elements_)) {
      return absl::InvalidArgumentError(file->path + ": header: too many elements");
    }
    const bool added = tensors_
                           .emplace(std::string(name), Place{.file = file,
                                                             .dtype = entry.dtype,
                                                             .shape = std::move(entry.shape),
                                                             .offset = data_start + entry.begin,
                                                             .bytes = entry.end - entry.begin})
                           .second;
    if (!added) {
      return absl::InvalidArgumentError(
          absl::StrCat(file->path, ": tensor ", ShownText(name), ": found twice"));
    }
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t expected = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat(file->path, ": data_offsets: expected a tensor to begin at ", expected,
                       ", found ", begin));
    }
    expected = end;
  }
  if (data_start + expected != file->bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file->path, ": size: expected ", data_start + expected, " bytes, found ", file->bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorData> Checkpoint::Read(const std::string& name,
                                            const std::vector<int64_t>& shape) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    const std::string file = files_.size() == 1 ? files_[0]->path : "the checkpoint";
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": tensor ", name, ": expected ", ShapeName(shape), ", found none"));
  }
  const Place& place = found->second;
  if (place.shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(place.file->path, ": tensor ", name,
                                                   ": expected ", ShapeName(shape), ", found ",
                                                   ShapeName(place.shape)));
  }
  TensorData tensor{.dtype = place.dtype, .shape = place.shape, .bytes = {}};
  tensor.bytes.resize(static_cast<size_t>(place.bytes));
  AUGUR_RETURN_IF_ERROR(
      ReadAt(place.file->fd, place.file->path, place.offset, place.bytes, tensor.bytes.data()));
  return tensor;
}

}  // namespace augur::engine
