#include "tests/bench/reuse_bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "engine/batcher.h"
#include "engine/model/model_config.h"
#include "engine/model/model_loader.h"
#include "engine/model/transformer_runner.h"
#include "kernels/check.h"
#include "loadtest/document_builder.h"
#include "memory/base/clock.h"
#include "memory/base/status_macros.h"
#include "tests/bench/block_reuse.h"

namespace augur::bench {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int kChunk = 256;

// A sequence, of which some tokens are computed one by one and counted.
struct Passage {
  Tokens tokens;
  std::vector<bool> counted;  // [tokens]
};

// Of one policy on one source.
struct Measured {
  std::vector<ReuseCounts> layers;
  std::vector<uint64_t> recall_found, recall_wanted;  // [layers]
};

struct Bench {
  engine::ModelConfig config;
  memory::SteadyClock clock;
  std::optional<engine::LoadedModel> model;

  engine::TransformerRunner* runner() {
    auto* const runner = dynamic_cast<engine::TransformerRunner*>(model->runner.get());
    AUGUR_CHECK(runner != nullptr);
    return runner;
  }
};

class ChoiceCounter final : public engine::AttentionObserver {
 public:
  ChoiceCounter(const engine::ModelConfig& config, const kernels::SelectionBudget& budget,
                std::span<const int> spares, Measured* measured)
      : num_kv_heads_(config.num_kv_heads),
        lists_(size_t(config.num_layers) * config.num_kv_heads, BlockReuse(budget, spares)),
        measured_(measured) {}

  void Begin(int first_position, bool counted) {
    first_position_ = first_position;
    counted_ = counted;
  }
  void Observe(int, int, const float*, int, const float*) override {}
  void ObserveChoice(int layer, int row, int kv_head, std::span<const int32_t> blocks) override {
    lists_[size_t(layer) * num_kv_heads_ + kv_head].Step(
        first_position_ + row, blocks, counted_ ? &measured_->layers[layer] : nullptr);
  }

