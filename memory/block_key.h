// The name of a full block's content in the prefix cache: a keyed 128-bit digest of everything that
// its KV depends on (all tokens up to its end, the tenant's salt, the model and the knobs that
// change KV bits).
//
// Thread: pure functions. Failure: none; a collision needs 2^64 blocks (SHA-256, truncated, under a
// secret that is drawn at start, so that nobody outside can aim for one).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace augur::memory {

struct BlockKey {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const BlockKey&) const = default;
};

struct BlockKeyHash {
  // The digest is uniform already.
  size_t operator()(const BlockKey& key) const { return key.low; }
};

using BlockKeySecret = std::array<uint8_t, 32>;
// From the operating system's generator.
BlockKeySecret DrawBlockKeySecret();

// Keys of all full 64-token blocks of `tokens`, in order: key[i] covers tokens [0, 64 * (i + 1)),
// `variant` (whatever else the KV bits depend on, e.g. the RoPE factor set) and `salt` (the
// tenant's).
std::vector<BlockKey> MakeBlockKeys(const BlockKeySecret& secret, const std::string& variant,
                                    const std::string& salt, std::span<const int32_t> tokens);

}  // namespace augur::memory
