#include "engine/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "engine/tokenizer/byte_level.h"

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

  void Apply(std::string_view piece, PieceList* out) const override {
    for (const TextSpan& span : CutPiece(piece, regex_, behavior_, invert_)) {
      out->Append(piece.substr(span.begin, span.end - span.begin));
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

  void Apply(std::string_view piece, PieceList* out) const override {
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

}  // namespace

void PieceList::Append(std::string_view piece) {
  if (piece.empty()) return;
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

PreTokenizer::PreTokenizer(std::vector<std::unique_ptr<PreTokenizerStep>> steps)
    : steps_(std::move(steps)) {}

PieceList PreTokenizer::Split(std::string_view text) const {
  PieceList pieces;
  pieces.Append(text);
  for (const auto& step : steps_) {
    PieceList next;
    next.text.reserve(pieces.text.size());
    next.spans.reserve(pieces.spans.size());
    for (size_t i = 0; i < pieces.spans.size(); ++i) step->Apply(pieces.at(i), &next);
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace augur::engine
