#include "server/wire_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>

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
