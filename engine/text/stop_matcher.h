// Finds stop strings in a text that arrives in pieces. Text that may still turn out to be the
// beginning of a stop string is held back; everything else is released at once.
//
// The match is the one that ends first in the whole text; of several that end at the same byte, the
// longest (the one that begins first). After a match nothing more is released.
//
// Thread: one owner. Cost: amortised O(bytes) with a bounded factor (at most 16 stops of 256
// bytes): an Aho-Corasick automaton over the stop strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace augur::engine {

class StopMatcher {
 public:
  // Each stop is 1 to 256 bytes of UTF-8; none: everything passes straight through.
  explicit StopMatcher(std::vector<std::string> stops);

  struct Result {
    std::string text;               // safe to show now
    std::optional<size_t> matched;  // index of the stop string that matched, in constructor order
  };

  // Feeds text. With include_stop the matched string itself is released too, else it is cut. A
  // released text is cut only at UTF-8 boundaries if the input pieces were.
  Result Push(std::string_view text, bool include_stop);
  // End of text without a match: releases what was held back.
  std::string Flush();

 private:
  // A state: the stop prefix that the text ends with, the longest there is. Children are a linked
  // list (at most one a stop), so that building costs no more than the bytes of the stops.
  struct Node {
    uint8_t byte = 0;  // the last byte of the prefix
    int first_child = -1;
    int next_sibling = -1;
    int fallback = 0;  // the longest proper suffix that is a state
    int depth = 0;     // bytes of the prefix
    int match = -1;    // the longest stop that ends here, -1: none
  };
  int Child(int state, uint8_t byte) const;
  int Advance(int state, uint8_t byte) const;
  void AddStop(int stop);
  void LinkFallbacks();

  std::vector<std::string> stops_;
  std::vector<Node> nodes_;
  int state_ = 0;
  std::string held_;
  bool done_ = false;
};

}  // namespace augur::engine
