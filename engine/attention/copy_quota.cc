#include "engine/attention/copy_quota.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace augur::engine {
namespace {

// As steps are alike to no better than this, fewer CTAs are taken where they cost no more.
constexpr double kWorthwhile = 0.005;
// What a probe must find: it competes with something that is known to be good.
constexpr double kWorthAMove = 0.01;
// Waits, as a share of a step. Below the first nothing is to be had from more CTAs; below the
// second fewer are tried before more, as what they may save is not bounded by anything known; above
// the third two rungs are taken at once.
constexpr double kNoWait = 0.01;
constexpr double kSomeWait = 0.05;
constexpr double kLongWait = 0.08;
// A number of CTAs that is so much worse than the best is not tried to the end.
constexpr double kHopeless = 0.05;
constexpr double kPlateau = 0.03;
constexpr int kHopelessSteps = 2;
// Steps that are held: changes that begin a search, beside several times the steps' own spread.
constexpr int kUsualSteps = 8;  // measured before anything can be said to have changed
constexpr double kSlowDrift = 0.03;
constexpr double kSlowSpreads = 3;
constexpr double kFastDrift = 0.05;
constexpr double kFastSpreads = 5;
constexpr double kOtherPages = 0.3;
constexpr double kCreep = 0.02;  // of waits, since the number is held: time to look around
constexpr double kUsualWeight = 1.0 / 32;
constexpr double kMostSpread = 0.04;  // that one step adds: something else may have held it up

const char* NameOf(QuotaMove move) {
  switch (move) {
    case QuotaMove::kStay:
      return "stay";
    case QuotaMove::kTry:
      return "try";
    case QuotaMove::kSettle:
      return "settle";
    case QuotaMove::kProbe:
      return "probe";
    case QuotaMove::kSearch:
      return "search";
  }
  return "?";
}

}  // namespace

std::vector<int> QuotaRungs(const CopyQuotaOptions& options) {
  AUGUR_CHECK(options.min_ctas > 0 && options.min_ctas <= options.max_ctas);
  std::vector<int> rungs = {options.min_ctas};
  // 1, 2, 3, then two numbers to each doubling.
  for (int ctas = 1, up = 1; ctas < options.max_ctas; ctas += up) {
    if (ctas > options.min_ctas) rungs.push_back(ctas);
    if (ctas >= 4 && (ctas & (ctas - 1)) == 0) up = ctas / 2;
  }
  if (options.max_ctas > options.min_ctas) rungs.push_back(options.max_ctas);
  return rungs;
}

std::string QuotaPlan::Describe() const {
  return absl::StrFormat("load %d step %d: %s %d", load, step, NameOf(move), ctas);
}

CopyQuota::CopyQuota(const CopyQuotaOptions& options, int num_loads)
    : options_(options), rungs_(QuotaRungs(options)), loads_(num_loads) {
  for (Load& load : loads_) {
    load.trials.resize(rungs_.size());
    BeginSearch(FirstRung(), &load);
  }
}

// Four fill a link of 51 GB/s with pages of 16 KiB and more, whatever computes beside them.
int CopyQuota::FirstRung() const {
  constexpr int kFirst = 4;
  const auto above = std::upper_bound(rungs_.begin(), rungs_.end(), kFirst);
  return std::max(0, static_cast<int>(above - rungs_.begin()) - 1);
}

void CopyQuota::BeginSearch(int rung, Load* load) {
  std::fill(load->trials.begin(), load->trials.end(), Trial{});
  load->settled = false;
  load->probing = false;
  load->rung = rung;
  load->held = rung;
  load->search_steps = 0;
  load->first_step = load->steps;
  load->between_probes = kProbeEvery;
}

