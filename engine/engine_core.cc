#include "engine/engine_core.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/pool_fit.h"
#include "kernels/check.h"
#include "kernels/kv_page.h"

namespace augur::engine {

using memory::SequenceId;

namespace {

// Under kAuto sequences are written behind once less than this share of the frames is free: time
// for the copies before the first of them must go.
constexpr int kMirrorShare = 8;

// What the sequence counts for in the queue of prompt tokens: choices share their prompt.
int QueuedTokens(const Sequence& sequence) {
  return sequence.choice == 0 ? sequence.num_prompt() : 0;
}

// The token's row or one of the prompt's that are told.
bool IsNotFinite(const PlannedSegment& planned, const StepResult& result) {
  if (planned.samples && result.token == kernels::kNotFinite) return true;
  return std::any_of(
      result.prompt.begin(), result.prompt.end(),
      [](const kernels::TokenLogprobsRow& row) { return std::isnan(row.chosen.logprob); });
}

// Log probabilities of the prompt are still to be told.
bool TellsPrompt(const Sequence& sequence) {
  return sequence.shows_prompt() && sequence.request->output.prompt_logprobs >= 0 &&
         sequence.told_prompt < sequence.num_prompt();
}

}  // namespace

EngineCore::EngineCore(const EngineOptions& options, std::vector<TokenId> eos_token_ids,
                       ModelRunner* runner, memory::KvStore* kv, TokenOutput* output,
                       EngineStats* stats, const memory::Clock* clock)
    : options_(options),
      eos_token_ids_(std::move(eos_token_ids)),
      runner_(runner),
      output_(output),
      stats_(stats),
      clock_(clock),
      kv_(kv) {
  row_tokens_.reserve(options.max_batched_tokens);
  stats_->blocks_total = kv_->frame_counts().total;
  stats_->host_blocks_total = kv_->host_counts().total;
  ExportGauges();
}

void EngineCore::Add(std::shared_ptr<Request> request) {
  AUGUR_CHECK(!request->prompt.empty());
  for (uint32_t choice = 0; choice < request->num_choices; ++choice) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = next_id_++;
    sequence->choice = choice;
    sequence->tokens = request->prompt;
    sequence->tokens.reserve(request->prompt.size() + request->stopping.max_tokens);
    sequence->rules = RulesOf(*request, eos_token_ids_);
    sequence->times.arrival_ns = request->arrival_ns;
    sequence->request = request;
    waiting_.emplace(sequence->id, std::move(sequence));
  }
}

StepReport EngineCore::Step() {
  StepReport report;
  const int64_t start_ns = clock_->NowNs();
  kv_->Poll();
  Sweep(start_ns, &report);
  NoteWarm(start_ns);
  MirrorBeforePressure();
  const BatchLimits limits{.max_batch = options_.max_batch,
                           .max_batched_tokens = options_.max_batched_tokens,
                           .warm_up_bytes = options_.warm_up_bytes};
  plan_ = PlanStep(MakeBatchState(), limits);
  if (!plan_.preemptions.empty() && kv_->num_closing() > 0) {
    // What has ended gives its frames back before anybody who runs must.
    kv_->WaitForClosing();
    plan_ = PlanStep(MakeBatchState(), limits);
  }
  for (const SequenceId id : plan_.preemptions) Preempt(id);
  ApplyAdmissions(start_ns, &report);
  ApplyWarmUps(&report);
  RunSegments(&report);
  report.moved |= report.rows > 0 || !plan_.preemptions.empty() || !plan_.admissions.empty();
  report.awaits_copies = !report.moved && kv_->OldestPending() != memory::kNoTicket;
  if (report.rows > 0) {
    const int64_t end_ns = clock_->NowNs();
    stats_->steps += 1;
    stats_->last_step_ns = end_ns;
    stats_->step_seconds.Observe(static_cast<double>(end_ns - start_ns) / memory::kNsPerSecond);
    stats_->step_host_seconds.Observe(static_cast<double>(end_ns - start_ns - report.device_ns) /
                                      memory::kNsPerSecond);
    stats_->batch_size.Observe(static_cast<double>(plan_.segments.size()));
    stats_->step_tokens.Observe(report.rows);
  }
  ExportGauges();
  PostEvents();
  return report;
}

