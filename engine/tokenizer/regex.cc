#include "engine/tokenizer/regex.h"

#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/tokenizer/utf8.h"
#include "kernels/check.h"

namespace augur::engine {
namespace {

// Backtracking of one match: linear in the text for the patterns of known tokenizers.
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr uint32_t kHeapLimitKib = 256 * 1024;

struct CompileContextDeleter {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};
struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// What one thread needs to match; a text is cut into pieces of a few bytes, each with its own
// FindAll.
struct Workspace {
  std::unique_ptr<pcre2_match_data, MatchDataDeleter> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, MatchContextDeleter> limits{
      pcre2_match_context_create(nullptr)};
  Workspace() {
    if (limits == nullptr) return;
    pcre2_set_match_limit(limits.get(), kMatchLimit);
    pcre2_set_heap_limit(limits.get(), kHeapLimitKib);
  }
};

std::string ErrorText(int code) {
  unsigned char buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Regex::Program {
  pcre2_code* code = nullptr;
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Program> program) : program_(std::move(program)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  absl::StatusOr<std::string> translated = TranslateToPcre2(pattern);
  if (!translated.ok()) return translated.status();
  const std::unique_ptr<pcre2_compile_context, CompileContextDeleter> context(
      pcre2_compile_context_create(nullptr));
  if (context == nullptr) return absl::ResourceExhaustedError("no memory for a regular expression");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto program = std::make_unique<Program>();
  program->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, context.get());
  if (program->code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a regular expression, found \"", std::string(pattern), "\" (",
                     ErrorText(error), " at byte ", offset, " of \"", *translated, "\")"));
  }
  // Without a JIT the interpreter runs, slower and the same.
  pcre2_jit_compile(program->code, PCRE2_JIT_COMPLETE);
  return Regex(std::move(program));
}

Regex Regex::CompileOwn(std::string_view pattern) {
  absl::StatusOr<Regex> regex = Compile(pattern);
  AUGUR_CHECK(regex.ok());
  return *std::move(regex);
}

Regex::Matches Regex::FindAll(std::string_view text) const {
  Matches matches;
  static thread_local const Workspace workspace;
  if (workspace.data == nullptr || workspace.limits == nullptr) return matches;
  const PCRE2_SPTR subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto match_from = [&](size_t at, uint32_t options) {
    return pcre2_match(program_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | options,
                       workspace.data.get(), workspace.limits.get());
  };
  size_t last_end = std::string_view::npos;
  for (size_t at = 0; at <= text.size();) {
    int found = match_from(at, 0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match_from(at, PCRE2_NO_JIT);
    matches.searched = found < 0 && found != PCRE2_ERROR_NOMATCH ? at : text.size();
    if (found < 0) break;
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(workspace.data.get());
    const TextSpan match = {ends[0], std::max(ends[0], ends[1])};
    // An empty match right behind the match before it does not count.
    if (match.end > match.begin || match.begin != last_end) matches.spans.push_back(match);
    at = last_end = match.end;
    if (match.end > match.begin) continue;
    at += at < text.size() ? StepUtf8(text.substr(at)).length : 1;
  }
  return matches;
}

}  // namespace augur::engine
