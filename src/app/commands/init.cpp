#include <nlohmann/json.hpp>

#include <optional>
#include <string>

#include "app/commands/commands.h"
#include "app/process/device.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/train/hub_references.h"

namespace vlmtrain::app {

namespace {

/// Writes a checkpoint of the preset that is assembled from parts of other models, and reports it.
void write_assembled_model(const InitArguments& arguments) {
  const auto assembled_model =
      models::assemble_checkpoint({.preset = arguments.preset,
                                   .text_model = train::fetch_model_folder(arguments.text_model),
                                   .mask_model = train::fetch_model_folder(arguments.mask_model),
                                   .volume_tower = train::fetch_model_folder(arguments.volume_tower),
                                   .num_tower_heads = arguments.num_tower_heads,
                                   .volume_size = parse_volume_size(arguments.volume_size),
                                   .tokenizer = arguments.tokenizer,
                                   .seed = arguments.seed},
                                  arguments.out);
  if (!arguments.json) {
    const bool predicts_masks = assembled_model.mask_token_id != 0;  // 0 if the model predicts no masks
    spdlog::info("{}: a {} from these parts{}", arguments.out, arguments.preset,
                 predicts_masks ? fmt::format("; its mask token has id {}", assembled_model.mask_token_id) : "");
    return;
  }
  nlohmann::ordered_json result{{"preset", arguments.preset},
                                {"checkpoint", arguments.out},
                                {"tensors",
                                 {{"text_model", assembled_model.num_text_tensors},
                                  {"mask_model", assembled_model.num_mask_tensors},
                                  {"at_random", assembled_model.num_random_tensors}}},
                                {"vocab_size", assembled_model.vocab_size}};
  if (assembled_model.mask_token_id != 0) result["mask_token_id"] = assembled_model.mask_token_id;
  if (!arguments.volume_tower.empty()) result["tensors"]["volume_tower"] = assembled_model.num_volume_tensors;
  fmt::print("{}\n", io::to_json_string(result));
}

}  // namespace

ExitCode init(const InitArguments& arguments) {
  init_logging(/*quiet=*/false);
  const at::ScalarType dtype = parse_weight_dtype(arguments.dtype).value_or(kFloatType);
  if (arguments.volume_tower.empty() && (arguments.num_tower_heads || !arguments.volume_size.empty())) {
    const char* const flag = arguments.num_tower_heads ? "--tower-heads" : "--volume-size";
    if (!models::has_volume_tower(arguments.preset)) {
      throw usage_error("{}: preset {} has no volume tower; omit the option", flag, arguments.preset);
    }
    throw usage_error("{}: requires a tower; give --volume-tower too", flag);
  }
  if (!arguments.text_model.empty() || !arguments.mask_model.empty() || !arguments.volume_tower.empty()) {
    if (!arguments.dtype.empty()) {
      throw usage_error("--dtype {}: weights of other models keep their data type; omit --dtype", arguments.dtype);
    }
    write_assembled_model(arguments);
    return ExitCode::kSuccess;
  }
  models::write_preset_checkpoint(arguments.preset, arguments.tokenizer, arguments.seed, arguments.out, dtype);
  if (arguments.json) {
    fmt::print("{}\n",
               io::to_json_string(nlohmann::ordered_json{{"preset", arguments.preset}, {"checkpoint", arguments.out}}));
  } else {
    spdlog::info("{}: a randomly initialized {}", arguments.out, arguments.preset);
  }
  return ExitCode::kSuccess;
}

}  // namespace vlmtrain::app
