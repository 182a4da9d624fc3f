#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>

#include "app/command.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/models/assemble.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::app {

namespace {

struct Arguments {
  std::string preset;
  std::string out;
  std::string tokenizer;
  std::string text_model;
  std::string mask_model;
  uint64_t seed = 0;
  bool json = false;
};

/// A model that draws masks, of the parts that are given.
void init_of_parts(const Arguments& arguments) {
  const auto made = models::assemble({.preset = arguments.preset,
                                      .text_model = arguments.text_model,
                                      .mask_model = arguments.mask_model,
                                      .tokenizer = arguments.tokenizer,
                                      .seed = arguments.seed},
                                     arguments.out);
  if (!arguments.json) {
    spdlog::info("{}: a {} of these parts; its mask token has id {}", arguments.out, arguments.preset,
                 made.mask_token_id);
    return;
  }
  const nlohmann::ordered_json result{
      {"preset", arguments.preset},
      {"checkpoint", arguments.out},
      {"tensors",
       {{"text_model", made.from_text_model}, {"mask_model", made.from_mask_model}, {"at_random", made.at_random}}},
      {"mask_token_id", made.mask_token_id},
      {"vocab_size", made.vocabulary}};
  fmt::print("{}\n", io::json_text(result));
}

ExitCode init(const Arguments& arguments) {
  start_log(/*quiet=*/false);
  if (!arguments.text_model.empty() || !arguments.mask_model.empty()) {
    init_of_parts(arguments);
    return ExitCode::kDone;
  }
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
  command
      .add_option("--tokenizer", arguments->tokenizer,
                  "tokenizer.json, for presets and text models that come without one")
      ->check(CLI::ExistingFile);
  command
      .add_option("--text-model", arguments->text_model,
                  "folder of a LLaVA or LLaVA-Med whose weights, tokenizer and config a prs-med preset takes over")
      ->check(not_empty());
  command
      .add_option(
          "--mask-model", arguments->mask_model,
          "mask encoder and decoder for a prs-med preset: a .pt, .pth or .safetensors file of SAM or MobileSAM, "
          "or the folder of transformers' SamModel")
      ->check(CLI::ExistingPath);
  command.add_option("--seed", arguments->seed, "seed of the weights that start at random")
      ->check(not_negative())
      ->capture_default_str();
  command.add_flag("--json", arguments->json, "print the result as one JSON object on stdout");
  return [arguments] { return init(*arguments); };
}

}  // namespace vlmtrain::app
