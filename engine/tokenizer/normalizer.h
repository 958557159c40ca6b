// Rewrites text before it is cut: the "normalizer" of tokenizer.json, a list of steps.
//
// Thread: immutable once built. Failure: none; text in is valid UTF-8, and so is text out.
// Cost: O(n log n) at most, whatever the text (also for long runs of combining marks).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace augur::engine {

class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  virtual std::string Apply(std::string_view text) const = 0;
};

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

std::unique_ptr<NormalizerStep> MakeUnicodeStep(UnicodeForm form);
// Puts `prefix` in front of text that is not empty.
std::unique_ptr<NormalizerStep> MakePrependStep(std::string prefix);
// Replaces every occurrence of `pattern` (not empty) as it stands.
std::unique_ptr<NormalizerStep> MakeReplaceStep(std::string pattern, std::string content);

class Normalizer {
 public:
  explicit Normalizer(std::vector<std::unique_ptr<NormalizerStep>> steps);
  bool empty() const { return steps_.empty(); }
  std::string Apply(std::string_view text) const;

 private:
  std::vector<std::unique_ptr<NormalizerStep>> steps_;
};

}  // namespace augur::engine