void EngineCore::Sweep(int64_t now_ns, StepReport* report) {
  std::vector<std::pair<SequenceId, absl::Status>> ended;
  std::vector<SequenceId> retired;
  for (SequenceMap* map : {&waiting_, &running_}) {
    for (auto& [id, sequence] : *map) {
      if (sequence->stop_matched()) {
        retired.push_back(id);
      } else if (absl::Status verdict = VerdictOn(sequence.get(), now_ns); !verdict.ok()) {
        ended.emplace_back(id, std::move(verdict));
      }
    }
  }
  for (const auto& [id, status] : ended) EndWith(id, status, report);
  for (const SequenceId id : retired) {
    if (Find(id) == nullptr) continue;  // its request failed

    TokenEvent event;
    event.kind = TokenEvent::Kind::kRetired;
    End(id, std::move(event), report);
  }
}

absl::Status EngineCore::VerdictOn(Sequence* sequence, int64_t now_ns) const {
  const Request& request = *sequence->request;
  if (request.cancelled.load(std::memory_order_acquire)) {
    return absl::CancelledError("the client went away");
  }
  if (now_ns >= request.deadline_ns) {
    return absl::DeadlineExceededError(absl::StrCat(
        "deadline passed ",
        sequence->admitted_before() ? "while generating, after " : "in the queue, after ",
        sequence->num_generated(), " tokens"));
  }
  if (!request.paused.load(std::memory_order_acquire)) {
    sequence->paused_since_ns = RequestTimes::kUnset;
    return absl::OkStatus();
  }
  if (sequence->paused_since_ns == RequestTimes::kUnset) sequence->paused_since_ns = now_ns;
  if (now_ns - sequence->paused_since_ns >= options_.slow_reader_timeout_ns) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the client read nothing for ", options_.slow_reader_timeout_ns / memory::kNsPerMs,
        " ms (slow_reader_timeout)"));
  }
  return absl::OkStatus();
}

BatchState EngineCore::MakeBatchState() const {
  BatchState state;
  state.available_frames = kv_->available_frames();
  state.available_host_blocks = kv_->available_host_blocks();
  state.running.reserve(running_.size());
  // A step takes at most three frames for each decoding sequence (a block's, one for compressed
  // keys and one for partial keys); with that many at hand nobody is preempted and what a
  // preemption would give back need not be counted.
  const bool tight = kv_->available_frames() < 3 * static_cast<int>(running_.size());
  for (const Sequence* sequence : Ranked(running_)) {
    const SequenceId id = sequence->id;
    const bool paused = sequence->paused_since_ns != RequestTimes::kUnset || !kv_->Ready(id);
    state.running.push_back(
        {.id = id,
         .num_tokens = sequence->num_tokens(),
         .num_computed = sequence->num_computed,
         .missing_frames = kv_->MissingFrames(id, BlocksFor(sequence->num_tokens())),
         .reclaimable_frames = tight ? kv_->ReclaimableFrames(id) : 0,
         .grows = !kv_->sequence(id).tiered(),
         .decoding = sequence->decoding(),
         .paused = paused,
         .cold = kv_->IsCold(id),
         .bytes_on_their_way = kv_->BytesOnTheirWay(id)});
  }
  // The head that does not fit ends admission, so no more than the free places need a look; but for
  // what was saved, where nothing runs.
  size_t places = options_.max_batch - running_.size();
  for (const Sequence* sequence : Ranked(waiting_)) {
    if (places == 0 && !(running_.empty() && kv_->is_saved(sequence->id))) continue;
    if (AwaitsPrompt(*sequence)) continue;
    state.waiting.push_back(ViewOf(*sequence));
    if (places > 0) --places;
  }
  return state;
}

WaitingView EngineCore::ViewOf(const Sequence& sequence) const {
  WaitingView view{.id = sequence.id,
                   .num_tokens = sequence.num_tokens(),
                   .num_computed = sequence.num_computed,
                   .device = {},
                   .tiered = {}};
  const Request& request = *sequence.request;
  if (kv_->is_saved(sequence.id)) {
    const memory::KvCost cost = kv_->ResumeCost(
        sequence.id, DemandOf(request, options_, memory::Residency::kTiered).num_slots);
    view.tiered = {.possible = true, .hit_blocks = 0, .frames = cost.frames, .host_blocks = 0};
    return view;
  }
  // Where it could not end on the device it must not begin there: it would have to leave when
  // it is the first in rank, for host blocks that those who wait behind it may hold.
  if (options_.residency != ResidencyMode::kTiered &&
      FitsPools(request, options_, kv_->pools(), memory::Residency::kDevice)) {
    view.device = OptionFor(sequence, memory::Residency::kDevice);
  }
  if (MayBeTiered(request, options_)) {
    view.tiered = OptionFor(sequence, memory::Residency::kTiered);
  }
  return view;
}

