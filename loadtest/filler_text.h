// The prose that facts are hidden in: paragraphs of the user's files, in random order, as often as
// needed.
//
// Thread: FillerText is read-only after it is made, any thread; a FillerStream has one owner.
// Ownership: a stream points at its text, which outlives it. Units: lines, as they stand in the
// files. Failure: InvalidArgument naming the file that cannot be read or is not UTF-8, or saying
// that all files together hold no paragraph.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/seeded_draw.h"

namespace augur::loadtest {

using Paragraph = std::vector<std::string>;  // lines without line ends, at least one

class FillerText {
 public:
  static absl::StatusOr<FillerText> Read(const std::vector<std::string>& files);
  // Paragraphs are parted by blank lines. Headings (one line of less than 200 bytes) are left out,
  // and so are lines that look like a fact of ours, which would make questions ambiguous.
  static absl::StatusOr<FillerText> FromText(std::string_view text);

  const std::vector<Paragraph>& paragraphs() const { return paragraphs_; }

 private:
  std::vector<Paragraph> paragraphs_;
};

// All paragraphs shuffled, then all of them shuffled again, and so on; a blank line after each.
class FillerStream {
 public:
  FillerStream(const FillerText& text, SeededDraw draw);
  // The stream's first `count` lines; the same ones in every call.
  std::vector<std::string> First(size_t count);

 private:
  const FillerText* text_;
  SeededDraw draw_;
  std::vector<std::string> lines_;
};

}  // namespace augur::loadtest
