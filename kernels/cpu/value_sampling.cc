#include "kernels/cpu/value_sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kernels/check.h"
#include "kernels/value_weights.h"

namespace augur::kernels {
namespace {

constexpr int kTokens = kBlockTokens;
// Lambda over S where S counts rows: when most rows that matter are certain it would rise without
// limit, and the next token may want others.
constexpr double kMostRowsRate = 16.0;
// Per token, of what a normaliser is predicted to be over its anchor (base-2 logarithm): what the
// head does when it looks at nothing in particular.
constexpr float kStateRise = 0.5f;

uint64_t Expected(int samples) { return static_cast<uint64_t>(samples) << 32; }

// The rows of one tile, in order: visit(token, begin, end) with boundaries `base` + [0, expected],
// in Q32.
template <class Visit>
void WalkTile(const IsaKernels& isa, const HeadDistribution& head, int entry, uint64_t base,
              uint64_t expected, const Visit& visit) {
  alignas(64) uint32_t weights[kTokens];
  const uint64_t sum =
      isa.tile_weights(head.scores + size_t(entry) * kTokens, head.maxima[entry], weights);
  uint64_t part = 0, begin = base;
  for (int token = 0; token < kTokens; ++token) {
    if (weights[token] == 0) continue;
    part += weights[token];
    const uint64_t end = base + Boundary(part, sum, expected);
    visit(token, begin, end);
    begin = end;
  }
}

void Push(int entry, int token, uint32_t count, double weight, std::vector<ValueDraw>* draws) {
  if (count == 0) return;
  draws->push_back(
      {entry * kTokens + token, static_cast<int32_t>(count), static_cast<float>(count * weight)});
}

// Shares of tiles as boundaries of one stored row of prefixes, so that neighbours agree; rows
// within a tile by the tile's own weights.
void DrawProportional(const IsaKernels& isa, int samples, const HeadDistribution& head,
                      uint32_t offset, std::vector<ValueDraw>* draws) {
  uint64_t begin = 0;
  for (int entry = 0; entry < head.entries(); ++entry) {
    const uint64_t end = Boundary(head.prefix[entry + 1], head.whole(), Expected(samples));
    if (SystematicCount(offset, begin, end) > 0) {
      WalkTile(isa, head, entry, begin, end - begin, [&](int token, uint64_t a, uint64_t b) {
        Push(entry, token, SystematicCount(offset, a, b), 1.0 / samples, draws);
      });
    }
    begin = end;
  }
}

// Row after row of the whole list on one distribution function: prefixes of masses, and of weights
// within a tile, on one scale.
template <class Count>
void DrawGlobal(const IsaKernels& isa, int samples, const HeadDistribution& head,
                const Count& count, std::vector<ValueDraw>* draws) {
  uint64_t begin = 0;
  for (int entry = 0; entry < head.entries(); ++entry) {
    const uint64_t mass = head.masses[entry];
    if (mass == 0) continue;
    WalkTile(isa, head, entry, head.prefix[entry], mass, [&](int token, uint64_t, uint64_t b) {
      const uint64_t end = Boundary(b, head.whole(), Expected(samples));
      Push(entry, token, count(begin, end), 1.0 / samples, draws);
      begin = end;
    });
  }
}

// Thresholds in Q32, ascending.
std::vector<uint64_t> Thresholds(ValueEstimator estimator, int samples, const DrawSource& source) {
  std::vector<uint64_t> thresholds(samples);
  for (int s = 0; s < samples; ++s) {
    PhiloxCounter words = PhiloxAttention(PhiloxPurpose::kValueThreshold, source.key, s);
    if (source.forced_offset >= 0) words = {static_cast<uint32_t>(source.forced_offset)};
    if (estimator == ValueEstimator::kStratified) {
      thresholds[s] = Expected(s) + words.words[0];
    } else {
      const uint64_t uniform = uint64_t{words.words[0]} << 32 | words.words[1];
      thresholds[s] = static_cast<uint64_t>(
          (static_cast<unsigned __int128>(uniform) * Expected(samples)) >> 64);
    }
  }
  if (estimator == ValueEstimator::kIid) std::sort(thresholds.begin(), thresholds.end());
  return thresholds;
}

void DrawByThresholds(const IsaKernels& isa, ValueEstimator estimator, int samples,
                      const HeadDistribution& head, const DrawSource& source,
                      std::vector<ValueDraw>* draws) {
  const std::vector<uint64_t> thresholds = Thresholds(estimator, samples, source);
  auto next = thresholds.begin();
  DrawGlobal(
      isa, samples, head,
      [&](uint64_t, uint64_t end) {
        const auto first = next;
        while (next != thresholds.end() && *next < end) ++next;
        return static_cast<uint32_t>(next - first);
      },
      draws);
}

// Systematic with an offset of its own in one tile.
void DrawTile(const IsaKernels& isa, const HeadDistribution& head, int entry, int samples,
              uint32_t offset, double weight, std::vector<ValueDraw>* draws) {
  WalkTile(isa, head, entry, 0, Expected(samples), [&](int token, uint64_t a, uint64_t b) {
    Push(entry, token, SystematicCount(offset, a, b), weight, draws);
  });
}

// As published: S_t = floor(S W_t / Z), what is left to the largest fractional parts. A tile's
// budget is a function of the scores, so tiles of small mass are never read.
void DrawLargestRemainder(const IsaKernels& isa, int samples, const HeadDistribution& head,
                          const int32_t* blocks, const DrawSource& source,
                          std::vector<ValueDraw>* draws) {
  const int entries = head.entries();
  std::vector<int> budgets(entries);
  std::vector<double> fractions(entries);
  int left = samples;
  for (int entry = 0; entry < entries; ++entry) {
    const double share =
        samples * (static_cast<double>(head.masses[entry]) / static_cast<double>(head.whole()));
    budgets[entry] = static_cast<int>(share);
    fractions[entry] = share - budgets[entry];
    left -= budgets[entry];
  }
  std::vector<int> order(entries);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return fractions[a] > fractions[b]; });
  for (int i = 0; i < std::min(left, entries); ++i) ++budgets[order[i]];
  for (int entry = 0; entry < entries; ++entry) {
    if (budgets[entry] == 0 || head.masses[entry] == 0) continue;
    DrawTile(isa, head, entry, budgets[entry], source.OffsetOfBlock(blocks[entry]), 1.0 / samples,
             draws);
  }
}

