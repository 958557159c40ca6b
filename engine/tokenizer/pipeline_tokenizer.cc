#include "engine/tokenizer/pipeline_tokenizer.h"

#include <utility>

#include "engine/tokenizer/utf8.h"
#include "kernels/check.h"

namespace augur::engine {

PipelineTokenizer::PipelineTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  AUGUR_CHECK(parts_.special.size() == parts_.token_bytes.size());
}

std::vector<TokenId> PipelineTokenizer::Encode(std::string_view text,
                                               const EncodeOptions& options) const {
  // The caller promises UTF-8; the regular expression engine relies on it, so a broken promise is
  // repaired.
  std::string repaired;
  if (!IsValidUtf8(text)) {
    AppendRepairedUtf8(text, false, &repaired);
    text = repaired;
  }
  std::vector<TokenId> ids;
  BpeModel::Scratch scratch;
  for (const AddedTokenSplit& split :
       parts_.added_tokens.Split(text, AddedTokens::Pass::kRawText, options.parse_special)) {
    if (split.id >= 0) {
      ids.push_back(split.id);
    } else {
      EncodeRawText(text.substr(split.span.begin, split.span.end - split.span.begin), options,
                    &scratch, &ids);
    }
  }
  return options.add_special_tokens ? parts_.post_processor.Apply(std::move(ids)) : ids;
}

void PipelineTokenizer::EncodeRawText(std::string_view text, const EncodeOptions& options,
                                      BpeModel::Scratch* scratch, std::vector<TokenId>* ids) const {
  std::string normalized;
  if (!parts_.normalizer.empty()) {
    normalized = parts_.normalizer.Apply(text);
    text = normalized;
  }
  for (const AddedTokenSplit& split :
       parts_.added_tokens.Split(text, AddedTokens::Pass::kNormalizedText, options.parse_special)) {
    if (split.id >= 0) {
      ids->push_back(split.id);
    } else {
      EncodePlainText(text.substr(split.span.begin, split.span.end - split.span.begin), scratch,
                      ids);
    }
  }
}

void PipelineTokenizer::EncodePlainText(std::string_view text, BpeModel::Scratch* scratch,
                                        std::vector<TokenId>* ids) const {
  const PieceList pieces = parts_.pre_tokenizer.Split(text);
  for (size_t i = 0; i < pieces.spans.size(); ++i) parts_.model.Encode(pieces.at(i), scratch, ids);
}

bool PipelineTokenizer::Known(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < parts_.token_bytes.size();
}

std::string PipelineTokenizer::Decode(const std::vector<TokenId>& ids,
                                      bool skip_special_tokens) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!Known(id) || (skip_special_tokens && IsSpecial(id))) continue;
    bytes.append(parts_.token_bytes[static_cast<size_t>(id)]);
  }
  std::string text;
  text.reserve(bytes.size());
  AppendRepairedUtf8(bytes, false, &text);
  return text;
}

std::string PipelineTokenizer::TokenBytes(TokenId id) const {
  return Known(id) ? parts_.token_bytes[static_cast<size_t>(id)] : std::string();
}

bool PipelineTokenizer::IsSpecial(TokenId id) const {
  return Known(id) && parts_.special[static_cast<size_t>(id)];
}

int PipelineTokenizer::vocab_size() const { return static_cast<int>(parts_.token_bytes.size()); }

}  // namespace augur::engine
