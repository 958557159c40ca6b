#include "engine/tokenizer/pipeline_tokenizer.h"

#include <utility>

#include "engine/tokenizer/incremental_decoder.h"
#include "engine/tokenizer/utf8.h"
#include "kernels/check.h"

namespace augur::engine {

PipelineTokenizer::PipelineTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  AUGUR_CHECK(parts_.special.size() == parts_.tokens.size());
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
      EncodeRawText(text.substr(split.span.begin, split.span.end - split.span.begin),
                    split.span.begin == 0, options, &scratch, &ids);
    }
  }
  return options.add_special_tokens ? parts_.post_processor.Apply(std::move(ids)) : ids;
}

void PipelineTokenizer::EncodeRawText(std::string_view text, bool begins_text,
                                      const EncodeOptions& options, BpeModel::Scratch* scratch,
                                      std::vector<TokenId>* ids) const {
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
      EncodePlainText(text.substr(split.span.begin, split.span.end - split.span.begin),
                      begins_text && split.span.begin == 0, scratch, ids);
    }
  }
}

void PipelineTokenizer::EncodePlainText(std::string_view text, bool begins_text,
                                        BpeModel::Scratch* scratch,
                                        std::vector<TokenId>* ids) const {
  const PieceList pieces = parts_.pre_tokenizer.Split(text, begins_text);
  for (size_t i = 0; i < pieces.spans.size(); ++i) parts_.model.Encode(pieces.at(i), scratch, ids);
}

std::string PipelineTokenizer::Decode(const std::vector<TokenId>& ids,
                                      bool skip_special_tokens) const {
  IncrementalDecoder decoder(this, skip_special_tokens);
  std::string text;
  for (const TokenId id : ids) text.append(decoder.Push(id));
  text.append(decoder.Flush());
  return text;
}

std::string PipelineTokenizer::TokenBytes(TokenId id) const {
  const std::string_view spelling = parts_.tokens.Text(id);
  if (parts_.decoder.metaspace.empty()) return std::string(spelling);
  return parts_.decoder.BytesOf(spelling, /*first=*/false);
}

std::string PipelineTokenizer::FirstTokenBytes(TokenId id) const {
  if (parts_.decoder.metaspace.empty()) return TokenBytes(id);
  return parts_.decoder.BytesOf(parts_.tokens.Text(id), /*first=*/true);
}

bool PipelineTokenizer::IsSpecial(TokenId id) const {
  return parts_.tokens.Has(id) && parts_.special[static_cast<size_t>(id)];
}

int PipelineTokenizer::vocab_size() const { return static_cast<int>(parts_.tokens.size()); }

}  // namespace augur::engine
