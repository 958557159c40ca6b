// A token for every byte, and two special ones: enough text for the front's tests.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/utf8.h"

namespace augur::server {

class FakeTokenizer final : public engine::Tokenizer {
 public:
  static constexpr engine::TokenId kBegin = 256;
  static constexpr engine::TokenId kEnd = 257;
  static constexpr int kVocabSize = 258;

  mutable std::atomic<int> encodes{0};  // calls of Encode

  std::vector<engine::TokenId> Encode(std::string_view text,
                                      const engine::EncodeOptions& options) const override {
    ++encodes;
    std::vector<engine::TokenId> ids;
    if (options.add_special_tokens) ids.push_back(kBegin);
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }

  std::string Decode(const std::vector<engine::TokenId>& ids,
                     bool skip_special_tokens) const override {
    std::string bytes;
    for (const engine::TokenId id : ids) {
      if (!skip_special_tokens || !IsSpecial(id)) bytes += TokenBytes(id);
    }
    std::string text;
    engine::AppendRepairedUtf8(bytes, /*more_may_follow=*/false, &text);
    return text;
  }

  std::string TokenBytes(engine::TokenId id) const override {
    if (id == kBegin) return "<|begin|>";
    if (id == kEnd) return "<|end|>";
    if (id < 0 || id > 255) return "";
    return std::string(1, static_cast<char>(id));
  }

  bool IsSpecial(engine::TokenId id) const override { return id == kBegin || id == kEnd; }
  int vocab_size() const override { return kVocabSize; }
};

}  // namespace augur::server
