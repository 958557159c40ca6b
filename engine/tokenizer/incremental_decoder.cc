#include "engine/tokenizer/incremental_decoder.h"

#include <utility>

#include "engine/tokenizer/utf8.h"
#include "kernels/check.h"

namespace augur::engine {

IncrementalDecoder::IncrementalDecoder(const Tokenizer* tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {
  AUGUR_CHECK(tokenizer != nullptr);
}

std::string IncrementalDecoder::Push(TokenId id) {
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return "";
  held_.append(tokenizer_->TokenBytes(id));
  std::string text;
  held_.erase(0, AppendRepairedUtf8(held_, true, &text));
  return text;
}

std::string IncrementalDecoder::Flush() {
  std::string text;
  AppendRepairedUtf8(held_, false, &text);
  held_.clear();
  return text;
}

}  // namespace augur::engine
