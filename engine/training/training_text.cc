#include "engine/training/training_text.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/observed_prompt.h"
#include "engine/tokenizer/utf8.h"
#include "engine/training/training_draw.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

namespace fs = std::filesystem;

bool IsText(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".txt" || extension == ".md" || extension == ".jsonl";
}

absl::Status AddFolder(const std::string& folder, std::vector<std::string>* files) {
  std::error_code error;
  std::vector<std::string> found;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code of_entry;
    if (at->is_regular_file(of_entry) && IsText(at->path())) found.push_back(at->path().string());
  }
  if (error) return absl::NotFoundError(absl::StrCat(folder, ": ", error.message()));
  if (found.empty()) {
    return absl::NotFoundError(
        absl::StrCat(folder, ": expected *.txt, *.md or *.jsonl files, found none"));
  }
  std::sort(found.begin(), found.end());
  files->insert(files->end(), found.begin(), found.end());
  return absl::OkStatus();
}

struct DocumentText {
  std::string text;
  size_t asked_from = std::string::npos;  // byte; npos: nothing is asked
};

// A line's "asked_from", which may be left out.
bool ReadAskedFrom(const nlohmann::json& line, DocumentText* document) {
  const auto member = line.find("asked_from");
  if (member == line.end()) return true;
  if (!member->is_number_unsigned()) return false;
  document->asked_from = member->get<size_t>();
  return document->asked_from <= document->text.size() &&
         IsValidUtf8(std::string_view(document->text).substr(0, document->asked_from));
}

// The documents of a file of lines, each an object with the text under "text".
absl::StatusOr<std::vector<DocumentText>> ReadLines(const std::string& path,
                                                    const std::string& text) {
  std::vector<DocumentText> documents;
  int line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto member = json.is_object() ? json.find("text") : json.end();
    if (!json.is_object() || member == json.end() || !member->is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": line ", line_number, ": expected an object with a string under \"text\""));
    }
    documents.push_back({.text = member->get<std::string>()});
    if (!ReadAskedFrom(json, &documents.back())) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": line ", line_number,
                       ": expected \"asked_from\" to be where a character of \"text\" begins, in "
                       "bytes"));
    }
  }
  return documents;
}

// Where sequences begin. documents: where those begin, ascending, the first at 0.
std::vector<size_t> StartsOf(std::span<const size_t> documents, size_t num_tokens, size_t length,
                             DocumentCut cut) {
  std::vector<size_t> starts;
  for (size_t start = 0; start + length <= num_tokens;) {
    starts.push_back(start);
    const size_t end = start + length;
    // The document that goes on behind `end`, or begins there.
    const size_t last = *(std::upper_bound(documents.begin(), documents.end(), end) - 1);
    start = cut == DocumentCut::kWhole && last > start ? last : end;
  }
  return starts;
}

}  // namespace

absl::StatusOr<TrainingText> TrainingText::Read(const std::vector<std::string>& paths,
                                                const Tokenizer& tokenizer, TokenId separator,
                                                int length, DocumentCut cut) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      AUGUR_RETURN_IF_ERROR(AddFolder(path, &files));
    } else {
      files.push_back(path);
    }
  }
  TrainingText read;
  read.length_ = length;
  std::vector<TokenId>& tokens = read.tokens_;
  std::vector<size_t> begins;
  for (const std::string& file : files) {
    AUGUR_ASSIGN_OR_RETURN(std::string text, ReadUtf8File(file));
    std::vector<DocumentText> documents;
    if (fs::path(file).extension() == ".jsonl") {
      AUGUR_ASSIGN_OR_RETURN(documents, ReadLines(file, text));
    } else {
      documents.push_back({.text = std::move(text)});
    }
    for (const DocumentText& document : documents) {
      const std::vector<TokenId> ids = tokenizer.Encode(document.text, {});
      begins.push_back(tokens.size());
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      if (document.asked_from != std::string::npos) {
        // Of the text as a whole, which may be cut into other tokens there: a token more or less.
        const size_t before =
            tokenizer.Encode(document.text.substr(0, document.asked_from), {}).size();
        read.asked_.push_back({std::min(begins.back() + before, tokens.size()), tokens.size()});
      }
      if (separator >= 0) tokens.push_back(separator);
    }
  }
  if (static_cast<int64_t>(tokens.size()) < length) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text is too short: expected at least ", length,
                     " tokens (one sequence of --length), found ", tokens.size()));
  }
  read.starts_ = StartsOf(begins, tokens.size(), length, cut);
  return read;
}

std::vector<TokenRange> TrainingText::asked(int index) const {
  const size_t first = starts_[index], last = first + length_;
  std::vector<TokenRange> ranges;
  for (const Asked& asked : asked_) {
    const size_t begin = std::max(asked.begin, first), end = std::min(asked.end, last);
    if (begin >= end) continue;
    ranges.push_back({static_cast<int>(begin - first), static_cast<int>(end - first)});
  }
  return ranges;
}

uint64_t TrainingText::Fingerprint() const {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a: names a text, protects nothing
  for (const TokenId token : tokens_) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x100000001b3u;
  }
  for (const size_t start : starts_) hash = (hash ^ start) * 0x100000001b3u;
  for (const Asked& asked : asked_) hash = (hash ^ asked.begin) * 0x100000001b3u;
  return hash ^ static_cast<uint64_t>(length_);
}

int SequenceOrder::At(int64_t at) {
  const int64_t round = at / count_;
  if (round != round_) {
    round_ = round;
    order_.resize(count_);
    std::iota(order_.begin(), order_.end(), 0);
    for (int i = count_ - 1; i > 0; --i) {  // Fisher and Yates
      const uint32_t draw = TrainingDraw(TrainingPurpose::kSequenceOrder, seed_,
                                         static_cast<uint32_t>(round), static_cast<uint32_t>(i));
      std::swap(order_[i], order_[draw % static_cast<uint32_t>(i + 1)]);
    }
  }
  return order_[at % count_];
}

}  // namespace augur::engine