int FlashSamples(int samples, int entries) { return std::max(1, samples / entries); }

void DrawFlash(const IsaKernels& isa, int samples, const HeadDistribution& head,
               const int32_t* blocks, const DrawSource& source, std::vector<ValueDraw>* draws) {
  const int of_tile = FlashSamples(samples, head.entries());
  for (int entry = 0; entry < head.entries(); ++entry) {
    if (head.masses[entry] == 0) continue;
    const double share =
        static_cast<double>(head.masses[entry]) / static_cast<double>(head.whole());
    DrawTile(isa, head, entry, of_tile, source.OffsetOfBlock(blocks[entry]), share / of_tile,
             draws);
  }
}

// p of each row of each head: [heads][entries * 64].
void FillProbabilities(const IsaKernels& isa, const std::vector<HeadDistribution>& group,
                       std::vector<float>* out) {
  const size_t rows = size_t(group[0].entries()) * kTokens;
  out->assign(rows * group.size(), 0.0f);
  alignas(64) uint32_t weights[kTokens];
  for (size_t g = 0; g < group.size(); ++g) {
    const HeadDistribution& head = group[g];
    for (int entry = 0; entry < head.entries(); ++entry) {
      if (head.masses[entry] == 0) continue;
      isa.tile_weights(head.scores + size_t(entry) * kTokens, head.maxima[entry], weights);
      const double share = static_cast<double>(head.masses[entry]) /
                           static_cast<double>(head.whole()) /
                           static_cast<double>(head.sums[entry]);
      for (int n = 0; n < kTokens; ++n) {
        (*out)[g * rows + size_t(entry) * kTokens + n] = static_cast<float>(weights[n] * share);
      }
    }
  }
}

// Chance that one query head reads a row of probability p at least once.
double ReadChance(ValueEstimator estimator, int samples, double p) {
  if (estimator == ValueEstimator::kIid) return 1.0 - std::exp(samples * std::log1p(-p));
  return std::min(1.0, samples * p);
}

}  // namespace

