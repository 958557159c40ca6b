// The regular expressions of tokenizer.json. Hugging Face runs them on Oniguruma (Ruby syntax,
// Unicode); here they run on PCRE2, so a pattern is first translated: what both engines read the
// same passes, what differs is rewritten (\s and \w become Unicode properties, scripts are matched
// by Script), the rest is refused by name.
//
// Thread: immutable once compiled. Ownership: owns the compiled pattern.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace augur::engine {

// A stretch of text, in bytes.
struct TextSpan {
  size_t begin;
  size_t end;
};

// The pattern in PCRE2's dialect; an error names the construct that has no translation.
absl::StatusOr<std::string> TranslateToPcre2(std::string_view pattern);

// A pattern that matches `text` as it stands.
std::string EscapeForRegex(std::string_view text);

class Regex {
 public:
  static absl::StatusOr<Regex> Compile(std::string_view pattern);
  // A pattern of this program's own: a fault in it is a CHECK.
  static Regex CompileOwn(std::string_view pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  struct Matches {
    std::vector<TextSpan> spans;
    // Bytes that were searched: all, unless the engine gave up (its limits are far above what a
    // tokenizer needs); what the text holds behind them is then neither a match nor none.
    size_t searched = 0;
  };
  // All matches from left to right without overlap, empty ones included. `text` is valid UTF-8.
  Matches FindAll(std::string_view text) const;

 private:
  struct Program;
  explicit Regex(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

}  // namespace augur::engine
