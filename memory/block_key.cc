#include "memory/block_key.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <cstring>
#include <memory>

#include "kernels/check.h"
#include "kernels/kv_page.h"

namespace augur::memory {
namespace {

using Digest = std::array<uint8_t, 32>;

struct ContextDeleter {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

// SHA-256 over length-prefixed parts, so that no two lists of parts meet in one input.
class Hasher {
 public:
  Hasher() : context_(EVP_MD_CTX_new()) { AUGUR_CHECK(context_ != nullptr); }

  void Begin() { AUGUR_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1); }
  void Add(const void* data, size_t bytes) {
    const uint64_t length = bytes;
    AUGUR_CHECK(EVP_DigestUpdate(context_.get(), &length, sizeof length) == 1);
    AUGUR_CHECK(EVP_DigestUpdate(context_.get(), data, bytes) == 1);
  }
  Digest End() {
    Digest digest;
    AUGUR_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
    return digest;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, ContextDeleter> context_;
};

}  // namespace

BlockKeySecret DrawBlockKeySecret() {
  BlockKeySecret secret;
  AUGUR_CHECK(RAND_bytes(secret.data(), static_cast<int>(secret.size())) == 1);
  return secret;
}

std::vector<BlockKey> MakeBlockKeys(const BlockKeySecret& secret, const std::string& variant,
                                    const std::string& salt, std::span<const int32_t> tokens) {
  const size_t full_blocks = tokens.size() / kernels::kBlockTokens;
  std::vector<BlockKey> keys;
  if (full_blocks == 0) return keys;
  keys.reserve(full_blocks);

  Hasher hasher;
  hasher.Begin();
  hasher.Add(secret.data(), secret.size());
  hasher.Add(variant.data(), variant.size());
  hasher.Add(salt.data(), salt.size());
  Digest parent = hasher.End();
  for (size_t block = 0; block < full_blocks; ++block) {
    hasher.Begin();
    hasher.Add(secret.data(), secret.size());
    hasher.Add(parent.data(), parent.size());
    hasher.Add(&tokens[block * kernels::kBlockTokens], kernels::kBlockTokens * sizeof(int32_t));
    parent = hasher.End();
    BlockKey key;
    std::memcpy(&key.high, parent.data(), 8);
    std::memcpy(&key.low, parent.data() + 8, 8);
    keys.push_back(key);
  }
  return keys;
}

}  // namespace augur::memory
