// The log line of a request stays one line, whatever the client put in its label.

#include "server/request_log.h"

#include <gtest/gtest.h>

namespace augur::server {
namespace {

TEST(RequestLogTest, EscapesAndLeavesOutWhatIsUnknown) {
  RequestRecord record;
  record.id = "a\nrequest id=\"b\" code=OK";
  record.peer = "ipv4:127.0.0.1:1";
  record.code = 3;
  record.message = "text: bad";
  record.total_ms = 1.25;
  EXPECT_EQ(FormatRequestRecord(record),
            "request id=\"a\\nrequest id=\\\"b\\\" code=OK\" peer=\"ipv4:127.0.0.1:1\" "
            "code=INVALID_ARGUMENT "
            "reason=none prompt_tokens=0 cached_tokens=0 completion_tokens=0 total_ms=1.250 "
            "preemptions=0 "
            "message=\"text: bad\"");
  record.code = 0;
  record.reason = EndReason::kEos;
  record.message.clear();
  record.queue_ms = 0;
  EXPECT_NE(FormatRequestRecord(record).find(" code=OK reason=eos "), std::string::npos);
  EXPECT_NE(FormatRequestRecord(record).find(" queue_ms=0.000 "), std::string::npos);
}

TEST(RequestLogTest, NamesEveryCode) {
  EXPECT_STREQ(StatusCodeName(16), "UNAUTHENTICATED");
  EXPECT_STREQ(StatusCodeName(17), "UNKNOWN");
  EXPECT_STREQ(StatusCodeName(-1), "UNKNOWN");
}

}  // namespace
}  // namespace augur::server