std::vector<Sequence*> EngineCore::Ranked(const SequenceMap& map) {
  std::vector<Sequence*> ranked;
  ranked.reserve(map.size());
  for (const auto& [id, sequence] : map) ranked.push_back(sequence.get());
  std::stable_sort(ranked.begin(), ranked.end(), [](const Sequence* a, const Sequence* b) {
    return a->request->priority > b->request->priority;
  });
  return ranked;
}

const Sequence* EngineCore::Find(SequenceId id) const {
  for (const SequenceMap* map : {&running_, &waiting_}) {
    if (const auto found = map->find(id); found != map->end()) return found->second.get();
  }
  return nullptr;
}

// The first choice computes the prompt; the others wait for what of it the prefix cache can give
// them.
bool EngineCore::AwaitsPrompt(const Sequence& sequence) const {
  if (sequence.choice == 0 || sequence.admitted_before()) return false;
  const Sequence* first = Find(sequence.first_choice());
  if (first == nullptr) return kv_->is_closing(sequence.first_choice());
  return first->published_blocks < UsableBlocks(*first, first->num_prompt());
}

// Blocks that a prefix hit may cover of the first `tokens`: one at least is to be computed.
int EngineCore::UsableBlocks(const Sequence& sequence, int tokens) {
  // InfiniGen sums over all of the prompt's queries, which a hit would leave out.
  if (sequence.request->attention.decode == AttentionPolicy::kInfinigen) return 0;
  return std::min(static_cast<int>(sequence.request->block_keys.size()),
                  (tokens - 1) / kernels::kBlockTokens);
}

AdmissionOption EngineCore::OptionFor(const Sequence& sequence, memory::Residency residency) const {
  const std::vector<memory::BlockKey>& keys = sequence.request->block_keys;
  // The logits that are to be told of the prompt are those of its rows, which a hit would leave
  // out.
  const int usable_blocks =
      TellsPrompt(sequence) ? 0 : UsableBlocks(sequence, sequence.num_tokens());
  const std::span<const memory::BlockKey> usable(keys.data(), usable_blocks);
  const int hits = kv_->CountCached(residency, usable);
  const memory::KvCost cost = kv_->CostOf(AdmissionOf(sequence, residency, hits));
  return {
      .possible = true, .hit_blocks = hits, .frames = cost.frames, .host_blocks = cost.host_blocks};
}

memory::KvAdmission EngineCore::AdmissionOf(const Sequence& sequence, memory::Residency residency,
                                            int hits) const {
  return {.id = sequence.id,
          .demand = DemandOf(*sequence.request, options_, residency),
          .keys = std::span(sequence.request->block_keys).first(hits),
          .hits = hits,
          .blocks = BlocksFor(sequence.num_tokens()),
          .most_blocks = MostBlocks(*sequence.request)};
}

// One sequence at a time, the last in rank that selects and decodes: it would be the first to go,
// and written behind already it goes without a wait.
void EngineCore::MirrorBeforePressure() {
  if (options_.residency != ResidencyMode::kAuto) return;
  if (kv_->available_frames() >= kv_->frame_counts().total / kMirrorShare) return;
  const std::vector<Sequence*> ranked = Ranked(running_);
  for (auto at = ranked.rbegin(); at != ranked.rend(); ++at) {
    const Sequence& sequence = **at;
    const memory::SequenceKv& kv = kv_->sequence(sequence.id);
    if (kv.tiered() || !MayBeTiered(*sequence.request, options_)) continue;
    if (kv.writes_behind()) {
      if (kv.landed_everywhere() + 1 < sequence.num_computed / kernels::kBlockTokens) return;
      continue;  // nearly done: the next one may begin
    }
    if (!sequence.decoding()) continue;
    if (kv_->BeginMirror(sequence.id, MostBlocks(*sequence.request))) stats_->mirrored += 1;
    return;
  }
}

