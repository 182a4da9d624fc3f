#include "models/qwen3_vl/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include "models/checkpoints/config_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/memory/device_copy.h"
#include "vlmtrain/nn/layers/activation.h"
#include "vlmtrain/nn/layers/position_embedding.h"

namespace vlmtrain::models::qwen3_vl {

using nlohmann::json;
using nn::Component;
using nn::ParameterScope;

namespace {

/// Returns transformers' defaults for Qwen3-VL that differ from those of a Qwen3 text model.
json make_default_text_config() {
  return {{"rope_theta", 500000.0}, {"max_position_embeddings", 128000}};
}

LlamaConfig read_text_config(const json& text_config, const std::string& source) {
  if (text_config.contains("num_experts")) {
    throw data_error(
        "{}: num_experts: a mixture of experts is not supported; the dense Qwen3-VL are 2B, 4B, 8B and 32B", source);
  }
  json text = make_default_text_config();
  if (!text_config.empty()) text.update(text_config);
  text["model_type"] = "qwen3";
  const auto sections = qwen2_vl::extract_mrope_sections(text, {24, 20, 20}, source);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json rope = get_section(text, key, source);
    if (!rope.empty() && !io::get_or<bool>(rope, "mrope_interleaved", true, source)) {
      throw data_error("{}: {}.mrope_interleaved: false is not supported; Qwen3-VL's axes are interleaved", source,
                       key);
    }
  }
  LlamaConfig config = LlamaConfig::from_json(text, source);
  qwen2_vl::check_mrope_sections(sections, config.head_dim, source);
  // Interleaved sections: height uses pairs 1, 4, 7 …, width 2, 5, 8 …; the last one must exist.
  if (data::kNumPositionAxes * std::max(sections[1], sections[2]) > config.head_dim / 2) {
    throw data_error("{}: mrope_section [{}]: every third of {} pairs is too few for height and width", source,
                     fmt::join(sections, ", "), config.head_dim / 2);
  }
  config.rope.sections = sections;
  config.rope.is_mrope_interleaved = true;
  return config;
}

/// Returns the side of the square table of positions.
int64_t read_position_table_side(const json& vision, const std::string& source) {
  const int64_t num_positions = read_size(vision, "num_position_embeddings", 2304, kMaxPositions, source);
  const auto side = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(num_positions))));
  if (side * side != num_positions) {
    throw data_error("{}: num_position_embeddings {} is not a square, but the position table must be", source,
                     num_positions);
  }
  return side;
}

VisionConfig read_vision_config(const json& vision, const LlamaConfig& text, const std::string& source) {
  VisionConfig config;
  json config_with_defaults{{"depth", 27}, {"patch_size", 16}};
  if (!vision.empty()) config_with_defaults.update(vision);
  static_cast<qwen2_vl::VisionConfig&>(config) = qwen2_vl::read_common_vision_config(config_with_defaults, source);
  config.uses_qwen2_5_layers = false;
  config.first_linear_name = "linear_fc1";
  config.second_linear_name = "linear_fc2";
  config.has_patch_bias = true;
  config.hidden_size = io::get_or<int64_t>(vision, "hidden_size", 1152, source);
  config.intermediate_size = io::get_or<int64_t>(vision, "intermediate_size", 4304, source);
  config.out_hidden_size = io::get_or<int64_t>(vision, "out_hidden_size", 3584, source);
  config.activation = parse_activation(io::get_or<std::string>(vision, "hidden_act", "gelu_pytorch_tanh", source),
                                       "hidden_act", source);
  config.position_table_side = read_position_table_side(vision, source);
  qwen2_vl::check_vision_sizes(config, source);
  config.deepstack_block_indices =
      io::get_or<std::vector<int64_t>>(vision, "deepstack_visual_indexes", config.deepstack_block_indices, source);
  const auto& blocks = config.deepstack_block_indices;
  if (std::ranges::adjacent_find(blocks, std::greater_equal()) != blocks.end() ||
      (!blocks.empty() && (blocks.front() < 0 || blocks.back() >= config.num_blocks))) {
    throw data_error("{}: deepstack_visual_indexes [{}] are not ascending blocks of the {} (depth)", source,
                     fmt::join(blocks, ", "), config.num_blocks);
  }
  if (std::ssize(blocks) > text.num_layers) {
    throw data_error(
        "{}: deepstack_visual_indexes has {} blocks, but the text model has only {} blocks to add their features to",
        source, blocks.size(), text.num_layers);
  }
  if (config.out_hidden_size != text.hidden_size) {
    throw data_error("{}: out_hidden_size is {}, but the text model's hidden_size is {}; they must be equal", source,
                     config.out_hidden_size, text.hidden_size);
  }
  return config;
}

