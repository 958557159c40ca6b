#include "engine/model/device_limits.h"

#include <gtest/gtest.h>

#include <string>

namespace augur::engine {
namespace {

struct Deployment {
  int q_heads = 32, kv_heads = 2, max_context = 131072;
  int slots = 96;
  bool sampled = false;
  ResidencyMode residency = ResidencyMode::kTiered;
  int page_check = 0;
};

std::string Refusal(const Deployment& deployment) {
  ModelConfig config;
  config.num_q_heads = deployment.q_heads;
  config.num_kv_heads = deployment.kv_heads;
  KvOptions kv;
  kv.residency = deployment.residency;
  kv.page_check = deployment.page_check;
  ResolvedAttention attention;
  attention.max_top_k = deployment.slots;
  attention.values.request_override = deployment.sampled;
  const absl::Status status = CheckDeviceServes(config, kv, attention, deployment.max_context);
  return status.ok() ? "no error" : std::string(status.message());
}

TEST(DeviceLimitsTest, RefusesByKeyValueAndLimit) {
  EXPECT_EQ(Refusal({}), "no error");
  EXPECT_EQ(Refusal({.sampled = true}), "no error");
  EXPECT_EQ(Refusal({.slots = 1024}), "no error");
  EXPECT_EQ(Refusal({.slots = 1025}),
            "max_top_k_blocks + spare_slots: expected at most 1024 with device: cuda, found 1025; "
            "device: cpu serves it");
  EXPECT_EQ(Refusal({.slots = 1025, .residency = ResidencyMode::kDevice}), "no error");
  EXPECT_EQ(Refusal({.page_check = 4}),
            "page_check: expected 0 with device: cuda, found 4; device: cpu serves it");
}

TEST(DeviceLimitsTest, OfSampledValues) {
  EXPECT_EQ(Refusal({.q_heads = 34}), "no error");
  EXPECT_EQ(Refusal({.q_heads = 34, .sampled = true}),
            "attention.values.mode: expected exact for a model of more than 16 query heads a KV "
            "head with device: cuda, found sampled for one of 17; device: cpu serves it");
  // A million tokens of 32 query heads are served.
  EXPECT_EQ(Refusal({.max_context = 1 << 20, .sampled = true}), "no error");
  EXPECT_EQ(Refusal({.q_heads = 64, .kv_heads = 8, .max_context = 655360, .sampled = true}),
            "no error");
  EXPECT_EQ(Refusal({.q_heads = 64, .kv_heads = 8, .max_context = 655361}), "no error");
  EXPECT_EQ(Refusal({.q_heads = 64, .kv_heads = 8, .max_context = 655361, .sampled = true}),
            "context: expected at most 655360 for 64 query heads that sample their values with "
            "device: cuda, found 655361; device: cpu serves it");
}

}  // namespace
}  // namespace augur::engine
