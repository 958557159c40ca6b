#include "loadtest/filler_text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "loadtest/text_file.h"

namespace augur::loadtest {
namespace {

constexpr size_t kHeadingBytes = 200;
constexpr std::array<const char*, 3> kFactPhrases = {"special magic number", "The keeper of the ",
                                                     "The code of "};

bool LooksLikeFact(std::string_view line) {
  return std::any_of(kFactPhrases.begin(), kFactPhrases.end(),
                     [&](const char* phrase) { return line.find(phrase) != line.npos; });
}

bool IsHeading(const Paragraph& paragraph) {
  return paragraph.size() == 1 && paragraph[0].size() < kHeadingBytes;
}

}  // namespace

absl::StatusOr<FillerText> FillerText::Read(const std::vector<std::string>& files) {
  std::string all;
  for (const std::string& path : files) {
    const absl::StatusOr<std::string> text = ReadTextFile("--text", path);
    if (!text.ok()) return text.status();
    if (text->empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--text: ", path, " is empty"));
    }
    if (!IsUtf8(*text)) {
      return absl::InvalidArgumentError(absl::StrCat("--text: ", path, " is not UTF-8"));
    }
    absl::StrAppend(&all, *text, "\n\n");
  }
  return FromText(all);
}

absl::StatusOr<FillerText> FillerText::FromText(std::string_view text) {
  FillerText filler;
  Paragraph paragraph;
  const auto close = [&] {
    if (!paragraph.empty() && !IsHeading(paragraph)) {
      filler.paragraphs_.push_back(std::move(paragraph));
    }
    paragraph.clear();
  };
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.find_first_not_of(" \t\f") == absl::string_view::npos) {
      close();
    } else if (!LooksLikeFact(std::string_view(line.data(), line.size()))) {
      paragraph.emplace_back(line);
    }
  }
  close();
  if (filler.paragraphs_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--text: no paragraph to fill documents with: 0 paragraphs, at least 1 of two lines or of ",
        kHeadingBytes, " bytes is needed"));
  }
  return filler;
}

FillerStream::FillerStream(const FillerText& text, SeededDraw draw) : text_(&text), draw_(draw) {}

std::vector<std::string> FillerStream::First(size_t count) {
  while (lines_.size() < count) {
    std::vector<size_t> order(text_->paragraphs().size());
    std::iota(order.begin(), order.end(), size_t{0});
    draw_.Shuffle(&order);
    for (const size_t index : order) {
      const Paragraph& paragraph = text_->paragraphs()[index];
      lines_.insert(lines_.end(), paragraph.begin(), paragraph.end());
      lines_.emplace_back();
    }
  }
  return {lines_.begin(), lines_.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace augur::loadtest
