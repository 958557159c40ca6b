#include "tests/support/recording_runner.h"

#include "kernels/paged_kv.h"

namespace augur::tests {
namespace {

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdull;
}

// Folds one token in; the tenant is part of it, so that a block of another tenant shows.
uint64_t Fold(uint64_t hash, uint64_t tenant, int32_t token, int32_t position) {
  return Mix(hash,
             (tenant << 48) ^ (uint64_t(uint32_t(position)) << 16) ^ uint64_t(uint32_t(token)));
}

int32_t TokenFrom(uint64_t hash, bool poisoned) {
  if (poisoned) return kernels::kNotFinite;
  return static_cast<int32_t>((hash >> 20) % (RecordingRunner::kPoison - 1));
}

}  // namespace

RecordingRunner::RecordingRunner(int num_blocks, memory::FakeClock* clock, int64_t ns_per_row)
    : pool_(size_t(num_blocks) * kernels::kBlockTokens), clock_(clock), ns_per_row_(ns_per_row) {}

void RecordingRunner::Run(const engine::StepInputs& inputs, engine::StepOutputs* outputs) {
  const auto record = [this](const kernels::Segment& rows, int position) -> Record& {
    const int32_t block = rows.block_table[position / kernels::kBlockTokens];
    return pool_.at(size_t(block) * kernels::kBlockTokens + position % kernels::kBlockTokens);
  };
  outputs->tokens.assign(inputs.segments.size(), 0);
  for (const engine::StepSegment& segment : inputs.segments) {
    for (int row = 0; row < segment.rows.num_rows; ++row) {
      const int position = segment.rows.first_position + row;
      record(segment.rows, position) = {.tenant = segment.sampling.seed,
                                        .token = inputs.token_ids[segment.rows.first_row + row],
                                        .position = position};
    }
  }
  for (size_t i = 0; i < inputs.segments.size(); ++i) {
    const engine::StepSegment& segment = inputs.segments[i];
    if (!segment.wants_token) continue;
    uint64_t hash = 0;
    bool poisoned = false;
    for (int at = 0; at < segment.rows.first_position + segment.rows.num_rows; ++at) {
      const Record& read = record(segment.rows, at);
      hash = Fold(hash, read.tenant, read.token, read.position);
      poisoned = poisoned || read.token == kPoison;
    }
    outputs->tokens[i] = TokenFrom(hash, poisoned);
  }
  rows_run_ += static_cast<int64_t>(inputs.token_ids.size());
  if (clock_ != nullptr)
    clock_->Advance(ns_per_row_ * static_cast<int64_t>(inputs.token_ids.size()));
}

int32_t RecordingRunner::ReferenceToken(uint64_t tenant, std::span<const int32_t> tokens) {
  uint64_t hash = 0;
  bool poisoned = false;
  for (size_t at = 0; at < tokens.size(); ++at) {
    hash = Fold(hash, tenant, tokens[at], static_cast<int32_t>(at));
    poisoned = poisoned || tokens[at] == kPoison;
  }
  return TokenFrom(hash, poisoned);
}

}  // namespace augur::tests