/// Linear interpolation of a patch's position along one axis of the table.
struct AxisInterpolation {
  std::array<int64_t, 2> indices;  // of the entries next to the position
  std::array<float, 2> weights;
};

/// Returns the interpolation of each of `patches` patches along an axis of `side` entries.
std::vector<AxisInterpolation> interpolate_axis(int64_t patches, int64_t side) {
  std::vector<AxisInterpolation> interpolations;
  interpolations.reserve(static_cast<size_t>(patches));
  for (int64_t i = 0; i < patches; ++i) {
    const float position = static_cast<float>(i * (side - 1)) / static_cast<float>(std::max<int64_t>(patches - 1, 1));
    const float lower = std::floor(position);
    const auto index = static_cast<int64_t>(lower);
    const float fraction = position - lower;
    interpolations.push_back({{index, std::min(index + 1, side - 1)}, {1 - fraction, 1 - std::abs(fraction - 1)}});
  }
  return interpolations;
}

constexpr double kNormEpsilon = 1e-6;  // a constant in transformers' code, not a config key

/// As in VisionTransformer: random positions must be large compared to patches of variance 1.
constexpr double kPositionEmbeddingStd = 0.5;

}  // namespace

double VisionConfig::num_parameters() const {
  const double merged = static_cast<double>(hidden_size) * static_cast<double>(patches_per_token());
  const double num_merger_parameters = merged * (merged + static_cast<double>(out_hidden_size));
  const auto side = static_cast<double>(position_table_side);
  return qwen2_vl::VisionConfig::num_parameters() +
         static_cast<double>(deepstack_block_indices.size()) * num_merger_parameters +
         side * side * static_cast<double>(hidden_size);
}

Config Config::from_json(const json& json_config, const std::filesystem::path& folder) {
  const std::string source = (folder / "config.json").string();
  Config config;
  config.text = read_text_config(get_section(json_config, "text_config", source), source + " (text_config)");
  config.text.tie_word_embeddings |= io::get_or<bool>(json_config, "tie_word_embeddings", false, source);
  config.vision =
      read_vision_config(get_section(json_config, "vision_config", source), config.text, source + " (vision_config)");
  config.image_token_id =
      qwen2_vl::read_token_id(json_config, "image_token_id", config.image_token_id, config.text, source);
  config.video_token_id =
      qwen2_vl::read_token_id(json_config, "video_token_id", config.video_token_id, config.text, source);
  return config;
}

PositionInterpolation PositionInterpolation::make(std::span<const data::PatchGrid> grids, int64_t side, int64_t merge) {
  int64_t patches = 0;
  for (const auto& grid : grids) patches += grid.patches();
  PositionInterpolation interpolation{std::vector<int64_t>(static_cast<size_t>(kNumInterpolationPoints * patches)),
                                      std::vector<float>(static_cast<size_t>(kNumInterpolationPoints * patches))};
  int64_t patch = 0;
  const auto add = [&](const AxisInterpolation& row, const AxisInterpolation& column) {
    for (size_t point = 0; point < kNumInterpolationPoints; ++point) {
      const size_t y = point / 2, x = point % 2,
                   slot = point * static_cast<size_t>(patches) + static_cast<size_t>(patch);
      interpolation.indices[slot] = row.indices[y] * side + column.indices[x];
      interpolation.weights[slot] = row.weights[y] * column.weights[x];
    }
    ++patch;
  };
  for (const auto& grid : grids) {
    const auto rows = interpolate_axis(grid.rows, side), columns = interpolate_axis(grid.columns, side);
    for (int64_t frame = 0; frame < grid.frames; ++frame) {
      for (int64_t top = 0; top < grid.rows; top += merge) {
        for (int64_t left = 0; left < grid.columns; left += merge) {
          for (int64_t i = 0; i < merge * merge; ++i) {
            add(rows[static_cast<size_t>(top + i / merge)], columns[static_cast<size_t>(left + i % merge)]);
          }
        }
      }
    }
  }
  return interpolation;
}

VisionTower::VisionTower(const nn::ParameterScope& scope, const VisionConfig& config)
    : transformer_(scope, config),
      position_embeddings_(
          (scope / "pos_embed")
              .add_embedding("weight", {config.position_table_side * config.position_table_side, config.hidden_size},
                             {.mean = 0, .deviation = kPositionEmbeddingStd})),
      deepstack_block_indices_(config.deepstack_block_indices) {}

