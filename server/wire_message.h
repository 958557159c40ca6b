// Protobuf messages to and from gRPC's byte buffers, with the errors that the API promises.
//
// gRPC's typed handlers answer UNIMPLEMENTED to text that is not UTF-8 and to bytes that do not
// parse; calls that carry text are therefore taken raw and parsed here.
// Thread: plain functions.
// Failure: INVALID_ARGUMENT naming the field (not UTF-8) or the message (malformed, beyond the
// limits below); CANCELLED
// where no message came at all: gRPC starts the handler of a call that was cancelled that early,
// too.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

namespace augur::server {

// Limits of what a message may unpack to: fields, also unknown ones, and numbers in packed fields.
// 64 MiB of empty strings would be 2 GiB.
inline constexpr int64_t kMaxMessageFields = 1 << 20;
inline constexpr int64_t kMaxPackedNumbers = 1 << 22;

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

// Strings in `message` are valid UTF-8.
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

// Protobuf prints a line of its own for every message that does not parse, at the mercy of any
// client; from now on it is silent. Call once at start.
void SilenceProtobufLog();

}  // namespace augur::server
