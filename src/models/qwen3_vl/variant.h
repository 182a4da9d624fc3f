#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::models::qwen3_vl {

/// A model type with this tower and processor, and what its config.json may leave out.
struct Variant {
  std::string_view model_type;
  std::string_view name;             ///< in errors
  std::string_view text_model_type;  ///< that of LlamaConfig::from_json()
  double rope_theta;
  int64_t max_positions;
  std::vector<int64_t> mrope_sections;
  bool has_deepstack;
  std::vector<int64_t> deepstack_block_indices;
  int64_t image_token_id, video_token_id;
  std::string_view moe_model_type;  ///< the mixture of experts of the same generation, which is not supported
  std::string_view moe_reason;      ///< why, for errors
};

/// Returns the variants: Qwen3-VL and Qwen3.5.
const std::vector<Variant>& get_variants();

/// Returns the variant of a config.json. Qwen3-VL if its model_type is neither's.
const Variant& find_variant(const nlohmann::json& config);

}  // namespace vlmtrain::models::qwen3_vl
