#include "train/kept_choices.h"

#include <fmt/format.h>

#include "vlmtrain/io/json.h"

namespace vlmtrain::train {

nlohmann::ordered_json KeptChoices::to_json(const char* limit_key) const {
  nlohmann::ordered_json json{{"micro_batch_size", choices.micro_batch_size},
                              {"recomputed_vision_blocks", choices.recompute.vision},
                              {"recomputed_language_blocks", choices.recompute.language},
                              {"vision_tiles_per_pass", choices.vision_tiles_per_pass},
                              {"loss_chunk_rows", choices.loss_chunk_rows},
                              {limit_key, limit_bytes}};
  if (choices.recompute.language_attention_kept > 0) {
    json["language_attention_kept"] = choices.recompute.language_attention_kept;
  }
  if (!choices.copies_ahead) json["copies_ahead"] = false;
  if (choices.costs) json["costs"] = choices.costs->to_json();
  return json;
}

KeptChoices KeptChoices::of_json(const nlohmann::ordered_json& json, const char* limit_key, const std::string& source) {
  const auto number = [&](const char* key) { return io::get<int64_t>(json, key, source); };
  KeptChoices kept{.choices = {.micro_batch_size = number("micro_batch_size"),
                               .recompute = {.vision = number("recomputed_vision_blocks"),
                                             .language = number("recomputed_language_blocks")},
                               .vision_tiles_per_pass = number("vision_tiles_per_pass"),
                               .loss_chunk_rows = number("loss_chunk_rows")},
                   .limit_bytes = number(limit_key)};
  if (json.contains("language_attention_kept")) {
    kept.choices.recompute.language_attention_kept = number("language_attention_kept");
  }
  if (json.contains("copies_ahead")) kept.choices.copies_ahead = io::get<bool>(json, "copies_ahead", source);
  if (const auto costs = json.find("costs"); costs != json.end()) {
    kept.choices.costs = planner::CostTable::of_json(*costs, source);
  }
  return kept;
}

planner::FixedChoices fixed_as_kept(const planner::FixedChoices& asked, const planner::Choices& kept) {
  planner::FixedChoices fixed = asked;
  if (!fixed.micro_batch_size) fixed.micro_batch_size = kept.micro_batch_size;
  if (fixed.recompute.is_auto()) fixed.recompute = planner::RecomputeOption::of(kept.recompute);
  if (!fixed.vision_tiles_per_pass) fixed.vision_tiles_per_pass = kept.vision_tiles_per_pass;
  if (!fixed.loss_chunk_rows) fixed.loss_chunk_rows = kept.loss_chunk_rows;
  return fixed;
}

}  // namespace vlmtrain::train