// What is held is known; the search has room for one more.
void CopyQuota::BeginProbe(int rung, Load* load) {
  const int held = load->held;
  const int between = load->between_probes;
  Sample now;
  for (const Sample& sample : load->last) {
    now.step_ns += sample.step_ns / load->last.size();
    now.wait_ns += sample.wait_ns / load->last.size();
    now.pages += sample.pages / load->last.size();
  }
  BeginSearch(rung, load);
  load->held = held;
  load->between_probes = between;
  load->probing = true;
  load->search_steps = kSearchSteps - kTrialSteps;
  load->trials[held] = {.issued = kTrialSteps, .measured = 1, .samples = {now}};
}

void CopyQuota::Settle(int rung, Load* load) {
  if (load->probing) {
    // Where one probe has found something the next one follows soon, on the same side; where it was
    // far worse it cost more than others, and later ones need not see that soon.
    const bool found = rung != load->held;
    const Trial& probe = load->trials[load->rung];
    const bool hopeless =
        probe.tried() &&
        MedianOf(probe).step_ns > MedianOf(load->trials[load->held]).step_ns * (1 + kHopeless);
    const int longer = (hopeless ? 4 : 2) * load->between_probes;
    load->between_probes = found ? kProbeSoon : std::min(longer, kMostBetweenProbes);
    if (!found) load->probe_fewer = !load->probe_fewer;
  } else {
    const Sample best = MedianOf(load->trials[rung]);
    load->probe_fewer = best.wait_ns < kSomeWait * best.step_ns;
  }
  load->settled = true;
  load->probing = false;
  load->rung = rung;
  load->held = rung;
  load->held_steps = 0;
  load->measured = 0;
  load->usual = {};
  load->first = {};
  load->spread = 0;
  load->first_step = load->steps;
}

// By length: the median, so that one step that something else has held up does not count.
CopyQuota::Sample CopyQuota::MedianOf(const Trial& trial) {
  static_assert(kTrialSteps == 3);
  const Sample& first = trial.samples[0];
  const Sample& second = trial.samples[1];
  if (trial.measured < 2) return first;
  const Sample& low = first.step_ns < second.step_ns ? first : second;
  const Sample& high = first.step_ns < second.step_ns ? second : first;
  if (trial.measured == 2) {
    return {.step_ns = (low.step_ns + high.step_ns) / 2,
            .wait_ns = (low.wait_ns + high.wait_ns) / 2,
            .pages = (low.pages + high.pages) / 2};
  }
  const Sample& third = trial.samples[2];
  return third.step_ns < low.step_ns ? low : third.step_ns > high.step_ns ? high : third;
}

int CopyQuota::BestOf(const Load& load) const {
  if (load.probing) {
    const Trial& probe = load.trials[load.rung];
    const double held_ns = MedianOf(load.trials[load.held]).step_ns;
    const bool found = probe.tried() && MedianOf(probe).step_ns < held_ns * (1 - kWorthAMove);
    return found ? load.rung : load.held;
  }
  int best = -1;
  double best_ns = 0;
  for (int rung = 0; rung < static_cast<int>(rungs_.size()); ++rung) {
    const Trial& trial = load.trials[rung];
    if (!trial.tried()) continue;
    const double step_ns = MedianOf(trial).step_ns;
    if (best >= 0 && step_ns > best_ns * (1 - kWorthwhile)) continue;
    best = rung;
    best_ns = step_ns;
  }
  return best < 0 ? load.held : best;
}

// Its last measurements may still be on their way: what comes next hangs on the waits mostly.
bool CopyQuota::IsTrialOver(const Load& load) const {
  const Trial& trial = load.trials[load.rung];
  if (!trial.tried()) return false;
  if (trial.issued >= kTrialSteps) return true;
  const int best = BestOf(load);
  return trial.issued >= kHopelessSteps && best != load.rung &&
         MedianOf(trial).step_ns > MedianOf(load.trials[best]).step_ns * (1 + kHopeless);
}

