#include <nlohmann/json.hpp>

#include <optional>
#include <string>

#include "app/commands.h"
#include "app/volume_size.h"
#include "app/weight_dtype.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/models/assemble.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::app {

namespace {

/// A model of the parts that are given.
void init_of_parts(const InitArguments& arguments) {
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

}  // namespace

ExitCode init(const InitArguments& arguments) {
  start_log(/*quiet=*/false);
  const at::ScalarType dtype = parse_weight_dtype(arguments.dtype).value_or(at::kFloat);
  if (arguments.volume_tower.empty() && (arguments.tower_heads || !arguments.volume_size.empty())) {
    throw usage_error("{}: of which tower? give --volume-tower too",
                      arguments.tower_heads ? "--tower-heads" : "--volume-size");
  }
  if (!arguments.text_model.empty() || !arguments.mask_model.empty() || !arguments.volume_tower.empty()) {
    if (!arguments.dtype.empty()) {
      throw usage_error("--dtype {}: weights of other models keep their type; leave --dtype out", arguments.dtype);
    }
    init_of_parts(arguments);
    return ExitCode::kDone;
  }
  models::write_preset(arguments.preset, arguments.tokenizer, arguments.seed, arguments.out, dtype);
  if (arguments.json) {
    fmt::print("{}\n",
               io::json_text(nlohmann::ordered_json{{"preset", arguments.preset}, {"checkpoint", arguments.out}}));
  } else {
    spdlog::info("{}: a randomly initialized {}", arguments.out, arguments.preset);
  }
  return ExitCode::kDone;
}

}  // namespace vlmtrain::app
