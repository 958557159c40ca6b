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

constexpr std::array kFirstNames = {"Mira",  "Jonas", "Elena", "Tomas", "Clara", "Felix",
                                    "Nadia", "Oscar", "Petra", "Simon", "Wanda", "Bruno"};
constexpr std::array kLastNames = {"Holt",   "Lindgren", "Moreau", "Novak", "Baker", "Castro",
                                   "Fisher", "Granger",  "Keller", "Otto",  "Price", "Quinn"};
constexpr std::array kTrades = {"baker",   "painter", "teacher", "sailor", "carpenter",
                                "surgeon", "pilot",   "tailor",  "farmer", "printer"};

constexpr int kValuesOfKey = 4;   // multi-value
constexpr int kKeysOfQuery = 4;   // multi-query
constexpr int kNamesOfChain = 5;  // variables

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

// `count` different keys in a drawn order; beyond the pairs of words a number tells them apart.
std::vector<std::string> NeedleKeys(size_t count, SeededDraw* draw) {
  std::vector<std::string> keys = HyphenPairs(kAdjectives, kNouns);
  const size_t pairs = keys.size();
  for (size_t i = pairs; i < count; ++i) {
    keys.push_back(absl::StrCat(keys[i % pairs], "-", i / pairs + 1));
  }
  draw->Shuffle(&keys);
  keys.resize(count);
  return keys;
}

std::string NeedleSentence(const std::string& key, const std::string& number) {
  return absl::StrCat("One of the special magic numbers for ", key, " is: ", number, ".");
}

// 9 x 9 x 8 x 7 x 6 x 5 x 4 such numbers; a tenth of them keeps the draw short.
constexpr int kMaxNumbers = 54'432;

