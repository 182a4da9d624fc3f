#include "models/qwen3_vl/variant.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace vlmtrain::models::qwen3_vl {

const std::vector<Variant>& get_variants() {
  static const std::vector<Variant> variants{
      {.model_type = "qwen3_vl",
       .name = "Qwen3-VL",
       .text_model_type = "qwen3",
       .rope_theta = 500000,
       .max_positions = 128000,
       .mrope_sections = {24, 20, 20},
       .has_deepstack = true,
       .deepstack_block_indices = {8, 16, 24},
       .image_token_id = 151655,
       .video_token_id = 151656,
       .moe_model_type = "qwen3_vl_moe",
       .moe_reason = "a mixture of experts; the dense Qwen3-VL are 2B, 4B, 8B and 32B"},
      // Qwen3.6 and Qwen3.8 have this model type, too.
      {.model_type = "qwen3_5",
       .name = "Qwen3.5",
       .text_model_type = "qwen3_5_text",
       .rope_theta = 10000,
       .max_positions = 32768,
       .mrope_sections = {11, 11, 10},
       .has_deepstack = false,
       .deepstack_block_indices = {},
       .image_token_id = 248056,
       .video_token_id = 248057,
       .moe_model_type = "qwen3_5_moe",
       .moe_reason = "a mixture of experts; the dense Qwen3.5 are 0.8B, 2B, 4B, 9B and 27B"}};
  return variants;
}

const Variant& find_variant(const nlohmann::json& config) {
  const auto& variants = get_variants();
  const auto type = config.value("model_type", nlohmann::json());
  const auto it = std::ranges::find_if(variants, [&](const Variant& variant) { return type == variant.model_type; });
  return it == variants.end() ? variants.front() : *it;
}

}  // namespace vlmtrain::models::qwen3_vl