void EngineCore::Preempt(SequenceId id) {
  auto node = running_.extract(id);
  Sequence& sequence = *node.mapped();
  memory::SequenceKv& kv = kv_->sequence(id);
  // Frames of its own for a tiered life; a prompt that is not computed yet is cheaper to begin
  // anew.
  if (!kv.writes_behind() && MayBeTiered(*sequence.request, options_) && sequence.decoding()) {
    kv_->BeginMirror(id, MostBlocks(*sequence.request));
  }
  // A saved sequence is known by what it has computed.
  const bool saves = kv.writes_behind() && sequence.num_computed > 0;
  runner_->Leave(&kv, saves);
  if (saves) {
    kv_->Save(id, sequence.num_computed);
    stats_->saved += 1;
  } else {
    kv_->Release(id);
    sequence.num_computed = 0;
  }
  sequence.published_blocks = 0;
  sequence.warming_since_ns = RequestTimes::kUnset;
  ++sequence.preemptions;
  stats_->preemptions += 1;
  waiting_.insert(std::move(node));
}

void EngineCore::WaitForCopies() {
  kv_->transfers()->Wait(kv_->OldestPending());
  kv_->Poll();
}

void EngineCore::ApplyAdmissions(int64_t now_ns, StepReport* report) {
  for (const PlannedAdmission& admission : plan_.admissions) {
    if (Admit(admission, now_ns, report)) continue;
    // An admission before it evicted part of its prefix: it stays in the queue and is planned anew.
    std::erase_if(plan_.segments, [&](const PlannedSegment& segment) {
      return segment.sequence == admission.sequence;
    });
  }
}

bool EngineCore::Admit(const PlannedAdmission& admission, int64_t now_ns, StepReport* report) {
  Sequence& sequence = *waiting_.at(admission.sequence);
  if (admission.resumed) {
    const memory::KvDemand demand =
        DemandOf(*sequence.request, options_, memory::Residency::kTiered);
    if (!kv_->Resume(sequence.id, demand.num_slots)) return false;
    sequence.warming_since_ns = now_ns;
    running_.insert(waiting_.extract(admission.sequence));
    return true;
  }
  const std::vector<memory::BlockKey>& keys = sequence.request->block_keys;
  const std::span<const memory::BlockKey> hits(keys.data(), admission.hit_blocks);
  if (kv_->CountCached(admission.residency, hits) < admission.hit_blocks) return false;
  if (!kv_->Open(AdmissionOf(sequence, admission.residency, admission.hit_blocks))) return false;
  sequence.num_computed = admission.hit_blocks * kernels::kBlockTokens;
  sequence.published_blocks = admission.hit_blocks;
  if (kv_->IsCold(sequence.id)) sequence.warming_since_ns = now_ns;
  if (sequence.choice == 0) {
    stats_->prefix_query_blocks += keys.size();
    stats_->prefix_hit_blocks += admission.hit_blocks;
  }
  if (!sequence.admitted_before()) NoteAdmission(&sequence, now_ns, report);
  running_.insert(waiting_.extract(admission.sequence));
  return true;
}

void EngineCore::ApplyWarmUps(StepReport* report) {
  for (const PlannedWarmUp& planned : plan_.warm_ups) {
    if (kv_->WarmUp(planned.sequence, planned.most_bytes) > 0) report->moved = true;
  }
}

void EngineCore::NoteWarm(int64_t now_ns) {
  int64_t warming = 0;
  for (const auto& [id, sequence] : running_) {
    if (sequence->warming_since_ns == RequestTimes::kUnset) continue;
    if (!kv_->Ready(id)) {
      ++warming;
      continue;
    }
    stats_->warm_up_seconds.Observe(static_cast<double>(now_ns - sequence->warming_since_ns) /
                                    memory::kNsPerSecond);
    sequence->warming_since_ns = RequestTimes::kUnset;
  }
  stats_->warming = warming;
}