float HeadDistribution::LogNorm() const {
  return top + static_cast<float>(std::log2(static_cast<double>(whole())) - 40.0);
}

float HeadDistribution::LogAnchor() const {
  const int last = std::max(1, entries() - kAnchorLast);
  float anchor_top = maxima[0];
  for (int entry = last; entry < entries(); ++entry) {
    anchor_top = std::max(anchor_top, maxima[entry]);
  }
  if (!(anchor_top > -INFINITY)) return kNoLogAnchor;
  uint64_t mass = TileMass(sums[0], maxima[0] - anchor_top);
  for (int entry = last; entry < entries(); ++entry) {
    mass += TileMass(sums[entry], maxima[entry] - anchor_top);
  }
  return anchor_top + static_cast<float>(std::log2(static_cast<double>(mass)) - 40.0);
}

void Measure(const IsaKernels& isa, const float* scores, int entries, HeadDistribution* head) {
  head->scores = scores;
  head->maxima.resize(entries);
  head->sums.resize(entries);
  head->masses.resize(entries);
  head->prefix.resize(entries + 1);
  head->is_nan = false;
  head->top = -INFINITY;
  for (int entry = 0; entry < entries; ++entry) {
    const float max = isa.tile_max(scores + size_t(entry) * kTokens);
    head->maxima[entry] = max;
    head->is_nan |= std::isnan(max) || max == INFINITY;
    if (max > head->top) head->top = max;
  }
  alignas(64) uint32_t weights[kTokens];
  head->prefix[0] = 0;
  for (int entry = 0; entry < entries; ++entry) {
    const float max = head->maxima[entry];
    const bool has_mass = !head->is_nan && max > -INFINITY;
    head->sums[entry] =
        has_mass ? isa.tile_weights(scores + size_t(entry) * kTokens, max, weights) : 0;
    head->masses[entry] = has_mass ? TileMass(head->sums[entry], max - head->top) : 0;
    head->prefix[entry + 1] = head->prefix[entry] + head->masses[entry];
  }
}

void DrawValues(const IsaKernels& isa, ValueEstimator estimator, int samples,
                const HeadDistribution& head, const int32_t* blocks, const DrawSource& source,
                std::vector<ValueDraw>* draws) {
  draws->clear();
  if (head.whole() == 0) return;
  switch (estimator) {
    case ValueEstimator::kIid:
    case ValueEstimator::kStratified:
      return DrawByThresholds(isa, estimator, samples, head, source, draws);
    case ValueEstimator::kSystematic: {
      const uint32_t offset = source.Offset(0);
      return DrawGlobal(
          isa, samples, head,
          [&](uint64_t begin, uint64_t end) { return SystematicCount(offset, begin, end); }, draws);
    }
    case ValueEstimator::kProportional:
      return DrawProportional(isa, samples, head, source.Offset(0), draws);
    case ValueEstimator::kLargestRemainder:
      return DrawLargestRemainder(isa, samples, head, blocks, source, draws);
    case ValueEstimator::kFlash:
      return DrawFlash(isa, samples, head, blocks, source, draws);
    case ValueEstimator::kShared:
      break;
  }
  AUGUR_CHECK(false);
}

int DrawsForRows(const IsaKernels& isa, ValueEstimator estimator, int rows,
                 const std::vector<HeadDistribution>& group, std::vector<float>* scratch) {
  FillProbabilities(isa, group, scratch);
  const HeadDistribution& first = group[0];
  const size_t places = size_t(first.entries()) * kTokens;
  const auto expected_rows = [&](int samples) {
    double total = 0;
    for (size_t place = 0; place < places; ++place) {
      double unread = 1.0;
      for (size_t g = 0; g < group.size(); ++g) {
        double p = (*scratch)[g * places + place];
        if (p == 0) continue;
        int of_row = samples;
        if (estimator == ValueEstimator::kFlash) {
          const HeadDistribution& head = group[g];
          p *=
              static_cast<double>(head.whole()) / static_cast<double>(head.masses[place / kTokens]);
          of_row = FlashSamples(samples, first.entries());
        }
        unread *= 1.0 - ReadChance(estimator, of_row, std::min(p, 1.0));
      }
      total += 1.0 - unread;
    }
    return total;
  };
  int low = 1, high = kMaxValueSamples;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    expected_rows(middle) >= rows ? high = middle : low = middle + 1;
  }
  return low;
}

