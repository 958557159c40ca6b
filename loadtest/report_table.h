// Rows of text with columns that line up.
//
// Thread: one owner. Ownership: a value. Units: columns of a terminal, one a byte (ASCII only).
// Failure: none.
#pragma once

#include <string>
#include <vector>

namespace augur::loadtest {

class ReportTable {
 public:
  // The first `left` columns are flush left, the others flush right.
  ReportTable(std::vector<std::string> heads, size_t left);
  // As many cells as heads.
  void AddRow(std::vector<std::string> cells);
  // Two blanks between columns, a line end after every row, no blanks at line ends.
  std::string Text() const;
  // The heads first.
  const std::vector<std::vector<std::string>>& rows() const { return rows_; }

 private:
  size_t left_;
  std::vector<std::vector<std::string>> rows_;  // the heads first
};

// "-" stands for what is not known.
inline constexpr char kUnknown[] = "-";

std::string FormatShare(double share);            // 0.958
std::string FormatDifference(double difference);  // +0.017
std::string FormatMilliseconds(double ms);        // 0.8 ms, 42 ms, 3.1 s
std::string FormatBytes(double bytes);            // 512 B, 1.5 KiB, 2.0 GiB

}  // namespace augur::loadtest
