#include "loadtest/filler_text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <numeric>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

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

// Well-formed and no overlong forms: the wire takes nothing else.
bool IsUtf8(std::string_view text) {
  size_t at = 0;
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0};
  };
  while (at < text.size()) {
    const uint8_t lead = byte(at);
    const size_t size = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (size == 0 || lead > 0xf4) return false;
    for (size_t i = 1; i < size; ++i) {
      if ((byte(at + i) & 0xc0) != 0x80) return false;
    }
    const uint8_t second = byte(at + 1);
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
        (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f)) {
      return false;
    }
    at += size;
  }
  return true;
}

}  // namespace

absl::StatusOr<FillerText> FillerText::Read(const std::vector<std::string>& files) {
  std::string all;
  for (const std::string& path : files) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream bytes;
    if (!file || !(bytes << file.rdbuf())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--text: cannot read ", path, ", or it is empty"));
    }
    if (!IsUtf8(bytes.str())) {
      return absl::InvalidArgumentError(absl::StrCat("--text: ", path, " is not UTF-8"));
    }
    absl::StrAppend(&all, bytes.str(), "\n\n");
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
