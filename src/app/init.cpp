#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <optional>
#include <string>

#include "app/command.h"
#include "app/volume_size.h"
#include "vlmtrain/base/error.h"
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
  std::string volume_tower;
  std::optional<int64_t> tower_heads;
  std::string volume_size;
  uint64_t seed = 0;
  bool json = false;
};

/// A model of the parts that are given.
void init_of_parts(const Arguments& arguments) {
  const auto made = models::assemble({.preset = arguments.preset,
                                      .text_model = arguments.text_model,
                                      .mask_model = arguments.mask_model,
                                      .volume_tower = arguments.volume_tower,
                                      .tower_heads = arguments.tower_heads,
                                      .volume_size = read_volume_size(arguments.volume_size),
                                      .tokenizer = arguments.tokenizer,
                                      .seed = arguments.seed},
                                     arguments.out);
  if (!arguments.json) {
    const bool has_masks = made.mask_token_id != 0;
    spdlog::info("{}: a {} of these parts{}", arguments.out, arguments.preset,
                 has_masks ? fmt::format("; its mask token has id {}", made.mask_token_id) : "");
    return;
  }
  nlohmann::ordered_json result{
      {"preset", arguments.preset},
      {"checkpoint", arguments.out},
      {"tensors",
       {{"text_model", made.from_text_model}, {"mask_model", made.from_mask_model}, {"at_random", made.at_random}}},
      {"vocab_size", made.vocabulary}};
  if (made.mask_token_id != 0) result["mask_token_id"] = made.mask_token_id;
  if (!arguments.volume_tower.empty()) result["tensors"]["volume_tower"] = made.from_volume_tower;
  fmt::print("{}\n", io::json_text(result));
}

ExitCode init(const Arguments& arguments) {
  start_log(/*quiet=*/false);
  if (arguments.volume_tower.empty() && (arguments.tower_heads || !arguments.volume_size.empty())) {
    throw usage_error("{}: of which tower? give --volume-tower too",
                      arguments.tower_heads ? "--tower-heads" : "--volume-size");
  }
  if (!arguments.text_model.empty() || !arguments.mask_model.empty() || !arguments.volume_tower.empty()) {
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
                  "folder of a LLaVA or LLaVA-Med whose weights, tokenizer and config a prs-med preset takes over; for "
                  "brain-llava also of a Llama, Mistral or Qwen2, of which the text model is taken")
      ->check(not_empty());
  command
      .add_option(
          "--mask-model", arguments->mask_model,
          "mask encoder and decoder for a prs-med preset: a .pt, .pth or .safetensors file of SAM or MobileSAM, "
          "or the folder of transformers' SamModel")
      ->check(CLI::ExistingPath);
  command
      .add_option(
          "--volume-tower", arguments->volume_tower,
          "tower for a brain-llava preset: a .pt, .pth or .safetensors file with the weights of MONAI's ViT, or "
          "the folder of one")
      ->check(CLI::ExistingPath);
  command.add_option("--tower-heads", arguments->tower_heads, "its heads [the preset's; else one for 64 features]")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  command.add_option(
      "--volume-size", arguments->volume_size,
      "the volumes that it has positions for, in voxels: XxYxZ or one number for all three [the preset's; "
      "else a cube]");
  command.add_option("--seed", arguments->seed, "seed of the weights that start at random")
      ->check(not_negative())
      ->capture_default_str();
  command.add_flag("--json", arguments->json, "print the result as one JSON object on stdout");
  return [arguments] { return init(*arguments); };
}

}  // namespace vlmtrain::app
