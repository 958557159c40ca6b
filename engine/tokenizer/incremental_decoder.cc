#include "engine/tokenizer/incremental_decoder.h"

#include <utility>

#include "engine/tokenizer/utf8.h"
#include "kernels/check.h"

namespace augur::engine {

IncrementalDecoder::IncrementalDecoder(const Tokenizer* tokenizer, bool skip_special_tokens,
                                       Place place)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      first_(place == Place::kBeginsText) {
  AUGUR_CHECK(tokenizer != nullptr);
  if (first_) strip_ = tokenizer->leading_strip();
}

std::string IncrementalDecoder::Push(TokenId id) {
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return "";
  const std::string bytes = tokenizer_->TokenBytes(id);
  if (bytes.empty()) return "";  // no token
  held_.append(first_ ? tokenizer_->FirstTokenBytes(id) : bytes);
  first_ = false;
  std::string text;
  held_.erase(0, AppendRepairedUtf8(held_, true, &text));
  Strip(&text);
  return text;
}

std::string IncrementalDecoder::Flush() {
  std::string text;
  AppendRepairedUtf8(held_, false, &text);
  held_.clear();
  Strip(&text);
  return text;
}

void IncrementalDecoder::Strip(std::string* text) {
  while (strip_.most > 0 && !text->empty()) {
    if (!text->starts_with(strip_.character)) {
      strip_.most = 0;
      return;
    }
    text->erase(0, strip_.character.size());
    --strip_.most;
  }
}

}  // namespace augur::engine
