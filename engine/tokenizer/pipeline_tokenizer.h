// The pipeline of a Hugging Face tokenizer: added tokens, normalizer, pre-tokenizer, model,
// post-processor, and the way back. Each stage is a part of its own; this class only runs them in
// order.
//
// Thread: immutable. Ownership: owns all parts. Failure: none once built.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe_model.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/post_processor.h"
#include "engine/tokenizer/pre_tokenizer.h"
#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {

struct TokenizerParts {
  Normalizer normalizer;
  AddedTokens added_tokens;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  PostProcessor post_processor;
  // What the decoder makes of each id before UTF-8 repair; empty where the vocabulary has a hole.
  std::vector<std::string> token_bytes;
  std::vector<bool> special;  // as long as token_bytes
};

class PipelineTokenizer : public Tokenizer {
 public:
  explicit PipelineTokenizer(TokenizerParts parts);

  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const override;
  std::string Decode(const std::vector<TokenId>& ids, bool skip_special_tokens) const override;
  std::string TokenBytes(TokenId id) const override;
  bool IsSpecial(TokenId id) const override;
  int vocab_size() const override;

 private:
  void EncodeRawText(std::string_view text, const EncodeOptions& options,
                     BpeModel::Scratch* scratch, std::vector<TokenId>* ids) const;
  void EncodePlainText(std::string_view text, BpeModel::Scratch* scratch,
                       std::vector<TokenId>* ids) const;
  bool Known(TokenId id) const;

  TokenizerParts parts_;
};

}  // namespace augur::engine
