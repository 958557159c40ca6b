#include "server/wire_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/tokenizer/utf8.h"
#include "kernels/check.h"

namespace augur::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Counts what parsing would make of the bytes: fields, also those of unknown groups, and numbers in
// packed fields. Stops where a limit is passed or the bytes are malformed.
class FieldCounter {
 public:
  // OK also for what is malformed: parsing tells that better.
  static absl::Status Check(const Descriptor& type, CodedInputStream* input) {
    FieldCounter counter;
    counter.Count(type, input);
    if (counter.fields_ > kMaxMessageFields) return TooMany(type, "fields", kMaxMessageFields);
    if (counter.numbers_ > kMaxPackedNumbers) {
      return TooMany(type, "numbers in packed fields", kMaxPackedNumbers);
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status TooMany(const Descriptor& type, const char* what, int64_t limit) {
    return absl::InvalidArgumentError(
        absl::StrCat(type.name(), ": expected at most ", limit, " ", what, ", found more"));
  }

  // False: stop. Our messages do not nest in themselves, so the recursion is as deep as the file.
  bool Count(const Descriptor& type, CodedInputStream* input) {
    int groups = 0;  // that are open: unknown ones, there are no others
    while (const uint32_t tag = input->ReadTag()) {
      if (++fields_ > kMaxMessageFields) return false;
      const FieldDescriptor* field =
          groups > 0 ? nullptr : type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      switch (WireFormatLite::GetTagWireType(tag)) {
        case WireFormatLite::WIRETYPE_START_GROUP:
          ++groups;
          break;
        case WireFormatLite::WIRETYPE_END_GROUP:
          if (--groups < 0) return false;
          break;
        case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
          if (!CountDelimited(field, input)) return false;
          break;
        default:
          if (!WireFormatLite::SkipField(input, tag)) return false;
      }
    }
    return true;
  }

  bool CountDelimited(const FieldDescriptor* field, CodedInputStream* input) {
    uint32_t length = 0;
    if (!input->ReadVarint32(&length) || length > kMaxLength) return false;
    const bool message = field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE;
    const bool packed = field != nullptr && field->is_packable();
    if (!message && !packed) return input->Skip(static_cast<int>(length));
    const auto limit = input->PushLimit(static_cast<int>(length));
    const bool go_on = message ? Count(*field->message_type(), input) : CountPacked(input);
    const bool whole = go_on && input->BytesUntilLimit() == 0;
    input->PopLimit(limit);
    return whole;
  }

  bool CountPacked(CodedInputStream* input) {
    uint64_t number = 0;
    while (input->BytesUntilLimit() > 0) {
      if (++numbers_ > kMaxPackedNumbers || !input->ReadVarint64(&number)) return false;
    }
    return true;
  }

  static constexpr uint32_t kMaxLength = std::numeric_limits<int>::max();

  int64_t fields_ = 0;
  int64_t numbers_ = 0;
};

// Walks `input` up to its limit by `type` and gives the path of the first string that is not UTF-8.
// Our messages do not nest in themselves, so the recursion is as deep as the proto file.
std::optional<std::string> FindBadText(const Descriptor& type, const std::string& prefix,
                                       CodedInputStream* input) {
  while (const uint32_t tag = input->ReadTag()) {
    const FieldDescriptor* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const bool delimited =
        WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if (field == nullptr || !delimited ||
        (field->type() != FieldDescriptor::TYPE_STRING &&
         field->type() != FieldDescriptor::TYPE_MESSAGE)) {
      if (!WireFormatLite::SkipField(input, tag)) return std::nullopt;
      continue;
    }
    uint32_t length = 0;
    if (!input->ReadVarint32(&length)) return std::nullopt;
    const std::string path = prefix + field->name();
    if (field->type() == FieldDescriptor::TYPE_STRING) {
      std::string text;
      if (!input->ReadString(&text, static_cast<int>(length))) return std::nullopt;
      if (!engine::IsValidUtf8(text)) return path;
      continue;
    }
    const auto limit = input->PushLimit(static_cast<int>(length));
    std::optional<std::string> found = FindBadText(*field->message_type(), path + ".", input);
    if (found) return found;
    // Where the walk stopped early the message is malformed, not its text.
    if (input->BytesUntilLimit() != 0) return std::nullopt;
    input->PopLimit(limit);
  }
  return std::nullopt;
}

// What is wrong with bytes that did not parse. The error path may copy.
absl::Status ExplainFailure(const grpc::ByteBuffer& bytes, const Descriptor& type) {
  grpc::Slice slice;
  if (bytes.DumpToSingleSlice(&slice).ok()) {
    CodedInputStream input(slice.begin(), static_cast<int>(slice.size()));
    if (const std::optional<std::string> field = FindBadText(type, "", &input)) {
      return absl::InvalidArgumentError(
          absl::StrCat(*field, ": expected UTF-8 text, found bytes that are not"));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(type.name(), ": expected a protobuf message of ",
                                                 type.full_name(),
                                                 ", found bytes that do not parse"));
}

}  // namespace

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  grpc::ByteBuffer shared(bytes);  // counts references, copies nothing
  if (!shared.Valid()) return absl::CancelledError("the call ended before its request had arrived");
  {
    grpc::ProtoBufferReader reader(&shared);
    CodedInputStream input(&reader);
    absl::Status counted = FieldCounter::Check(*message->GetDescriptor(), &input);
    if (!counted.ok()) return counted;
  }
  grpc::ProtoBufferReader reader(&shared);
  if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return ExplainFailure(bytes, *message->GetDescriptor());
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  grpc::ByteBuffer bytes;
  bool owned = false;
  const grpc::Status status =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::MessageLite>(
          message, &bytes, &owned);
  AUGUR_CHECK(status.ok());
  return bytes;
}

void SilenceProtobufLog() { google::protobuf::SetLogHandler(nullptr); }

}  // namespace augur::server