// A rung that may be better than the best one; -1: there is none, or no time for it.
int CopyQuota::NextTrial(const Load& load) const {
  if (load.search_steps + kTrialSteps > kSearchSteps) return -1;
  const int best = BestOf(load);
  const int top = static_cast<int>(rungs_.size()) - 1;
  const Sample found = MedianOf(load.trials[best]);
  const double waits = found.wait_ns / found.step_ns;
  const auto any_tried = [&](int from, int to) {
    return std::any_of(load.trials.begin() + from, load.trials.begin() + to,
                       [](const Trial& trial) { return trial.tried() || trial.issued > 0; });
  };
  const bool may_more = waits > kNoWait && best < top && !any_tried(best + 1, top + 1);
  // The one beside it, where a step of two rungs has passed it over, too.
  const bool may_fewer = best > 0 && !any_tried(best - 1, best);
  if (may_fewer && (waits < kSomeWait || !may_more)) return best - 1;
  // A product's waves come and go with places on SMs, so what fewer CTAs save may come in one step
  // behind several that save nothing: while nothing waits there it costs little to go on.
  const auto fewest = std::find_if(load.trials.begin(), load.trials.end(),
                                   [](const Trial& trial) { return trial.tried(); });
  const int low = static_cast<int>(fewest - load.trials.begin());
  const Sample at_low = MedianOf(*fewest);
  if (low > 0 && load.trials[low - 1].issued == 0 && at_low.wait_ns < kNoWait * at_low.step_ns &&
      at_low.step_ns < found.step_ns * (1 + kPlateau)) {
    return low - 1;
  }
  return may_more ? std::min(top, best + (waits > kLongWait ? 2 : 1)) : -1;
}

// Fewer and more in turn; more only where there are waits to save.
int CopyQuota::ProbeOf(const Load& load) const {
  const double waits = load.usual.wait_ns / load.usual.step_ns;
  const bool may_fewer = load.held > 0;
  const bool may_more = load.held + 1 < static_cast<int>(rungs_.size()) && waits > kNoWait;
  if (may_fewer && (!may_more || load.probe_fewer)) return load.held - 1;
  return may_more ? load.held + 1 : -1;
}

// In time, or when what is usual is no longer what it was, little by little.
bool CopyQuota::IsProbeDue(const Load& load) {
  if (load.measured < kUsualSteps) return false;
  if (load.held_steps >= load.between_probes) return true;
  if (load.held_steps < kProbeSoon) return false;
  const double step_ns = load.first.step_ns;
  return std::abs(load.usual.step_ns - step_ns) > kFastDrift * step_ns ||
         std::abs(load.usual.wait_ns - load.first.wait_ns) > kCreep * step_ns;
}

// By two steps that are far from what was usual, or by four that are a little, on the same side.
bool CopyQuota::HasDrifted(const Load& load) {
  if (load.measured < kUsualSteps) return false;
  const double usual = load.usual.step_ns;
  const double slow = std::max(kSlowDrift, kSlowSpreads * load.spread);
  const double fast = std::max(kFastDrift, kFastSpreads * load.spread);
  const auto all_beyond = [&](int count, double limit, double whole, auto what) {
    int above = 0, below = 0;
    for (int i = 1; i <= count; ++i) {
      const Sample& sample = load.last[(load.measured - i) % load.last.size()];
      const double change = sample.*what - load.usual.*what;
      above += change > limit * whole ? 1 : 0;
      below += change < -limit * whole ? 1 : 0;
    }
    return above == count || below == count;
  };
  return all_beyond(2, fast, usual, &Sample::step_ns) ||
         all_beyond(4, slow, usual, &Sample::step_ns) ||
         all_beyond(2, fast, usual, &Sample::wait_ns) ||
         all_beyond(4, slow, usual, &Sample::wait_ns) ||
         // Where nothing waits it is the pages alone that tell of a lighter load.
         all_beyond(4, kOtherPages, load.usual.pages, &Sample::pages);
}

