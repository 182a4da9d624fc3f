#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>

#include "app/command.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::app {

namespace {

struct Arguments {
  std::string preset;
  std::string out;
  std::string tokenizer;
  uint64_t seed = 0;
  bool json = false;
};

ExitCode init(const Arguments& arguments) {
  start_log(/*quiet=*/false);
  models::write_preset(arguments.preset, arguments.tokenizer, arguments.seed, arguments.out);
  if (arguments.json) {
    fmt::print("{}\n",
               io::json_text(nlohmann::ordered_json{{"preset", arguments.preset}, {"checkpoint", arguments.out}}));
  } else {
    spdlog::info("{}: a randomly initialised {}", arguments.out, arguments.preset);
  }
  return ExitCode::kDone;
}

}  // namespace

Action declare_init(CLI::App& command) {
  const auto arguments = std::make_shared<Arguments>();
  command.add_option("--preset", arguments->preset, fmt::format("one of {}", fmt::join(models::preset_names(), ", ")))
      ->required();
  command.add_option("--out", arguments->out, "new folder for the checkpoint")->required()->check(not_empty());
  command.add_option("--tokenizer", arguments->tokenizer, "tokenizer.json, for presets that come without one")
      ->check(CLI::ExistingFile);
  command.add_option("--seed", arguments->seed, "seed of the weights")->check(not_negative())->capture_default_str();
  command.add_flag("--json", arguments->json, "print the result as one JSON object on stdout");
  return [arguments] { return init(*arguments); };
}

}  // namespace vlmtrain::app
