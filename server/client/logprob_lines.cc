#include "server/client/logprob_lines.h"

#include "absl/strings/str_format.h"
#include "server/client/printing.h"

namespace augur::client {
namespace {

std::string QuotedToken(const v1::TokenLogprob& token) {
  if (token.token().empty()) return absl::StrFormat("id %u", token.token_id());
  return "\"" + EscapeControls(token.token()) + "\"";
}

}  // namespace

std::string LogprobLine(const v1::TokenLogprobs& logprobs) {
  if (!logprobs.has_chosen()) return "        -  (the prompt's first token)\n";
  const v1::TokenLogprob& chosen = logprobs.chosen();
  std::string line =
      absl::StrFormat("%9.4f  rank %u  %s", chosen.logprob(), chosen.rank(), QuotedToken(chosen));
  const char* separator = "   ";
  for (const v1::TokenLogprob& other : logprobs.top()) {
    line += absl::StrFormat("%s%s %.4f", separator, QuotedToken(other), other.logprob());
    separator = ", ";
  }
  return line + "\n";
}

}  // namespace augur::client
