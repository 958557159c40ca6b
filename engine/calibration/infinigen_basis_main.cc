// augur-infinigen-basis: makes the file that augurd's key infinigen_basis names, from a model and a
// text. Exit status: 0 written, 2 a wrong command line, 1 everything else, with one line that says
// why.
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/calibration/infinigen_calibration.h"

namespace augur::engine {
namespace {

constexpr char kUsage[] =
    "usage: augur-infinigen-basis --model DIR --text FILE... --out FILE [--tokens N] [--threads "
    "N]\n"
    "Makes a basis for the attention policy infinigen: runs a model over a text and takes, for "
    "each\n"
    "layer and KV head, the directions that its queries use most.\n"
    "  --model DIR    Hugging Face folder with tokenizer.json\n"
    "  --text FILE    UTF-8 text; several files are read one after the other\n"
    "  --out FILE     safetensors file to write\n"
    "  --tokens N     tokens of the text that are used (2048)\n"
    "  --threads N    threads that compute (as many as CPUs)\n";

bool ReadNumber(std::string_view text, int* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && *number > 0;
}

// What is wrong with the command line; empty: nothing.
std::string ReadArguments(int argc, char** argv, CalibrationOptions* options) {
  std::string flag;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool more_texts = flag == "--text" && !options->texts.empty();
    if (flag.empty() || (more_texts && argument.starts_with("--"))) {
      if (argument != "--model" && argument != "--text" && argument != "--out" &&
          argument != "--tokens" && argument != "--threads") {
        return absl::StrCat("unknown argument ", argument);
      }
      flag = argument;
      continue;
    }
    if (flag == "--text") {
      options->texts.push_back(argument);
      continue;  // until the next flag
    }
    if (flag == "--model") options->model = argument;
    if (flag == "--out") options->out = argument;
    int* number = flag == "--tokens" ? &options->tokens : &options->threads;
    if ((flag == "--tokens" || flag == "--threads") && !ReadNumber(argument, number)) {
      return absl::StrCat(flag, ": expected a positive integer, found ", argument);
    }
    flag.clear();
  }
  if (!flag.empty() && (flag != "--text" || options->texts.empty())) {
    return absl::StrCat(flag, ": expected a value, found none");
  }
  if (options->model.empty()) return "--model is missing";
  if (options->texts.empty()) return "--text is missing";
  if (options->out.empty()) return "--out is missing";
  return {};
}

int Main(int argc, char** argv) {
  if (argc == 2 && (std::string_view(argv[1]) == "--help" || std::string_view(argv[1]) == "-h")) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  CalibrationOptions options;
  const unsigned cpus = std::thread::hardware_concurrency();
  options.threads = cpus == 0 ? 1 : static_cast<int>(cpus);
  const std::string mistake = ReadArguments(argc, argv, &options);
  if (!mistake.empty()) {
    std::fprintf(stderr, "augur-infinigen-basis: %s (see --help)\n", mistake.c_str());
    return 2;
  }
  const absl::Status status = CalibrateInfinigen(options);
  if (!status.ok()) {
    const std::string message(status.message());
    std::fprintf(stderr, "augur-infinigen-basis: %s\n", message.c_str());
    return 1;
  }
  std::printf("%s: written\n", options.out.c_str());
  return 0;
}

}  // namespace
}  // namespace augur::engine

int main(int argc, char** argv) { return augur::engine::Main(argc, argv); }
