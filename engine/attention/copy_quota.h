// How many CTAs may copy while a step computes, governed by what steps have taken.
//
// More CTAs that copy make layers wait less for late pages and cost compute: every SM that a copy
// holds sends some of a product's CTAs into a second wave. Neither is known beforehand; what is
// known bounds the search:
//
//   - Under one load a step's time is about unimodal over the number of CTAs.
//   - More CTAs can save at most the waits there are. Where waits are nothing only fewer are worth
//     a trial.
//   - Steps of one load are alike to about a percent, so a few of each number tell.
//
// A new load is searched: some steps with a number of CTAs, then with a neighbour on the side that
// may gain, until none may, or after kSearchSteps at most; then the best is held. While it is held,
// one neighbour is tried now and then, and when steps become longer or shorter, or
// wait or fetch otherwise than they did, the search begins anew from what is held. Measurements
// come some steps late and are told apart by the plan that they belong to.
//
// A load is whatever steps are alike in (a recorded graph); it is a number to this class. With
// min_ctas == max_ctas the quota is fixed and measurements count for nothing.
//
// Thread: the engine's. Ownership: values; all memory is taken at start. Failure: none.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace augur::engine {

struct CopyQuotaOptions {
  int min_ctas = 4;
  int max_ctas = 4;
  auto operator<=>(const CopyQuotaOptions&) const = default;
};

// Numbers of CTAs that are tried, ascending: 1, 2, 3, 4, 6, 8, 12, ... and both bounds.
std::vector<int> QuotaRungs(const CopyQuotaOptions& options);

enum class QuotaMove {
  kStay,    // as the step before of this load
  kTry,     // begins to try `rung`
  kSettle,  // from now on `rung` is held
  kProbe,   // one look at a neighbour of what is held
  kSearch,  // what is held no longer takes what it did: begins anew there
};

// For one step.
struct QuotaPlan {
  int load = -1;  // below 0: the step was not planned
  int rung = 0;   // of QuotaRungs
  int ctas = 0;
  QuotaMove move = QuotaMove::kStay;
  uint64_t step = 0;  // counts the load's steps

  std::string Describe() const;
};

// Of one step.
struct CopyMeasurement {
  double step_ns = 0;  // on the device, from its first op to its last
  double wait_ns = 0;  // of it, that layers waited for pages
  double pages = 0;    // fetched
};

class CopyQuota {
 public:
  static constexpr int kTrialSteps = 3;    // of each number that is tried
  static constexpr int kSearchSteps = 15;  // of all, at most
  static constexpr int kProbeEvery = 192;  // steps; doubled after each probe in vain
  static constexpr int kMostBetweenProbes = 8 * kProbeEvery;
  static constexpr int kProbeSoon = kProbeEvery / 4;  // where the last one, or a drift, says so

  CopyQuota(const CopyQuotaOptions& options, int num_loads);

  // For the next step of the load; nothing changes until it is committed.
  QuotaPlan Plan(int load) const;
  void Commit(const QuotaPlan& plan);
  // Late, and in the order of plans; steps may be left out.
  void Observe(const QuotaPlan& plan, const CopyMeasurement& measured);

  const CopyQuotaOptions& options() const { return options_; }
  // What a new load begins with.
  int first_ctas() const { return rungs_[FirstRung()]; }
  std::string Describe(int load) const;

 private:
  using Sample = CopyMeasurement;
  // A number of CTAs in the search under way.
  struct Trial {
    int issued = 0;  // steps planned with it
    int measured = 0;
    std::array<Sample, kTrialSteps> samples = {};  // the first ones
    bool tried() const { return measured > 0; }
  };
  struct Load {
    std::vector<Trial> trials;  // [rungs]
    bool settled = false;
    bool probing = false;  // the search is one look at a neighbour
    int rung = 0;          // tried now, or held
    int held = 0;
    int search_steps = 0;
    uint64_t steps = 0;       // planned
    uint64_t first_step = 0;  // measurements of earlier ones count for nothing
    // While it is held.
    int held_steps = 0;
    int between_probes = kProbeEvery;
    bool probe_fewer = true;
    int measured = 0;
    std::array<Sample, 4> last = {};  // measured % 4 is the oldest
    Sample usual = {};                // a slow average
    Sample first = {};                // what it was when enough had been measured
    double spread = 0;                // of step_ns around it, as a share
  };

  int FirstRung() const;
  static Sample MedianOf(const Trial& trial);
  int BestOf(const Load& load) const;
  bool IsTrialOver(const Load& load) const;
  int NextTrial(const Load& load) const;
  int ProbeOf(const Load& load) const;
  static bool HasDrifted(const Load& load);
  static bool IsProbeDue(const Load& load);
  static void BeginSearch(int rung, Load* load);
  void BeginProbe(int rung, Load* load);
  static void Settle(int rung, Load* load);
  static void Note(const Sample& sample, Load* load);

  const CopyQuotaOptions options_;
  const std::vector<int> rungs_;
  std::vector<Load> loads_;
};

}  // namespace augur::engine