void EngineCore::NoteAdmission(Sequence* sequence, int64_t now_ns, StepReport* report) {
  sequence->times.admitted_ns = now_ns;
  report->left_queue_requests += 1;
  report->left_queue_tokens += QueuedTokens(*sequence);
  if (sequence->choice > 0) {
    // Its part of the prompt was counted with the first choice.
    sequence->high_water = sequence->num_prompt();
    return;
  }
  sequence->high_water = sequence->num_computed;
  stats_->cached_tokens += sequence->num_computed;
  stats_->queue_seconds.Observe(static_cast<double>(now_ns - sequence->times.arrival_ns) /
                                memory::kNsPerSecond);
  sequence->cached_tokens = sequence->num_computed;
  for (uint32_t choice = 1; choice < sequence->request->num_choices; ++choice) {
    waiting_.at(sequence->id + choice)->cached_tokens = sequence->num_computed;
  }
}

void EngineCore::RunSegments(StepReport* report) {
  if (plan_.segments.empty()) return;
  std::vector<StepSegment> segments;
  segments.reserve(plan_.segments.size());
  GatherInputs(&segments);
  if (options_.reserve_ahead) ReserveAhead();
  const int64_t waited_ns = runner_->waited_ns();
  runner_->Run({.token_ids = row_tokens_, .segments = segments}, &outputs_);
  AUGUR_CHECK(outputs_.tokens.size() == segments.size());
  report->rows = static_cast<int>(row_tokens_.size());
  report->device_ns = runner_->waited_ns() - waited_ns;
  Update(segments, clock_->NowNs(), report);
}

void EngineCore::ReserveAhead() {
  for (const PlannedSegment& planned : plan_.segments) {
    if (!planned.samples) continue;
    const Sequence& sequence = *running_.at(planned.sequence);
    const int blocks =
        std::min(BlocksFor(sequence.num_tokens() + 1), MostBlocks(*sequence.request));
    const int missing = kv_->MissingFrames(sequence.id, blocks);
    if (missing == 0 || missing > kv_->available_frames()) continue;
    AUGUR_CHECK(kv_->Extend(sequence.id, blocks));
  }
}

void EngineCore::GatherInputs(std::vector<StepSegment>* segments) {
  row_tokens_.clear();
  for (const PlannedSegment& planned : plan_.segments) {
    Sequence& sequence = *running_.at(planned.sequence);
    AUGUR_CHECK(planned.num_tokens > 0 && planned.num_tokens <= sequence.remaining());
    AUGUR_CHECK(kv_->Ready(sequence.id) && kv_->Extend(sequence.id, planned.blocks_after));
    StepSegment segment;
    segment.rows = {.first_row = static_cast<int>(row_tokens_.size()),
                    .num_rows = planned.num_tokens,
                    .first_position = sequence.num_computed};
    segment.kv = &kv_->sequence(sequence.id);
    segment.attention = &sequence.request->attention;
    segment.prompt_tokens = sequence.num_prompt();
    segment.wants_token = planned.samples && sequence.request->stopping.max_tokens > 0;
    if (sequence.rules && sequence.rules->ApplyAt(sequence.num_generated())) {
      segment.rules = &*sequence.rules;
    }
    segment.tokens = sequence.tokens;
    segment.rope_variant =
        RopeVariantOf(options_.short_rope_context, MostTokens(*sequence.request));
    segment.logprobs = sequence.request->output.logprobs;
    if (sequence.shows_prompt()) {
      segment.prompt_logprobs = sequence.request->output.prompt_logprobs;
    }
    // Token p is told by the row before it; the first has none.
    segment.tell_from = std::max(0, sequence.told_prompt - 1);
    const SamplingParams& sampling = sequence.request->sampling;
    segment.sampling = {.temperature = sampling.temperature,
                        .top_k = sampling.top_k,
                        .top_p = sampling.top_p,
                        .min_p = sampling.min_p,
                        .seed = sampling.seed,
                        .choice_index = sequence.choice,
                        .position = static_cast<uint32_t>(sequence.num_tokens())};
    const auto first = sequence.tokens.begin() + sequence.num_computed;
    row_tokens_.insert(row_tokens_.end(), first, first + planned.num_tokens);
    segments->push_back(segment);
  }
  AUGUR_CHECK(static_cast<int>(row_tokens_.size()) <= options_.max_batched_tokens);
}

