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
#include "engine/tokenizer/token_decoder.h"
#include "engine/tokenizer/token_table.h"
#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {

struct TokenizerParts {
  Normalizer normalizer;
  AddedTokens added_tokens;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  PostProcessor post_processor;
  TokenDecoder decoder;
  // Spellings of all ids, added tokens included; for a decoder without Metaspace, which looks at a
  // token's place, what it makes of them already.
  TokenTable tokens;
  std::vector<bool> special;  // as long as tokens
};

class PipelineTokenizer : public Tokenizer {
 public:
  explicit PipelineTokenizer(TokenizerParts parts);

  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const override;
  std::string Decode(const std::vector<TokenId>& ids, bool skip_special_tokens) const override;
  std::string TokenBytes(TokenId id) const override;
  std::string FirstTokenBytes(TokenId id) const override;
  LeadingStrip leading_strip() const override { return parts_.decoder.strip; }
  bool IsSpecial(TokenId id) const override;
  int vocab_size() const override;

 private:
  // begins_text: nothing of the text stands before.
  void EncodeRawText(std::string_view text, bool begins_text, const EncodeOptions& options,
                     BpeModel::Scratch* scratch, std::vector<TokenId>* ids) const;
  void EncodePlainText(std::string_view text, bool begins_text, BpeModel::Scratch* scratch,
                       std::vector<TokenId>* ids) const;

  TokenizerParts parts_;
};

}  // namespace augur::engine
