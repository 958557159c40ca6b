#include "engine/text/stop_matcher.h"

#include <utility>

#include "kernels/check.h"

namespace augur::engine {
namespace {
constexpr size_t kMaxStopBytes = 256;
constexpr int kRoot = 0;
}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)), nodes_(1) {
  for (size_t i = 0; i < stops_.size(); ++i) {
    AUGUR_CHECK(!stops_[i].empty() && stops_[i].size() <= kMaxStopBytes);
    AddStop(static_cast<int>(i));
  }
  LinkFallbacks();
}

void StopMatcher::AddStop(int stop) {
  int state = kRoot;
  for (const char c : stops_[static_cast<size_t>(stop)]) {
    const uint8_t byte = static_cast<uint8_t>(c);
    int child = Child(state, byte);
    if (child < 0) {
      child = static_cast<int>(nodes_.size());
      Node node;
      node.byte = byte;
      node.depth = nodes_[static_cast<size_t>(state)].depth + 1;
      node.next_sibling = std::exchange(nodes_[static_cast<size_t>(state)].first_child, child);
      nodes_.push_back(node);
    }
    state = child;
  }
  int& match = nodes_[static_cast<size_t>(state)].match;
  if (match < 0) match = stop;  // of equal stops the first
}

// Breadth first: a state's fallback is shorter than the state.
void StopMatcher::LinkFallbacks() {
  std::vector<int> queue = {kRoot};
  for (size_t head = 0; head < queue.size(); ++head) {
    const int parent = queue[head];
    for (int child = nodes_[static_cast<size_t>(parent)].first_child; child >= 0;
         child = nodes_[static_cast<size_t>(child)].next_sibling) {
      Node& node = nodes_[static_cast<size_t>(child)];
      if (parent != kRoot) {
        node.fallback = Advance(nodes_[static_cast<size_t>(parent)].fallback, node.byte);
      }
      if (node.match < 0) node.match = nodes_[static_cast<size_t>(node.fallback)].match;
      queue.push_back(child);
    }
  }
}

int StopMatcher::Child(int state, uint8_t byte) const {
  int child = nodes_[static_cast<size_t>(state)].first_child;
  while (child >= 0 && nodes_[static_cast<size_t>(child)].byte != byte) {
    child = nodes_[static_cast<size_t>(child)].next_sibling;
  }
  return child;
}

int StopMatcher::Advance(int state, uint8_t byte) const {
  for (;;) {
    const int child = Child(state, byte);
    if (child >= 0) return child;
    if (state == kRoot) return kRoot;
    state = nodes_[static_cast<size_t>(state)].fallback;
  }
}

StopMatcher::Result StopMatcher::Push(std::string_view text, bool include_stop) {
  Result result;
  if (done_) return result;
  const size_t held_before = held_.size();
  held_.append(text);
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = Advance(state_, static_cast<uint8_t>(text[i]));
    const int match = nodes_[static_cast<size_t>(state_)].match;
    if (match < 0) continue;
    const size_t end = held_before + i + 1;
    const size_t stop_bytes = stops_[static_cast<size_t>(match)].size();
    result.text = held_.substr(0, include_stop ? end : end - stop_bytes);
    result.matched = static_cast<size_t>(match);
    held_.clear();
    done_ = true;
    return result;
  }
  const size_t safe = held_.size() - static_cast<size_t>(nodes_[static_cast<size_t>(state_)].depth);
  result.text = held_.substr(0, safe);
  held_.erase(0, safe);
  return result;
}

std::string StopMatcher::Flush() {
  state_ = kRoot;
  return std::exchange(held_, std::string());
}

}  // namespace augur::engine
