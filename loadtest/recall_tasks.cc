#include "loadtest/recall_tasks.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace augur::loadtest {
namespace {

constexpr std::array kAdjectives = {"amber",   "silver", "crimson", "quiet",  "distant", "hollow",
                                    "bright",  "frozen", "gentle",  "rapid",  "golden",  "narrow",
                                    "ancient", "misty",  "velvet",  "copper", "broken",  "hidden",
                                    "lonely",  "marble", "scarlet", "silent", "stormy",  "wooden"};
constexpr std::array kNouns = {"falcon",  "harbor", "meadow",  "lantern", "canyon", "badger",
                               "orchard", "anchor", "thistle", "comet",   "river",  "window",
                               "garden",  "candle", "forest",  "mirror",  "pebble", "rocket",
                               "saddle",  "tunnel", "valley",  "walnut",  "winter", "island"};
constexpr std::array kColours = {"red",   "blue", "green", "white", "black", "grey",
                                 "brown", "pink", "old",   "new",   "tall",  "round"};
constexpr std::array kPlaces = {"barn",   "mill", "tower", "bridge", "gate",  "house",
                                "chapel", "well", "farm",  "inn",    "light", "dock"};
// Cities that the bundled model copies in at least four of five places; most others it misspells
// wherever they stand, whatever the attention (README).
constexpr std::array kCityNames = {"Berlin", "Madrid", "Prague", "Warsaw", "Dublin",  "Lisbon",
                                   "Athens", "Delhi",  "Sydney", "Boston", "Denver",  "Lima",
                                   "Bogota", "Manila", "Perth",  "Accra",  "Jakarta", "Auckland"};

template <size_t A, size_t B>
std::vector<std::string> HyphenPairs(const std::array<const char*, A>& first,
                                     const std::array<const char*, B>& second) {
  std::vector<std::string> pairs;
  for (const char* a : first) {
    for (const char* b : second) pairs.push_back(absl::StrCat(a, "-", b));
  }
  return pairs;
}

// Numbers of seven digits that all differ, none twice. The bundled model copies a number digit by
// digit and sometimes loses count in a run of equal ones, whatever the attention.
class NumberSource {
 public:
  explicit NumberSource(SeededDraw* draw) : draw_(draw) {}

  std::string Next() {
    for (;;) {
      std::vector<char> digits = {'0', '1', '2', '3', '4', '5', '6', '7', '8', '9'};
      draw_->Shuffle(&digits);
      if (digits[0] == '0') continue;
      const std::string number(digits.begin(), digits.begin() + 7);
      if (given_.insert(number).second) return number;
    }
  }

 private:
  SeededDraw* const draw_;
  std::set<std::string> given_;
};

// 9 x 9 x 8 x 7 x 6 x 5 x 4 such numbers; a tenth of them keeps the draw short.
constexpr int kMaxNumbers = 54'432;

Fact NeedleFact(const std::string& key, std::string number) {
  return {absl::StrCat("One of the special magic numbers for ", key, " is: ", number, "."),
          absl::StrCat("\nQuestion: What is the special magic number for ", key,
                       " mentioned in the text? The special magic number for ", key, " is"),
          std::move(number)};
}

Fact CityFact(const std::string& key, const std::string& city) {
  return {absl::StrCat("The keeper of the ", key, " lives in ", city, "."),
          absl::StrCat("\nQuestion: In which city does the keeper of the ", key,
                       " live? The keeper of the ", key, " lives in"),
          city};
}

Fact PairFact(const std::string& key, std::string code) {
  return {absl::StrCat("The code of ", key, " is ", code, "."),
          absl::StrCat("\nQuestion: What is the code of ", key, "? The code of ", key, " is"),
          std::move(code)};
}

std::vector<Fact> NeedleFacts(size_t count, SeededDraw* draw) {
  std::vector<std::string> keys = HyphenPairs(kAdjectives, kNouns);
  draw->Shuffle(&keys);
  NumberSource numbers(draw);
  std::vector<Fact> facts;
  for (size_t i = 0; i < count; ++i) facts.push_back(NeedleFact(keys[i], numbers.Next()));
  return facts;
}

std::vector<Fact> CityFacts(size_t count, SeededDraw* draw) {
  std::vector<std::string> keys = HyphenPairs(kColours, kPlaces);
  std::vector<std::string> cities(kCityNames.begin(), kCityNames.end());
  draw->Shuffle(&keys);
  draw->Shuffle(&cities);
  std::vector<Fact> facts;
  for (size_t i = 0; i < count; ++i) facts.push_back(CityFact(keys[i], cities[i]));
  return facts;
}

std::vector<Fact> PairFacts(size_t count, SeededDraw* draw) {
  NumberSource numbers(draw);
  std::vector<Fact> facts;
  for (size_t i = 0; i < count; ++i) {
    const std::string key = numbers.Next();
    facts.push_back(PairFact(key, numbers.Next()));
  }
  return facts;
}

}  // namespace

const char* TaskName(RecallTask task) {
  switch (task) {
    case RecallTask::kNeedle:
      return "needle";
    case RecallTask::kManyKeys:
      return "many-keys";
    case RecallTask::kCities:
      return "cities";
    case RecallTask::kPairs:
      return "pairs";
  }
  return "";
}

absl::StatusOr<RecallTask> TaskOf(std::string_view name) {
  std::string known;
  for (const RecallTask task : kRecallTasks) {
    if (name == TaskName(task)) return task;
    absl::StrAppend(&known, known.empty() ? "" : ", ", TaskName(task));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--tasks: \"", std::string(name), "\" is no task; there are ", known));
}

bool HasDistractors(RecallTask task) { return task != RecallTask::kNeedle; }

int MaxFacts(RecallTask task) {
  switch (task) {
    case RecallTask::kNeedle:
    case RecallTask::kManyKeys:
      return static_cast<int>(kAdjectives.size() * kNouns.size());
    case RecallTask::kCities:
      return static_cast<int>(kCityNames.size());
    case RecallTask::kPairs:
      return kMaxNumbers / 2;
  }
  return 0;
}

absl::StatusOr<std::vector<Fact>> MakeFacts(RecallTask task, int count, SeededDraw* draw) {
  if (count < 1 || count > MaxFacts(task)) {
    return absl::InvalidArgumentError(absl::StrCat("--questions and --distractors: ", count,
                                                   " facts in a document of task ", TaskName(task),
                                                   ", at most ", MaxFacts(task)));
  }
  const auto size = static_cast<size_t>(count);
  switch (task) {
    case RecallTask::kNeedle:
    case RecallTask::kManyKeys:
      return NeedleFacts(size, draw);
    case RecallTask::kCities:
      return CityFacts(size, draw);
    case RecallTask::kPairs:
      return PairFacts(size, draw);
  }
  return absl::InternalError("a task without facts");
}

}  // namespace augur::loadtest
