#include "server/client/prompt_input.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "engine/tokenizer/utf8.h"
#include "server/client/connection.h"

namespace augur::client {
namespace {

// Room for the rest of a request beside its text.
constexpr size_t kMaxTextBytes = kMaxMessageBytes - (64 << 10);

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

absl::StatusOr<std::string> ReadAll(std::FILE* file, const std::string& name) {
  std::string text;
  char buffer[64 << 10];
  size_t got = 0;
  while ((got = std::fread(buffer, 1, sizeof buffer, file)) > 0) {
    text.append(buffer, got);
    if (text.size() > kMaxTextBytes) {
      return absl::InvalidArgumentError(name + ": more than " + std::to_string(kMaxTextBytes) +
                                        " bytes, which do not fit one message");
    }
  }
  if (std::ferror(file) != 0) return absl::InvalidArgumentError(name + ": " + std::strerror(errno));
  return text;
}

absl::Status CheckUtf8(const std::string& text, const std::string& name) {
  if (engine::IsValidUtf8(text)) return absl::OkStatus();
  size_t at = 0;
  while (true) {
    const engine::Utf8Step step = engine::StepUtf8(std::string_view(text).substr(at));
    if (step.kind != engine::Utf8Step::Kind::kCharacter) break;
    at += step.length;
  }
  return absl::InvalidArgumentError(name + ": not UTF-8 at byte " + std::to_string(at));
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  const bool is_stdin = path == "-";
  const std::string name = is_stdin ? "standard input" : path;
  const std::unique_ptr<std::FILE, CloseFile> file(is_stdin ? stdin
                                                            : std::fopen(path.c_str(), "rb"));
  if (file == nullptr) return absl::InvalidArgumentError(name + ": " + std::strerror(errno));
  absl::StatusOr<std::string> text = ReadAll(file.get(), name);
  if (!text.ok()) return text;
  const absl::Status valid = CheckUtf8(*text, name);
  if (!valid.ok()) return valid;
  return text;
}

std::string JoinPrompt(std::string document, const std::string& question) {
  if (question.empty()) return document;
  if (document.empty() || document.back() != '\n') document += '\n';
  return document + "Question: " + question;
}

}  // namespace augur::client