 private:
  const int num_kv_heads_;
  std::vector<BlockReuse> lists_;
  Measured* const measured_;
  int first_position_ = 0;
  bool counted_ = false;
};

absl::Status Load(kernels::Backend* backend, const ReuseBenchOptions& options, Bench* bench) {
  AUGUR_ASSIGN_OR_RETURN(bench->config, engine::LoadModelConfig(options.folder));
  engine::ModelOptions model;
  model.folder = options.folder;
  model.kv.device_bytes = int64_t{1} << 30;
  model.kv.recall_every = 1;
  model.max_batch = 1;
  model.max_batched_tokens = kChunk;
  model.attention.forecast_heads = options.forecast_heads.empty()
                                       ? options.folder + "/forecast.safetensors"
                                       : options.forecast_heads;
  if (options.top_k_blocks > 0) model.attention.top_k_blocks = options.top_k_blocks;
  AUGUR_ASSIGN_OR_RETURN(bench->model, engine::LoadModel(backend, &bench->clock, model));
  if (bench->model->tokenizer != nullptr) return absl::OkStatus();
  return absl::NotFoundError(options.folder + ": expected a tokenizer, found none");
}

// Sequences of all texts one behind the other, cut.
absl::StatusOr<std::vector<Passage>> TextPassages(const ReuseBenchOptions& options,
                                                  const engine::Tokenizer& tokenizer) {
  std::string text;
  for (const std::string& path : options.texts) {
    std::ifstream file(path, std::ios::binary);
    if (!file.is_open()) return absl::NotFoundError(path + ": cannot be read");
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  const Tokens tokens = tokenizer.Encode(text, {});
  std::vector<Passage> passages;
  for (int i = 0; i < options.sequences; ++i) {
    const size_t first = size_t(i) * options.length;
    if (first + options.length > tokens.size()) break;
    Passage passage{Tokens(tokens.begin() + first, tokens.begin() + first + options.length), {}};
    passage.counted.resize(options.length);
    std::fill(passage.counted.end() - std::min(options.steps, options.length),
              passage.counted.end(), true);
    passages.push_back(std::move(passage));
  }
  if (!passages.empty()) return passages;
  return absl::InvalidArgumentError("--text: expected at least " + std::to_string(options.length) +
                                    " tokens (--length), found " + std::to_string(tokens.size()));
}

// A document, its questions and right answers behind it: tokens that a daemon would generate count.
Passage TaskPassage(const loadtest::Document& document, const engine::Tokenizer& tokenizer) {
  Passage passage;
  const auto append = [&](const std::string& text, bool counted) {
    const Tokens tokens = tokenizer.Encode(text, {});
    passage.tokens.insert(passage.tokens.end(), tokens.begin(), tokens.end());
    passage.counted.resize(passage.tokens.size(), counted);
  };
  append(document.text, false);
  for (const loadtest::Question& question : document.questions) {
    append(question.text, false);
    append(" " + question.answer, true);
  }
  return passage;
}

absl::StatusOr<std::vector<Passage>> TaskPassages(const ReuseBenchOptions& options,
                                                  const engine::Tokenizer& tokenizer) {
  std::vector<Passage> passages;
  AUGUR_ASSIGN_OR_RETURN(const auto filler, loadtest::FillerText::Read(options.texts));
  const auto count = [&](const std::string& text) -> absl::StatusOr<int64_t> {
    return static_cast<int64_t>(tokenizer.Encode(text, {}).size());
  };
  constexpr int kQuestionTokens = 64;
  for (const std::string& name : options.tasks) {
    AUGUR_ASSIGN_OR_RETURN(const auto task, loadtest::TaskOf(name));
    for (int number = 0; number < options.documents; ++number) {
      AUGUR_ASSIGN_OR_RETURN(
          const loadtest::Document document,
          loadtest::BuildDocument({.task = task,
                                   .length = options.length - kQuestionTokens * options.questions,
                                   .questions = options.questions,
                                   .distractors = loadtest::HasDistractors(task) ? 8 : 0,
                                   .number = number},
                                  filler, count));
      passages.push_back(TaskPassage(document, tokenizer));
    }
  }
  return passages;
}

// Reads a passage under one policy: history in chunks, then token by token.
void Read(const Passage& passage, const ReuseBenchOptions& options,
          const engine::AttentionChoice& choice, Bench* bench, Measured* measured) {
  const int tokens = static_cast<int>(passage.tokens.size());
  ChoiceCounter counter(bench->config, choice.budget, options.spares, measured);
  memory::KvStore* const store = bench->model->kv->store();
  const int blocks = engine::BlocksFor(tokens);
  AUGUR_CHECK(store->Open({.id = 1,
                           .demand = {.selects = true},
                           .keys = {},
                           .hits = 0,
                           .blocks = blocks,
                           .most_blocks = blocks}));
  engine::StepOutputs outputs;
  const auto run = [&](int first, int rows, bool counted) {
    engine::StepSegment segment;
    segment.rows = {0, rows, first};
    segment.kv = &store->sequence(1);
    segment.attention = &choice;
    segment.prompt_tokens = tokens;
    segment.rope_variant = engine::RopeVariantOf(bench->model->info.short_rope_context, tokens);
    counter.Begin(first, counted);
    bench->runner()->Run(
        {.token_ids = {passage.tokens.data() + first, size_t(rows)}, .segments = {&segment, 1}},
        &outputs);
  };
  const int first_counted = static_cast<int>(
      std::find(passage.counted.begin(), passage.counted.end(), true) - passage.counted.begin());
  int at = 0;
  for (int rows = 0; at < first_counted; at += rows) {
    const int history = std::max(0, first_counted - options.history);
    const int end = at < history ? history : first_counted;
    rows = std::min(end, (at / kChunk + 1) * kChunk) - at;
    bench->runner()->set_observer(at < history ? nullptr : &counter);
    run(at, rows, false);
  }
  bench->runner()->set_observer(&counter);
  const memory::ResidencyStats& stats = *bench->model->kv->stats();
  for (; at < tokens; ++at) {
    const bool counted = passage.counted[at];
    for (int layer = 0; counted && layer < stats.num_layers; ++layer) {
      measured->recall_found[layer] -= stats.layers[layer].recall_found;
      measured->recall_wanted[layer] -= stats.layers[layer].recall_wanted;
    }
    run(at, 1, counted);
    for (int layer = 0; counted && layer < stats.num_layers; ++layer) {
      measured->recall_found[layer] += stats.layers[layer].recall_found;
      measured->recall_wanted[layer] += stats.layers[layer].recall_wanted;
    }
  }
  bench->runner()->set_observer(nullptr);
  store->Release(1);
}

// The place in the stack below which a share of the others lies; -1: they were not seen before.
int64_t DepthAt(const ReuseCounts& counts, double share) {
  double below = 0;
  for (size_t depth = 0; depth < counts.depths.size(); ++depth) {
    below += static_cast<double>(counts.depths[depth]);
    if (below >= share * static_cast<double>(counts.others())) return static_cast<int64_t>(depth);
  }
  return -1;
}

void Print(const BenchContext& context, const ReuseBenchOptions& options, const std::string& policy,
           const std::string& source, const std::string& layer, const ReuseCounts& counts,
           double recall) {
  BenchRecord record(context, "reuse");
  record.Add("policy", policy).Add("source", source).Add("layer", layer);
  record.Add("chosen", counts.chosen).Add("reuse", counts.reuse());
  record.Add("others_unseen", static_cast<double>(counts.unseen) /
                                  static_cast<double>(std::max<int64_t>(1, counts.others())));
  for (const int percent : {25, 50, 75, 90}) {
    record.Add("others_depth_" + std::to_string(percent), DepthAt(counts, percent / 100.0));
  }
  for (size_t i = 0; i < options.spares.size(); ++i) {
    record.Add("hits_spare_" + std::to_string(options.spares[i]), counts.hits(i));
  }
  if (recall >= 0) record.Add("forecast_recall", recall);
  record.Print();
}

double RecallOf(uint64_t found, uint64_t wanted) {
  return wanted == 0 ? -1 : static_cast<double>(found) / static_cast<double>(wanted);
}

// All layers together.
ReuseCounts Report(const BenchContext& context, const ReuseBenchOptions& options,
                   const std::string& policy, const std::string& source, const Measured& measured) {
  ReuseCounts all;
  uint64_t found = 0, wanted = 0;
  for (size_t layer = 0; layer < measured.layers.size(); ++layer) {
    all.Add(measured.layers[layer]);
    found += measured.recall_found[layer];
    wanted += measured.recall_wanted[layer];
    Print(context, options, policy, source, std::to_string(layer), measured.layers[layer],
          RecallOf(measured.recall_found[layer], measured.recall_wanted[layer]));
  }
  Print(context, options, policy, source, "all", all, RecallOf(found, wanted));
  return all;
}

double Rounded(double share) { return std::round(share * 1e4) / 1e4; }

nlohmann::ordered_json LawJson(const ReuseBenchOptions& options, const ReuseCounts& counts,
                               int places) {
  nlohmann::ordered_json json;
  json["reuse"] = Rounded(counts.reuse());
  for (const uint32_t end : LawOf(counts, places).ends) {
    json["others_within"].push_back(Rounded(static_cast<double>(end) / 65536.0));
  }
  for (size_t i = 0; i < options.spares.size(); ++i) {
    json["hits_by_spare_slots"][std::to_string(options.spares[i])] = Rounded(counts.hits(i));
  }
  return json;
}

bool Refuse(const std::string& message) {
  std::fprintf(stderr, "augur-bench: %s\n", message.c_str());
  return false;
}

}  // namespace

bool RunReuseBench(kernels::Backend* backend, const BenchContext& context,
                   const ReuseBenchOptions& options) {
  if (backend->IsDevice()) return Refuse("reuse: runs on --device cpu alone");
  Bench bench;
  const absl::Status loaded = Load(backend, options, &bench);
  if (!loaded.ok()) return Refuse(std::string(loaded.message()));
  std::map<std::string, std::vector<Passage>> sources;
  auto text = TextPassages(options, *bench.model->tokenizer);
  if (!text.ok()) return Refuse(std::string(text.status().message()));
  sources["text"] = *std::move(text);
  auto tasks = TaskPassages(options, *bench.model->tokenizer);
  if (!tasks.ok()) return Refuse(std::string(tasks.status().message()));
  sources["tasks"] = *std::move(tasks);

  engine::AttentionChoice choice = bench.model->attention.choice;
  const int places = choice.budget.top_k - choice.budget.init - choice.budget.local;
  nlohmann::ordered_json law = {{"length", options.length},
                                {"chosen_blocks", places},
                                {"bins_per_choice", kernels::StackLaw::kBinsPerChoice}};
  for (const std::string& name : options.policies) {
    const auto policy = engine::PolicyNamed(name);
    if (!policy.has_value() || *policy == engine::AttentionPolicy::kDense) {
      return Refuse("--policies: expected policies that choose, found " + name);
    }
    choice.prefill = choice.decode = *policy;
    for (const auto& [source, passages] : sources) {
      const size_t layers = bench.config.num_layers;
      Measured measured{std::vector<ReuseCounts>(layers), std::vector<uint64_t>(layers),
                        std::vector<uint64_t>(layers)};
      for (const Passage& passage : passages) Read(passage, options, choice, &bench, &measured);
      const ReuseCounts all = Report(context, options, name, source, measured);
      law[name][source] = LawJson(options, all, places);
    }
  }
  if (options.out.empty()) return true;
  std::ofstream file(options.out);
  file << law.dump(1) << "\n";
  return file.good() || Refuse(options.out + ": cannot be written");
}

std::optional<kernels::DrivenChoice> ReadReuseLaw(const std::string& path,
                                                  const std::string& source) {
  using kernels::StackLaw;
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  const auto json = nlohmann::json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer at("/forecast/" + source);
  if (json.is_discarded() || !json.contains(at) ||
      json.value("bins_per_choice", 0) != StackLaw::kBinsPerChoice) {
    Refuse(path + ": expected what augur-bench reuse --out writes, of " + source);
    return std::nullopt;
  }
  const nlohmann::json& law = json.at(at);
  const std::vector<double> within = law.value("others_within", std::vector<double>());
  if (within.size() != StackLaw::kBins) {
    Refuse(path + ": others_within: expected " + std::to_string(StackLaw::kBins) + " shares");
    return std::nullopt;
  }
  kernels::DrivenChoice driven{.reuse = law.value("reuse", -1.0f), .by_law = true};
  for (int bin = 0; bin < StackLaw::kBins; ++bin) {
    driven.law.ends[bin] = static_cast<uint32_t>(within[bin] * 65536.0);
  }
  return driven;
}

}  // namespace augur::bench