void EngineCore::Update(const std::vector<StepSegment>& segments, int64_t now_ns,
                        StepReport* report) {
  std::span<const kernels::TokenLogprobsRow> told(outputs_.prompt_logprobs);
  for (size_t i = 0; i < segments.size(); ++i) {
    const PlannedSegment& planned = plan_.segments[i];
    const size_t count = ToldRowsOf(segments[i]).count;
    AUGUR_CHECK(told.size() >= count);
    StepResult result{.token = outputs_.tokens[i], .prompt = told.first(count)};
    if (segments[i].logprobs >= 0 && segments[i].wants_token) {
      result.logprobs = &outputs_.logprobs.at(i);
    }
    told = told.subspan(count);
    const auto sequence = running_.find(planned.sequence);
    if (sequence == running_.end()) continue;  // another choice of its request has failed
    UpdateOne(sequence->second.get(), planned, result, now_ns, report);
  }
  AUGUR_CHECK(told.empty());
}

void EngineCore::UpdateOne(Sequence* sequence, const PlannedSegment& planned,
                           const StepResult& result, int64_t now_ns, StepReport* report) {
  const int before = sequence->num_computed;
  sequence->num_computed += planned.num_tokens;
  const int fresh = std::max(0, sequence->num_computed - std::max(before, sequence->high_water));
  stats_->recomputed_tokens += planned.num_tokens - fresh;
  sequence->high_water = std::max(sequence->high_water, sequence->num_computed);
  if (IsNotFinite(planned, result)) {
    kv_->Withdraw(sequence->id, sequence->published_blocks);
    EndWith(sequence->id, absl::InternalError("the model gave logits that are not finite"), report);
    return;
  }
  PublishPromptBlocks(sequence);
  TellPrompt(sequence, result.prompt);
  if (before < sequence->num_prompt()) {
    if (sequence->num_generated() == 0) stats_->prompt_tokens += fresh;
    // Only what is new: a client's progress bar does not run backwards through a preemption.
    if (sequence->request->output.progress && sequence->num_generated() == 0 && fresh > 0) {
      TokenEvent event;
      event.request = sequence->request;
      event.kind = TokenEvent::Kind::kProgress;
      event.progress = {.processed_tokens = static_cast<uint32_t>(sequence->num_computed),
                        .cached_tokens = sequence->cached_tokens,
                        .total_tokens = static_cast<uint32_t>(sequence->num_prompt()),
                        .elapsed_ns = now_ns - sequence->times.admitted_ns};
      events_.push_back(std::move(event));
    }
  }
  if (!planned.samples) return;
  if (sequence->request->stopping.max_tokens == 0) {
    Finish(sequence, FinishReason::kLength, -1, now_ns);
  } else {
    AppendToken(sequence, result, now_ns);
  }
}

// What of the prompt is known now: with every row the token behind it.
void EngineCore::TellPrompt(Sequence* sequence, std::span<const kernels::TokenLogprobsRow> rows) {
  const int end = std::min(sequence->num_computed + 1, sequence->num_prompt());
  if (!sequence->shows_prompt() || end <= sequence->told_prompt) return;
  TokenEvent event;
  event.request = sequence->request;
  event.kind = TokenEvent::Kind::kPrompt;
  event.first_position = sequence->told_prompt;
  event.end_position = end;
  event.logprobs.assign(rows.begin(), rows.end());
  events_.push_back(std::move(event));
  sequence->told_prompt = end;
}

// As far as they are computed and, when tiered, on the host.
void EngineCore::PublishPromptBlocks(Sequence* sequence) {
  const std::vector<memory::BlockKey>& keys = sequence->request->block_keys;
  const size_t full = std::min<size_t>(keys.size(), sequence->num_computed / kernels::kBlockTokens);
  for (size_t block = sequence->published_blocks; block < full; ++block) {
    if (!kv_->Publish(sequence->id, static_cast<int>(block), keys[block])) return;
    sequence->published_blocks = static_cast<int>(block) + 1;
  }
}

// Prompt blocks of a finished sequence whose writes are still under way are published when they
// land; an abandoned one's are dropped.
void EngineCore::ReleaseKv(Sequence* sequence, bool finished) {
  std::span<const memory::BlockKey> late;
  if (finished && kv_->is_open(sequence->id) && kv_->sequence(sequence->id).tiered()) {
    const std::span<const memory::BlockKey> keys(sequence->request->block_keys);
    const size_t full =
        std::min<size_t>(keys.size(), sequence->num_computed / kernels::kBlockTokens);
    if (full > static_cast<size_t>(sequence->published_blocks)) {
      late = keys.subspan(sequence->published_blocks, full - sequence->published_blocks);
    }
  }
  if (kv_->is_open(sequence->id)) runner_->Leave(&kv_->sequence(sequence->id), /*keep=*/false);
  kv_->Release(sequence->id, sequence->published_blocks, late);
}