Fact NeedleFact(const std::string& key, std::string number) {
  return {NeedleSentence(key, number),
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
  const std::vector<std::string> keys = NeedleKeys(count, draw);
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

std::vector<Fact> MultiValueFacts(size_t count, SeededDraw* draw) {
  const std::vector<std::string> keys = NeedleKeys(count, draw);
  NumberSource numbers(draw);
  std::vector<Fact> facts;
  for (const std::string& key : keys) {
    Fact fact = NeedleFact(key, numbers.Next());
    fact.question =
        absl::StrCat("\nQuestion: What are all the special magic numbers for ", key,
                     " mentioned in the text? The special magic numbers for ", key, " are");
    for (int i = 1; i < kValuesOfKey; ++i) {
      fact.more_answers.push_back(numbers.Next());
      fact.more_sentences.push_back(NeedleSentence(key, fact.more_answers.back()));
    }
    facts.push_back(std::move(fact));
  }
  return facts;
}

std::vector<Fact> MultiQueryFacts(size_t count, SeededDraw* draw) {
  const std::vector<std::string> keys = NeedleKeys(count * kKeysOfQuery, draw);
  NumberSource numbers(draw);
  std::vector<Fact> facts;
  for (size_t first = 0; first < keys.size(); first += kKeysOfQuery) {
    Fact fact = NeedleFact(keys[first], numbers.Next());
    std::string all = keys[first];
    for (int i = 1; i < kKeysOfQuery; ++i) {
      const std::string& key = keys[first + i];
      absl::StrAppend(&all, i + 1 == kKeysOfQuery ? " and " : ", ", key);
      fact.more_answers.push_back(numbers.Next());
      fact.more_sentences.push_back(NeedleSentence(key, fact.more_answers.back()));
    }
    fact.question =
        absl::StrCat("\nQuestion: What are the special magic numbers for ", all,
                     " mentioned in the text? The special magic numbers for ", all, " are");
    facts.push_back(std::move(fact));
  }
  return facts;
}

std::vector<Fact> VariableFacts(size_t count, SeededDraw* draw) {
  const std::vector<std::string> names = NeedleKeys(count * kNamesOfChain, draw);
  NumberSource numbers(draw);
  std::vector<Fact> facts;
  for (size_t first = 0; first < names.size(); first += kNamesOfChain) {
    const std::string value = numbers.Next();
    Fact fact = {absl::StrCat("VAR ", names[first], " = ", value, "."),
                 absl::StrCat("\nQuestion: Which variables have the value ", value,
                              ", given directly or through another variable? The variables are"),
                 names[first]};
    for (int i = 1; i < kNamesOfChain; ++i) {
      const std::string& name = names[first + i];
      fact.more_sentences.push_back(absl::StrCat("VAR ", name, " = ", names[first + i - 1], "."));
      fact.more_answers.push_back(name);
    }
    facts.push_back(std::move(fact));
  }
  return facts;
}

std::vector<std::string> PeopleNames(size_t count, SeededDraw* draw) {
  std::vector<std::string> names;
  for (const char* first : kFirstNames) {
    for (const char* last : kLastNames) names.push_back(absl::StrCat(first, " ", last));
  }
  draw->Shuffle(&names);
  names.resize(count);
  return names;
}

template <size_t N>
std::string OneOf(const std::array<const char*, N>& words, SeededDraw* draw) {
  return words[static_cast<size_t>(draw->Below(N))];
}

std::vector<Fact> PeopleFacts(size_t count, SeededDraw* draw) {
  std::vector<Fact> facts;
  for (const std::string& name : PeopleNames(count, draw)) {
    const std::string trade = OneOf(kTrades, draw), city = OneOf(kCityNames, draw);
    const std::string sentence = absl::StrCat(name, " works as a ", trade, " in ", city, ".");
    const bool asks_city = draw->Below(2) == 0;
    facts.push_back(asks_city ? Fact{sentence,
                                     absl::StrCat("\nQuestion: In which city does ", name,
                                                  " work? ", name, " works in"),
                                     city}
                              : Fact{sentence,
                                     absl::StrCat("\nQuestion: What is the trade of ", name, "? ",
                                                  name, " works as a"),
                                     trade});
  }
  return facts;
}

std::vector<Fact> TwoStepFacts(size_t count, SeededDraw* draw) {
  std::vector<std::string> things = HyphenPairs(kColours, kPlaces);
  draw->Shuffle(&things);
  const std::vector<std::string> names = PeopleNames(count, draw);
  std::vector<Fact> facts;
  for (size_t i = 0; i < count; ++i) {
    const std::string city = OneOf(kCityNames, draw);
    Fact fact = {absl::StrCat("The owner of the ", things[i], " is ", names[i], "."),
                 absl::StrCat("\nQuestion: In which city does the owner of the ", things[i],
                              " live? The owner of the ", things[i], " lives in"),
                 city};
    fact.more_sentences.push_back(absl::StrCat(names[i], " lives in ", city, "."));
    facts.push_back(std::move(fact));
  }
  return facts;
}

struct TaskRow {
  RecallTask task;
  const char* name;
  int max_facts;  // of a document
  bool has_distractors;
  double distractor_share;
  int answers;                                                // of a question
  std::vector<Fact> (*make)(size_t count, SeededDraw* draw);  // null: a list of words
};

constexpr int kPairsOfWords = static_cast<int>(kAdjectives.size() * kNouns.size());
constexpr int kPeople = static_cast<int>(kFirstNames.size() * kLastNames.size());
constexpr int kMaxKeys = kMaxNumbers / kValuesOfKey;

constexpr TaskRow kTasks[] = {
    {RecallTask::kNeedle, "needle", kPairsOfWords, false, 0, 1, NeedleFacts},
    {RecallTask::kManyKeys, "many-keys", kPairsOfWords, true, 0, 1, NeedleFacts},
    {RecallTask::kCities, "cities", static_cast<int>(kCityNames.size()), true, 0, 1, CityFacts},
    {RecallTask::kPairs, "pairs", kMaxNumbers / 2, true, 0, 1, PairFacts},
    {RecallTask::kHalfKeys, "half-keys", kMaxNumbers, true, 0.5, 1, NeedleFacts},
    {RecallTask::kOnlyKeys, "only-keys", kMaxNumbers, true, 1, 1, NeedleFacts},
    {RecallTask::kMultiValue, "multi-value", kMaxKeys, true, 0, kValuesOfKey, MultiValueFacts},
    {RecallTask::kMultiQuery, "multi-query", kMaxKeys, true, 0, kKeysOfQuery, MultiQueryFacts},
    {RecallTask::kVariables, "variables", kMaxKeys, true, 0, kNamesOfChain, VariableFacts},
    {RecallTask::kCommonWords, "common-words", 1, false, 0, 10, nullptr},
    {RecallTask::kFrequentWords, "frequent-words", 1, false, 0, 3, nullptr},
    {RecallTask::kPeople, "people", kPeople, true, 0, 1, PeopleFacts},
    {RecallTask::kTwoSteps, "two-steps", kPeople, true, 0, 1, TwoStepFacts},
};

const TaskRow& RowOf(RecallTask task) { return kTasks[static_cast<size_t>(task)]; }

}  // namespace

const char* TaskName(RecallTask task) { return RowOf(task).name; }

absl::StatusOr<RecallTask> TaskOf(std::string_view name) {
  std::string known;
  for (const RecallTask task : kRecallTasks) {
    if (name == TaskName(task)) return task;
    absl::StrAppend(&known, known.empty() ? "" : ", ", TaskName(task));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--tasks: \"", std::string(name), "\" is no task; there are ", known));
}

bool HasDistractors(RecallTask task) { return RowOf(task).has_distractors; }

double DistractorShare(RecallTask task) { return RowOf(task).distractor_share; }

bool IsWordList(RecallTask task) { return RowOf(task).make == nullptr; }

int64_t MostAnswers(RecallTask task) { return RowOf(task).answers; }

int MaxFacts(RecallTask task) { return RowOf(task).max_facts; }

absl::StatusOr<std::vector<Fact>> MakeFacts(RecallTask task, int count, SeededDraw* draw) {
  if (count < 1 || count > MaxFacts(task)) {
    return absl::InvalidArgumentError(absl::StrCat("--questions and --distractors: ", count,
                                                   " facts in a document of task ", TaskName(task),
                                                   ", at most ", MaxFacts(task)));
  }
  if (IsWordList(task)) return absl::InternalError("a list of words has no facts");
  return RowOf(task).make(static_cast<size_t>(count), draw);
}

}  // namespace augur::loadtest
