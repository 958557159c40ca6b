// Bytes of a peer become a message or a status that says which field is wrong.

#include "server/wire_message.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "augur/v1/completions.pb.h"

namespace augur::server {
namespace {

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string ErrorOf(const std::string& bytes) {
  v1::CompleteRequest message;
  const absl::Status status = ParseMessage(BufferOf(bytes), &message);
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

class WireMessageTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { SilenceProtobufLog(); }
};

TEST_F(WireMessageTest, NamesTheFieldThatIsNotUtf8) {
  const std::string not_utf8 = ": expected UTF-8 text, found bytes that are not";
  EXPECT_EQ(ErrorOf("\x0a\x01\xff"), "request_id" + not_utf8);
  EXPECT_EQ(ErrorOf("\x12\x02\xc3\x28"), "model" + not_utf8);
  EXPECT_EQ(ErrorOf("\x1a\x03\xed\xa0\x80"), "text" + not_utf8);  // a surrogate
  EXPECT_EQ(ErrorOf("\x1a\x01"
                    "a"
                    "\x32\x06\x1a\x01"
                    "b"
                    "\x1a\x01\x80"),
            "stopping.stop" + not_utf8);
  EXPECT_EQ(ErrorOf("\x52\x01\xfe"), "cache_salt" + not_utf8);
}

TEST_F(WireMessageTest, TellsMalformedBytes) {
  const std::string malformed =
      "CompleteRequest: expected a protobuf message of augur.v1.CompleteRequest, found bytes that "
      "do not parse";
  EXPECT_EQ(ErrorOf("\x1a\x05"
                    "ab"),
            malformed);  // shorter than it says
  EXPECT_EQ(ErrorOf("\xff\xff\xff"), malformed);
  EXPECT_EQ(ErrorOf(std::string("\x00\x01", 2)), malformed);  // field number 0
  EXPECT_EQ(ErrorOf("\x32\x7f\x1a\x01"
                    "b"),
            malformed);  // a message that ends too early
  EXPECT_EQ(ErrorOf("\x1a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), malformed);
}

TEST_F(WireMessageTest, TakesUnknownFieldsAndEmptyMessages) {
  v1::CompleteRequest message;
  EXPECT_TRUE(ParseMessage(BufferOf("\x1a\x02hi\xa2\x06\x01\xff"), &message).ok());
  EXPECT_EQ(message.text(), "hi");
  EXPECT_TRUE(ParseMessage(BufferOf(""), &message).ok());
  EXPECT_EQ(ParseMessage(grpc::ByteBuffer(), &message).code(), absl::StatusCode::kCancelled);
}

std::string Repeated(const std::string& part, int64_t times) {
  std::string all;
  all.reserve(part.size() * times);
  for (int64_t i = 0; i < times; ++i) all += part;
  return all;
}

// Length-delimited, of a length that takes four bytes.
std::string Field(char tag, const std::string& payload) {
  const size_t size = payload.size();
  std::string field(1, tag);
  for (const int shift : {0, 7, 14}) field += static_cast<char>((size >> shift & 127) | 128);
  return field + static_cast<char>(size >> 21) + payload;
}

TEST_F(WireMessageTest, CountsFieldsBeforeItParses) {
  const std::string fields = "CompleteRequest: expected at most 1048576 fields, found more";
  const std::string number("\x58\x01", 2);
  const std::string empty_stop("\x1a\x00", 2);
  const std::string group("\xa3\x06\xa4\x06");
  EXPECT_EQ(ErrorOf(Repeated(number, kMaxMessageFields)), "");
  EXPECT_EQ(ErrorOf(Repeated(number, kMaxMessageFields + 1)), fields);
  EXPECT_EQ(ErrorOf(Field('\x32', Repeated(empty_stop, kMaxMessageFields - 1))), "");
  EXPECT_EQ(ErrorOf(Field('\x32', Repeated(empty_stop, kMaxMessageFields))), fields);
  EXPECT_EQ(ErrorOf(Repeated(group, kMaxMessageFields / 2)), "");
  EXPECT_EQ(ErrorOf(Repeated(group, kMaxMessageFields / 2 + 1)), fields);
  EXPECT_EQ(ErrorOf(Field('\x22', Field('\x0a', std::string(kMaxPackedNumbers, '\x05')))), "");
  EXPECT_EQ(ErrorOf(Field('\x22', Field('\x0a', std::string(kMaxPackedNumbers + 1, '\x05')))),
            "CompleteRequest: expected at most 4194304 numbers in packed fields, found more");
}

TEST_F(WireMessageTest, RoundTripsLargeMessages) {
  v1::CompleteRequest message;
  message.set_text(std::string(3 << 20, 'x'));
  v1::CompleteRequest again;
  EXPECT_TRUE(ParseMessage(SerializeMessage(message), &again).ok());
  EXPECT_EQ(again.text(), message.text());
}

TEST_F(WireMessageTest, SurvivesRandomBytes) {
  v1::CompleteRequest seed;
  seed.set_text("some text \xc3\xa9");
  seed.mutable_stopping()->add_stop("stop");
  (*seed.mutable_sampling()->mutable_logit_bias())[3] = 1;
  std::string bytes;
  seed.SerializeToString(&bytes);
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string mutated = bytes;
    for (int k = 0; k < 3; ++k) mutated[random() % mutated.size()] = static_cast<char>(random());
    mutated.resize(random() % (mutated.size() + 1));
    ErrorOf(mutated);
  }
}

}  // namespace
}  // namespace augur::server