void EngineCore::AppendToken(Sequence* sequence, const StepResult& result, int64_t now_ns) {
  const TokenId token = result.token;
  const StoppingCriteria& stopping = sequence->request->stopping;
  sequence->tokens.push_back(token);
  stats_->generated_tokens += 1;
  if (sequence->times.first_token_ns == RequestTimes::kUnset) {
    sequence->times.first_token_ns = now_ns;
    if (sequence->choice == 0) {
      stats_->first_token_seconds.Observe(static_cast<double>(now_ns - sequence->times.arrival_ns) /
                                          memory::kNsPerSecond);
    }
  } else {
    stats_->inter_token_seconds.Observe(static_cast<double>(now_ns - sequence->last_token_ns) /
                                        memory::kNsPerSecond);
  }
  sequence->last_token_ns = now_ns;

  const auto contains = [token](const std::vector<TokenId>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  const uint32_t generated = sequence->num_generated();
  const bool ids_count = generated > stopping.min_tokens;
  const bool is_stop = ids_count && contains(stopping.stop_token_ids);
  const bool is_eos = ids_count && !stopping.ignore_eos && contains(eos_token_ids_);

  TokenEvent event;
  event.request = sequence->request;
  event.choice = sequence->choice;
  event.kind = TokenEvent::Kind::kToken;
  event.token = token;
  event.hidden = is_stop || is_eos;
  if (result.logprobs != nullptr) event.logprobs.push_back(*result.logprobs);
  event.completion = DescribeCompletion(*sequence);
  events_.push_back(std::move(event));

  if (is_stop) {
    Finish(sequence, FinishReason::kStop, token, now_ns);
  } else if (is_eos) {
    Finish(sequence, FinishReason::kEos, token, now_ns);
  } else if (generated >= stopping.max_tokens) {
    Finish(sequence, FinishReason::kLength, -1, now_ns);
  }
}

Completion EngineCore::DescribeCompletion(const Sequence& sequence) const {
  Completion completion;
  completion.index = sequence.choice;
  completion.prompt_tokens = sequence.num_prompt();
  completion.cached_tokens = sequence.cached_tokens;
  completion.completion_tokens = sequence.num_generated();
  completion.preemptions = sequence.preemptions;
  completion.times = sequence.times;
  completion.times.finished_ns = sequence.last_token_ns;
  return completion;
}

void EngineCore::Finish(Sequence* sequence, FinishReason reason, TokenId stop_id, int64_t now_ns) {
  TokenEvent event;
  event.kind = TokenEvent::Kind::kFinished;
  event.completion = DescribeCompletion(*sequence);
  event.completion.reason = reason;
  event.completion.stop_token_id = stop_id;
  event.completion.times.finished_ns = now_ns;
  End(sequence->id, std::move(event), nullptr);
}

void EngineCore::End(SequenceId id, TokenEvent event, StepReport* report) {
  SequenceMap& map = running_.contains(id) ? running_ : waiting_;
  Sequence& sequence = *map.at(id);
  const bool finished =
      event.kind == TokenEvent::Kind::kFinished || event.kind == TokenEvent::Kind::kRetired;
  event.request = sequence.request;
  event.choice = sequence.choice;
  events_.push_back(std::move(event));
  if (&map == &running_ || kv_->is_saved(id)) ReleaseKv(&sequence, finished);
  if (!sequence.admitted_before()) {
    AUGUR_CHECK(report != nullptr);
    report->left_queue_requests += 1;
    report->left_queue_tokens += QueuedTokens(sequence);
  }
  map.erase(id);
}

void EngineCore::EndWith(SequenceId id, const absl::Status& status, StepReport* report) {
  const Sequence* sequence = Find(id);
  if (sequence == nullptr) return;  // ended with another choice of its request
  const SequenceId first = sequence->first_choice();
  const SequenceId end = first + sequence->request->num_choices;
  for (SequenceId choice = first; choice < end; ++choice) {
    if (Find(choice) == nullptr) continue;
    TokenEvent event;
    event.kind = TokenEvent::Kind::kFailed;
    // A copy of its own: statuses share their text by a count that this thread and the emitter's
    // would both drop.
    event.status = absl::Status(status.code(), std::string(status.message()));
    End(choice, std::move(event), report);
  }
}

StepReport EngineCore::EndQueued(const absl::Status& status) {
  StepReport report;
  std::vector<SequenceId> ids;
  for (const auto& [id, sequence] : waiting_) {
    if (sequence->choice == 0 && !sequence->admitted_before()) ids.push_back(id);
  }
  for (const SequenceId id : ids) EndWith(id, status, &report);
  ExportGauges();
  PostEvents();
  return report;
}

StepReport EngineCore::EndAll(const absl::Status& status) {
  StepReport report;
  std::vector<SequenceId> ids;
  for (const SequenceMap* map : {&waiting_, &running_}) {
    for (const auto& [id, sequence] : *map) ids.push_back(id);
  }
  for (const SequenceId id : ids) EndWith(id, status, &report);
  ExportGauges();
  PostEvents();
  return report;
}

int64_t EngineCore::NextTimerNs() const {
  int64_t next = kNoDeadline;
  for (const SequenceMap* map : {&waiting_, &running_}) {
    for (const auto& [id, sequence] : *map) {
      next = std::min(next, sequence->request->deadline_ns);
      if (sequence->paused_since_ns != RequestTimes::kUnset) {
        next = std::min(next, sequence->paused_since_ns + options_.slow_reader_timeout_ns);
      }
    }
  }
  return next;
}

uint32_t EngineCore::CountCachedTokens(const std::vector<memory::BlockKey>& keys,
                                       uint32_t prompt_tokens) const {
  const size_t most = (prompt_tokens - 1) / kernels::kBlockTokens;
  const std::span<const memory::BlockKey> usable(keys.data(), std::min(keys.size(), most));
  return kernels::kBlockTokens * std::max(kv_->CountCached(memory::Residency::kDevice, usable),
                                          kv_->CountCached(memory::Residency::kTiered, usable));
}

void EngineCore::PostEvents() {
  if (events_.empty()) return;
  output_->Post(std::move(events_));
  events_.clear();
}

void EngineCore::ExportGauges() {
  int64_t waiting_tokens = 0;
  for (const auto& [id, sequence] : waiting_) waiting_tokens += sequence->num_tokens();
  int64_t paused = 0;
  for (const auto& [id, sequence] : running_) {
    if (sequence->paused_since_ns != RequestTimes::kUnset) ++paused;
  }
  const memory::KvCounts counts = kv_->frame_counts();
  const memory::KvCounts host = kv_->host_counts();
  stats_->waiting = static_cast<int64_t>(waiting_.size());
  stats_->waiting_tokens = waiting_tokens;
  stats_->running = static_cast<int64_t>(running_.size());
  stats_->paused = paused;
  stats_->blocks_held = counts.held;
  stats_->blocks_cached = counts.cached;
  stats_->blocks_free = counts.free;
  stats_->host_blocks_held = host.held;
  stats_->host_blocks_cached = host.cached;
  stats_->host_blocks_free = host.free;
}

void EngineCore::CheckInvariants() const {
  kv_->CheckInvariants();
  AUGUR_CHECK(kv_->num_open() == static_cast<int>(running_.size()));
  AUGUR_CHECK(static_cast<int>(running_.size()) <= options_.max_batch);
  for (const auto& [id, sequence] : running_) {
    AUGUR_CHECK(!waiting_.contains(id));
    AUGUR_CHECK(sequence->num_computed < sequence->num_tokens());
    const memory::SequenceKv& kv = kv_->sequence(id);
    const size_t blocks = kv.tiered() ? kv.host_blocks.size() : kv.frames.size();
    AUGUR_CHECK(BlocksFor(sequence->num_computed) <= static_cast<int>(blocks));
  }
  int saved = 0;
  for (const auto& [id, sequence] : waiting_) {
    AUGUR_CHECK(sequence->num_computed == 0 || kv_->is_saved(id));
    saved += kv_->is_saved(id) ? 1 : 0;
  }
  AUGUR_CHECK(kv_->num_saved() == saved);
}

}  // namespace augur::engine
