#include "engine/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/tokenizer/token_decoder.h"
#include "engine/tokenizer/utf8.h"
#include "kernels/check.h"

namespace augur::engine {
namespace {

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

int CombiningClass(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

class UnicodeStep : public NormalizerStep {
 public:
  explicit UnicodeStep(UnicodeForm form) : form_(form) {}

  std::string Apply(std::string_view text) const override {
    if (IsAscii(text)) return std::string(text);
    std::vector<utf8proc_int32_t> points = Decompose(text);
    OrderMarks(&points);
    if (form_ == UnicodeForm::kNfc || form_ == UnicodeForm::kNfkc) {
      const utf8proc_ssize_t kept = utf8proc_normalize_utf32(
          points.data(), static_cast<utf8proc_ssize_t>(points.size()),
          static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
      AUGUR_CHECK(kept >= 0);
      points.resize(static_cast<size_t>(kept));
    }
    std::string out;
    out.reserve(text.size());
    for (const utf8proc_int32_t c : points) AppendUtf8(static_cast<char32_t>(c), &out);
    return out;
  }

 private:
  std::vector<utf8proc_int32_t> Decompose(std::string_view text) const {
    constexpr utf8proc_ssize_t kLongest = 32;  // U+FDFA decomposes to 18
    const bool compatibility = form_ == UnicodeForm::kNfkc || form_ == UnicodeForm::kNfkd;
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
                                                        (compatibility ? UTF8PROC_COMPAT : 0));
    std::vector<utf8proc_int32_t> points;
    points.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const Utf8Step step = StepUtf8(text.substr(at));
      at += step.length;
      utf8proc_int32_t parts[kLongest];
      int last_boundclass = 0;
      const utf8proc_ssize_t count =
          utf8proc_decompose_char(static_cast<utf8proc_int32_t>(step.code_point), parts, kLongest,
                                  options, &last_boundclass);
      AUGUR_CHECK(count >= 0 && count <= kLongest);
      points.insert(points.end(), parts, parts + count);
    }
    return points;
  }

  // Canonical ordering. utf8proc's own is quadratic in the length of a run of marks.
  static void OrderMarks(std::vector<utf8proc_int32_t>* points) {
    for (auto begin = points->begin(); begin != points->end();) {
      if (CombiningClass(*begin) == 0) {
        ++begin;
        continue;
      }
      const auto end = std::find_if(begin, points->end(),
                                    [](utf8proc_int32_t c) { return CombiningClass(c) == 0; });
      std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
        return CombiningClass(a) < CombiningClass(b);
      });
      begin = end;
    }
  }

  UnicodeForm form_;
};

class PrependStep : public NormalizerStep {
 public:
  explicit PrependStep(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string Apply(std::string_view text) const override {
    return text.empty() ? std::string() : prefix_ + std::string(text);
  }

 private:
  std::string prefix_;
};

class ReplaceStep : public NormalizerStep {
 public:
  ReplaceStep(std::string pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {
    AUGUR_CHECK(!pattern_.empty());
  }
  std::string Apply(std::string_view text) const override {
    return ReplaceAll(text, pattern_, content_);
  }

 private:
  std::string pattern_;
  std::string content_;
};

}  // namespace

std::unique_ptr<NormalizerStep> MakeUnicodeStep(UnicodeForm form) {
  return std::make_unique<UnicodeStep>(form);
}

std::unique_ptr<NormalizerStep> MakePrependStep(std::string prefix) {
  return std::make_unique<PrependStep>(std::move(prefix));
}

std::unique_ptr<NormalizerStep> MakeReplaceStep(std::string pattern, std::string content) {
  return std::make_unique<ReplaceStep>(std::move(pattern), std::move(content));
}

Normalizer::Normalizer(std::vector<std::unique_ptr<NormalizerStep>> steps)
    : steps_(std::move(steps)) {}

std::string Normalizer::Apply(std::string_view text) const {
  std::string out(text);
  for (const auto& step : steps_) out = step->Apply(out);
  return out;
}

}  // namespace augur::engine