BlockListOutputs VisionTower::operator()(const image::ByteImages& pixels, const qwen2_vl::PatchLayout& layout,
                                         const PositionInterpolation& interpolation, int64_t recomputed_blocks) const {
  const auto device = pixels.bytes.device();
  const at::Tensor indices = memory::copy_to_device(interpolation.indices, device).view({kNumInterpolationPoints, -1});
  const at::Tensor weights =
      memory::copy_to_device(at::tensor(interpolation.weights), device).view({kNumInterpolationPoints, -1});
  const at::Tensor embeddings =
      transformer_.embed(pixels) + nn::sum_weighted_rows(position_embeddings_, indices, weights);
  return transformer_(embeddings, layout, recomputed_blocks, {.output_block_indices = deepstack_block_indices_});
}

PatchMerger::PatchMerger(const nn::ParameterScope& scope, const VisionConfig& config, bool use_postshuffle_norm)
    : merged_hidden_size_(config.hidden_size * config.patches_per_token()),
      use_postshuffle_norm_(use_postshuffle_norm),
      norm_(scope / "norm", use_postshuffle_norm ? merged_hidden_size_ : config.hidden_size, kNormEpsilon),
      fc1_(scope / "linear_fc1", merged_hidden_size_, merged_hidden_size_, true),
      fc2_(scope / "linear_fc2", merged_hidden_size_, config.out_hidden_size, true) {}

at::Tensor PatchMerger::operator()(const at::Tensor& patches) const {
  const auto merge_patches = [this](const at::Tensor& x) { return x.view({-1, merged_hidden_size_}); };
  const nn::LinearInput normed =
      use_postshuffle_norm_ ? norm_.make_linear_input(merge_patches(patches)) : merge_patches(norm_(patches));
  return fc2_(nn::apply_activation(Activation::kGelu, fc1_(normed)));
}

namespace {

std::vector<PatchMerger> make_deepstack_mergers(const ParameterScope& scope, const VisionConfig& config) {
  std::vector<PatchMerger> mergers;
  for (int64_t i = 0; i < std::ssize(config.deepstack_block_indices); ++i) {
    mergers.emplace_back(scope / i, config, /*use_postshuffle_norm=*/true);
  }
  return mergers;
}

}  // namespace

Model::Model(Config config, image::Normalization normalization, const nn::ParameterSettings& settings)
    : VisionLanguageModel(settings),
      config_(std::move(config)),
      normalization_(normalization),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "model.visual"), config_.vision),
      merger_(ParameterScope(parameters(), Component::kProjector, "model.visual.merger"), config_.vision,
              /*use_postshuffle_norm=*/false),
      deepstack_mergers_(make_deepstack_mergers(
          ParameterScope(parameters(), Component::kProjector, "model.visual.deepstack_merger_list"), config_.vision)),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "model.language_model"), config_.text,
            ParameterScope(parameters(), Component::kLanguageModel, "lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_patch_features) const {
  const auto layout = qwen2_vl::PatchLayout::make(vision.patch_grids, config_.vision);
  VLMTRAIN_CHECK(std::ssize(layout.positions) == 2 * vision.pixel_values.size(0),
                 "the grids have {} patches, but there are {} rows of pixels", layout.positions.size() / 2,
                 vision.pixel_values.size(0));
  const auto interpolation =
      PositionInterpolation::make(vision.patch_grids, config_.vision.position_table_side, config_.vision.merge_size);
  BlockListOutputs patches =
      tower_({vision.pixel_values, normalization_}, layout, interpolation, recompute_block_counts().vision);
  ImageFeatures result{.features = merger_(patches.last_hidden_state),
                       .patch_features = with_patch_features ? patches.last_hidden_state : at::Tensor()};
  patches.last_hidden_state.reset();  // frees memory before the next merger runs
  for (size_t i = 0; i < deepstack_mergers_.size(); ++i) {
    result.deepstack_features.push_back(deepstack_mergers_[i](patches.intermediate_hidden_states[i]));
    patches.intermediate_hidden_states[i].reset();
  }
  return result;
}

ModelOutput Model::compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                         const OutputRequest& request, nn::KeyValueCache* cache) const {
  return text_.compute_hidden_states(batch, image_features, request, recompute_block_counts().language_counts(), cache);
}

}  // namespace vlmtrain::models::qwen3_vl