void DrawShared(const IsaKernels& isa, ValueBudget budget, int samples,
                const std::vector<HeadDistribution>& group, const int32_t* blocks,
                const DrawSource& source, float* state,
                std::vector<std::vector<ValueDraw>>* draws) {
  const int heads = static_cast<int>(group.size());
  const size_t stride = heads > 1 ? group[1].scores - group[0].scores : 0;
  const bool is_first = state[0] == 0.0f;
  const float lambda = is_first ? static_cast<float>(samples) : state[1];
  std::vector<float> log_norms(heads), log_anchors(heads);  // norms: predicted
  for (int g = 0; g < heads; ++g) {
    log_anchors[g] = group[g].LogAnchor();
    log_norms[g] = state[2 + g] + log_anchors[g];
  }
  for (std::vector<ValueDraw>& of_head : *draws) of_head.clear();
  alignas(64) float ratios[kTokens];
  std::vector<std::array<uint32_t, kTokens>> weights(heads);
  uint64_t certain = 0, bounded = 0;  // rows of rate 1; Q32 sum of the other rates
  double unbounded = 0;               // sum of rates without the bound
  for (int entry = 0; entry < group[0].entries(); ++entry) {
    isa.shared_rates(group[0].scores + size_t(entry) * kTokens, stride, log_norms.data(), heads,
                     ratios);
    const uint32_t offset = source.OffsetOfBlock(blocks[entry]);
    bool has_weights = false;
    uint64_t begin = 0;
    double of_tile = 0;
    for (int token = 0; token < kTokens; ++token) {
      const double wanted = static_cast<double>(lambda) * static_cast<double>(ratios[token]) * kQ32;
      of_tile += wanted;
      const uint64_t rate = wanted < kQ32 ? static_cast<uint64_t>(wanted) : kQ32One;
      rate == kQ32One ? ++certain : bounded += rate;
      const uint64_t end = begin + rate;
      const uint32_t count = SystematicCount(offset, begin, end);
      begin = end;
      if (count == 0) continue;
      for (int g = 0; g < heads && !has_weights; ++g) {
        const HeadDistribution& head = group[g];
        if (head.masses[entry] == 0) continue;
        isa.tile_weights(head.scores + size_t(entry) * kTokens, head.maxima[entry],
                         weights[g].data());
      }
      has_weights = true;
      for (int g = 0; g < heads; ++g) {
        const HeadDistribution& head = group[g];
        double p = 0;
        if (head.masses[entry] > 0) {
          p = static_cast<double>(weights[g][token]) / static_cast<double>(head.sums[entry]) *
              (static_cast<double>(head.masses[entry]) / static_cast<double>(head.whole()));
        }
        (*draws)[g].push_back({entry * kTokens + token, 1,
                               static_cast<float>(p * (kQ32 / static_cast<double>(rate)))});
      }
    }
    unbounded += of_tile;
  }
  if (std::count(log_anchors.begin(), log_anchors.end(), kNoLogAnchor) > 0) return;
  // What the rates would have been with the exact normalisers, were they all off alike.
  double off = 0;
  for (int g = 0; g < heads; ++g) {
    const float log_norm = group[g].LogNorm();
    off += log_norm - log_norms[g];
    const float now = log_norm - log_anchors[g];
    state[2 + g] = is_first ? now : std::min(now, state[2 + g] + kStateRise);
  }
  state[0] = 1.0f;
  const double correction = std::exp2(off / heads);
  double next = lambda * correction;
  // A first step counts draws in any case: of its rates most may be bounded.
  const bool counts_draws = budget == ValueBudget::kDraws || is_first;
  if (counts_draws) {
    next *= samples * kQ32 / unbounded;
  } else {
    const double wanted = std::max(0.25, samples - static_cast<double>(certain));
    next *= bounded > 0 ? wanted * kQ32 / static_cast<double>(bounded) : 2.0;
  }
  if (!std::isfinite(next)) next = samples;
  const double least = static_cast<double>(samples) / heads;
  const double most = counts_draws ? samples : samples * kMostRowsRate;
  state[1] = static_cast<float>(std::clamp(next, least, most));
}

}  // namespace augur::kernels
