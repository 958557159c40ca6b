#include "loadtest/sweep_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "loadtest/text_file.h"

namespace augur::loadtest {
namespace {

constexpr size_t kMostSweepBytes = 1 << 20;

absl::Status Wrong(const std::string& path, const YAML::Mark& mark, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ":", mark.line + 1, ": ", what));
}

// A list becomes what its option takes: commas between, or for files an argument each.
absl::StatusOr<std::vector<std::string>> ValuesOf(const std::string& path, const std::string& key,
                                                  const YAML::Node& value) {
  if (value.IsScalar()) return std::vector<std::string>{value.Scalar()};
  std::vector<std::string> values;
  for (const YAML::Node& item : value) {
    if (!value.IsSequence() || !item.IsScalar()) {
      return Wrong(path, value.Mark(), absl::StrCat(key, ": expected a value or a list of values"));
    }
    values.push_back(item.Scalar());
  }
  if (values.empty()) {
    return Wrong(path, value.Mark(), absl::StrCat(key, ": expected at least one value"));
  }
  return values;
}

// The file that --sweep names; empty: none.
std::string SweepPath(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--sweep" && i + 1 < argc) return argv[i + 1];
    if (argument.starts_with("--sweep=")) return std::string(argument.substr(8));
  }
  return {};
}

bool IsGiven(int argc, const char* const* argv, const std::string& option) {
  return std::any_of(argv + 1, argv + argc, [&](const std::string_view argument) {
    return argument == option || argument.starts_with(option + "=");
  });
}

}  // namespace

absl::StatusOr<std::vector<std::vector<std::string>>> SweepArguments(const std::string& path,
                                                                     const std::string& text) {
  std::vector<std::vector<std::string>> arguments;
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) return Wrong(path, root.Mark(), "expected keys with values");
    for (const auto& entry : root) {
      const std::string key = entry.first.Scalar();
      if (key == "sweep") return Wrong(path, entry.first.Mark(), "sweep: a sweep names no other");
      const auto values = ValuesOf(path, key, entry.second);
      if (!values.ok()) return values.status();
      std::vector<std::string> option = {absl::StrCat("--", key)};
      option.insert(option.end(), values->begin(), values->end());
      arguments.push_back(std::move(option));
    }
  } catch (const YAML::Exception& error) {
    return Wrong(path, error.mark, error.msg);
  }
  return arguments;
}

absl::StatusOr<std::vector<std::string>> WithSweepFile(int argc, const char* const* argv) {
  std::vector<std::string> all;
  const std::string path = SweepPath(argc, argv);
  if (!path.empty()) {
    const absl::StatusOr<std::string> text = ReadTextFile("--sweep", path, kMostSweepBytes);
    if (!text.ok()) return text.status();
    const auto options = SweepArguments(path, *text);
    if (!options.ok()) return options.status();
    for (const std::vector<std::string>& option : *options) {
      if (!IsGiven(argc, argv, option.front())) all.insert(all.end(), option.begin(), option.end());
    }
  }
  all.insert(all.end(), argv + 1, argv + argc);
  return all;
}

}  // namespace augur::loadtest
