// augur-infinigen-basis: makes the file that augurd's key infinigen_basis names, from a model and a
// text. Exit status: 0 written, 2 a wrong command line, 1 everything else, with one line that says
// why.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "engine/calibration/infinigen_calibration.h"

int main(int argc, char** argv) {
  augur::engine::CalibrationOptions options;
  CLI::App app(
      "Makes a basis for the attention policy infinigen: runs a model over a text and takes, for "
      "each layer and KV head, the directions that its queries use most.",
      "augur-infinigen-basis");
  app.add_option("--model", options.model, "Hugging Face folder with tokenizer.json")->required();
  app.add_option("--text", options.texts, "UTF-8 files, read one after the other")->required();
  app.add_option("--out", options.out, "safetensors file to write")->required();
  app.add_option("--tokens", options.tokens, "tokens of the text that are used (2048)");
  app.add_option("--threads", options.threads, "threads that compute (1)")
      ->check(CLI::Range(1, 1024));
  // CLI11 reports by exception: --help too, with status 0.
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::Error& error) {
    std::fprintf(stderr, "augur-infinigen-basis: %s (see --help)\n", error.what());
    return 2;
  }
  const absl::Status status = augur::engine::CalibrateInfinigen(options);
  if (!status.ok()) {
    const std::string message(status.message());
    std::fprintf(stderr, "augur-infinigen-basis: %s\n", message.c_str());
    return 1;
  }
  std::printf("%s: written\n", options.out.c_str());
  return 0;
}
