#include "engine/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/token_decoder.h"

namespace augur::engine {
namespace {

// Hugging Face's ByteLevel pattern, from GPT-2.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The whole piece as stretches that match and stretches between them.
struct Stretch {
  TextSpan span;
  bool match;
};

std::vector<Stretch> StretchesOf(std::string_view piece, const std::vector<TextSpan>& matches) {
  std::vector<Stretch> stretches;
  stretches.reserve(2 * matches.size() + 1);
  size_t done = 0;
  for (const TextSpan& match : matches) {
    if (match.begin > done) stretches.push_back({{done, match.begin}, false});
    stretches.push_back({match, true});
    done = match.end;
  }
  if (done < piece.size()) stretches.push_back({{done, piece.size()}, false});
  return stretches;
}

// Joins stretches into pieces. Called with the stretches in reverse for kMergedWithNext.
std::vector<TextSpan> JoinStretches(const std::vector<Stretch>& stretches, SplitBehavior behavior) {
  std::vector<TextSpan> spans;
  bool previous_match = false;
  for (const Stretch& stretch : stretches) {
    bool join = false;
    if (behavior == SplitBehavior::kContiguous) join = stretch.match == previous_match;
    if (behavior == SplitBehavior::kMergedWithPrevious ||
        behavior == SplitBehavior::kMergedWithNext) {
      join = stretch.match && !previous_match;
    }
    if (join && !spans.empty()) {
      spans.back().begin = std::min(spans.back().begin, stretch.span.begin);
      spans.back().end = std::max(spans.back().end, stretch.span.end);
    } else if (behavior != SplitBehavior::kRemoved || !stretch.match) {
      spans.push_back(stretch.span);
    }
    previous_match = stretch.match;
  }
  return spans;
}

std::vector<TextSpan> CutPiece(std::string_view piece, const Regex& regex, SplitBehavior behavior,
                               bool invert) {
  const Regex::Matches matches = regex.FindAll(piece);
  std::vector<Stretch> stretches = StretchesOf(piece.substr(0, matches.searched), matches.spans);
  if (invert) {
    for (Stretch& stretch : stretches) stretch.match = !stretch.match;
  }
  const bool reverse = behavior == SplitBehavior::kMergedWithNext;
  if (reverse) std::reverse(stretches.begin(), stretches.end());
  std::vector<TextSpan> spans = JoinStretches(stretches, behavior);
  if (reverse) std::reverse(spans.begin(), spans.end());
  if (matches.searched < piece.size()) spans.push_back({matches.searched, piece.size()});
  return spans;
}

class SplitStep : public PreTokenizerStep {
 public:
  SplitStep(Regex regex, SplitBehavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}

  void Apply(std::string_view piece, bool begins_text, PieceList* out) const override {
    for (const TextSpan& span : CutPiece(piece, regex_, behavior_, invert_)) {
      out->Append(piece.substr(span.begin, span.end - span.begin), begins_text && span.begin == 0);
    }
  }

 private:
  Regex regex_;
  SplitBehavior behavior_;
  bool invert_;
};

class ByteLevelStep : public PreTokenizerStep {
 public:
  ByteLevelStep(bool add_prefix_space, bool use_regex)
      : add_prefix_space_(add_prefix_space),
        use_regex_(use_regex),
        regex_(Regex::CompileOwn(kGpt2Pattern)) {}

  void Apply(std::string_view piece, bool begins_text, PieceList* out) const override {
    if (out->spans.empty()) out->begins_text = begins_text;
    std::string prefixed;
    if (add_prefix_space_ && !piece.starts_with(' ')) {
      prefixed = " ";
      prefixed.append(piece);
      piece = prefixed;
    }
    if (!use_regex_) return AppendSpelling(piece, out);
    for (const TextSpan& span : CutPiece(piece, regex_, SplitBehavior::kIsolated, false)) {
      AppendSpelling(piece.substr(span.begin, span.end - span.begin), out);
    }
  }

 private:
  static void AppendSpelling(std::string_view piece, PieceList* out) {
    const size_t begin = out->text.size();
    AppendByteLevel(piece, &out->text);
    if (out->text.size() > begin) out->spans.push_back({begin, out->text.size()});
  }

  bool add_prefix_space_;
  bool use_regex_;
  Regex regex_;
};

class MetaspaceStep : public PreTokenizerStep {
 public:
  MetaspaceStep(std::string replacement, PrependScheme prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(split) {}

  void Apply(std::string_view piece, bool begins_text, PieceList* out) const override {
    std::string spelled = ReplaceAll(piece, " ", replacement_);
    const bool prepends =
        prepend_ == PrependScheme::kAlways || (prepend_ == PrependScheme::kFirst && begins_text);
    if (prepends && !spelled.starts_with(replacement_)) spelled.insert(0, replacement_);
    std::string_view rest = spelled;
    bool begins = begins_text;
    while (split_ && !rest.empty()) {
      const size_t next = rest.find(replacement_, 1);
      if (next == std::string_view::npos) break;
      out->Append(rest.substr(0, next), begins);
      rest.remove_prefix(next);
      begins = false;
    }
    out->Append(rest, begins);
  }

 private:
  std::string replacement_;
  PrependScheme prepend_;
  bool split_;
};

}  // namespace

void PieceList::Append(std::string_view piece, bool begins) {
  if (piece.empty()) return;
  if (spans.empty()) begins_text = begins;
  const size_t begin = text.size();
  text.append(piece);
  spans.push_back({begin, text.size()});
}

std::unique_ptr<PreTokenizerStep> MakeDigitsStep(bool individual_digits) {
  return MakeSplitStep(Regex::CompileOwn("\\p{N}"),
                       individual_digits ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                       false);
}

std::unique_ptr<PreTokenizerStep> MakeSplitStep(Regex regex, SplitBehavior behavior, bool invert) {
  return std::make_unique<SplitStep>(std::move(regex), behavior, invert);
}

std::unique_ptr<PreTokenizerStep> MakeByteLevelStep(bool add_prefix_space, bool use_regex) {
  return std::make_unique<ByteLevelStep>(add_prefix_space, use_regex);
}

std::unique_ptr<PreTokenizerStep> MakeMetaspaceStep(std::string replacement, PrependScheme prepend,
                                                    bool split) {
  return std::make_unique<MetaspaceStep>(std::move(replacement), prepend, split);
}

PreTokenizer::PreTokenizer(std::vector<std::unique_ptr<PreTokenizerStep>> steps)
    : steps_(std::move(steps)) {}

PieceList PreTokenizer::Split(std::string_view text, bool begins_text) const {
  PieceList pieces;
  pieces.Append(text, begins_text);
  for (const auto& step : steps_) {
    PieceList next;
    next.text.reserve(pieces.text.size());
    next.spans.reserve(pieces.spans.size());
    for (size_t i = 0; i < pieces.spans.size(); ++i) {
      step->Apply(pieces.at(i), i == 0 && pieces.begins_text, &next);
    }
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace augur::engine