QuotaPlan CopyQuota::Plan(int index) const {
  const Load& load = loads_.at(index);
  QuotaPlan plan{.load = index, .rung = load.rung, .step = load.steps};
  if (rungs_.size() == 1) {
    plan.rung = 0;
  } else if (load.settled) {
    const int probe = IsProbeDue(load) ? ProbeOf(load) : -1;
    if (HasDrifted(load)) {
      plan.move = QuotaMove::kSearch;
    } else if (probe >= 0) {
      plan.move = QuotaMove::kProbe;
      plan.rung = probe;
    }
  } else if (IsTrialOver(load)) {
    const int next = NextTrial(load);
    plan.move = next >= 0 ? QuotaMove::kTry : QuotaMove::kSettle;
    plan.rung = next >= 0 ? next : BestOf(load);
  }
  plan.ctas = rungs_[plan.rung];
  return plan;
}

void CopyQuota::Commit(const QuotaPlan& plan) {
  Load& load = loads_.at(plan.load);
  AUGUR_CHECK(plan.step == load.steps);
  switch (plan.move) {
    case QuotaMove::kStay:
      break;
    case QuotaMove::kTry:
      load.rung = plan.rung;
      break;
    case QuotaMove::kSettle:
      Settle(plan.rung, &load);
      break;
    case QuotaMove::kProbe:
      BeginProbe(plan.rung, &load);
      break;
    case QuotaMove::kSearch:
      BeginSearch(plan.rung, &load);
      break;
  }
  ++load.steps;
  if (load.settled) {
    ++load.held_steps;
  } else {
    ++load.trials[load.rung].issued;
    ++load.search_steps;
  }
}

void CopyQuota::Observe(const QuotaPlan& plan, const CopyMeasurement& measured) {
  if (plan.load < 0 || rungs_.size() == 1 || measured.step_ns <= 0) return;
  Load& load = loads_.at(plan.load);
  if (plan.step < load.first_step) return;
  if (load.settled) return Note(measured, &load);
  Trial& trial = load.trials[plan.rung];
  if (trial.measured < kTrialSteps) trial.samples[trial.measured++] = measured;
}

void CopyQuota::Note(const Sample& sample, Load* load) {
  const int kept = static_cast<int>(load->last.size());
  const Sample oldest = load->last[load->measured % kept];
  load->last[load->measured % kept] = sample;
  ++load->measured;
  // What is usual knows nothing of the last steps, which are compared with it.
  const int usual_steps = load->measured - kept;
  if (usual_steps < 1) return;
  // A plain average first, then one that forgets.
  const double weight = std::max(kUsualWeight, 1.0 / usual_steps);
  Sample& usual = load->usual;
  if (usual_steps == 1) usual = oldest;
  const double off = std::abs(oldest.step_ns - usual.step_ns) / usual.step_ns;
  load->spread += weight * (std::min(off, kMostSpread) - load->spread);
  usual.step_ns += weight * (oldest.step_ns - usual.step_ns);
  usual.wait_ns += weight * (oldest.wait_ns - usual.wait_ns);
  usual.pages += weight * (oldest.pages - usual.pages);
  if (load->measured == kUsualSteps) load->first = usual;
}

std::string CopyQuota::Describe(int index) const {
  const Load& load = loads_.at(index);
  std::string text =
      absl::StrFormat("load %d: %s %d of %d to %d", index, load.settled ? "holds" : "searches at",
                      rungs_[load.rung], options_.min_ctas, options_.max_ctas);
  for (size_t rung = 0; rung < rungs_.size(); ++rung) {
    if (!load.trials[rung].tried()) continue;
    const Sample median = MedianOf(load.trials[rung]);
    absl::StrAppendFormat(&text, "; %d: %.3f ms, waits %.3f", rungs_[rung], median.step_ns / 1e6,
                          median.wait_ns / 1e6);
  }
  if (load.settled && load.usual.step_ns > 0) {
    absl::StrAppendFormat(&text, "; usual %.3f ms, waits %.3f, spread %.1f %%",
                          load.usual.step_ns / 1e6, load.usual.wait_ns / 1e6, 100 * load.spread);
  }
  return text;
}

}  // namespace augur::engine
