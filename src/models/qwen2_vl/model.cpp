#include "models/qwen2_vl/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "models/family.h"
#include "models/network/layers.h"
#include "models/qwen2_vl/image_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/memory/device_copy.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/nn/layers/activation.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

/// Appends the tokens of a frame to a PatchLayout, in the tower's order.
class FrameLayoutBuilder {
 public:
  FrameLayoutBuilder(PatchLayout& layout, const data::PatchGrid& grid, const VisionConfig& config)
      : layout_(layout),
        config_(config),
        rows_(grid.rows / config.merge_size),
        columns_(grid.columns / config.merge_size) {}

  /// Adds all tokens row by row, for a tower without windows.
  void add_tokens_by_row() {
    for (int64_t row = 0; row < rows_; ++row) add_tokens_in_row(row, 0, columns_);
  }

  /// Adds all tokens window by window. `first_token` is the index of the frame's first token.
  void add_tokens_by_window(int64_t first_token) {
    const int64_t side = *config_.tokens_per_window_side;
    for (int64_t top = 0; top < rows_; top += side) {
      for (int64_t left = 0; left < columns_; left += side) {
        const int64_t height = std::min(side, rows_ - top), width = std::min(side, columns_ - left);
        for (int64_t row = top; row < top + height; ++row) {
          for (int64_t column = left; column < left + width; ++column) {
            layout_.token_order.push_back(first_token + row * columns_ + column);
          }
          add_tokens_in_row(row, left, width);
        }
        layout_.window_patch_counts.push_back(height * width * config_.patches_per_token());
      }
    }
  }

  int64_t tokens() const { return rows_ * columns_; }

 private:
  /// Appends the positions of the patches of `count` adjacent tokens in a row.
  void add_tokens_in_row(int64_t row, int64_t first_column, int64_t count) {
    const int64_t merge = config_.merge_size;
    for (int64_t column = first_column; column < first_column + count; ++column) {
      for (int64_t y = 0; y < merge; ++y) {
        for (int64_t x = 0; x < merge; ++x) {
          layout_.positions.push_back(row * merge + y);
          layout_.positions.push_back(column * merge + x);
        }
      }
    }
  }

  PatchLayout& layout_;
  const VisionConfig& config_;
  int64_t rows_, columns_;
};

/// Returns [row, column, row, column …] → all rows, then all columns.
std::vector<int64_t> deinterleave_axes(const std::vector<int64_t>& pairs) {
  const size_t count = pairs.size() / 2;
  std::vector<int64_t> deinterleaved(pairs.size());
  for (size_t i = 0; i < count; ++i) {
    deinterleaved[i] = pairs[2 * i];
    deinterleaved[count + i] = pairs[2 * i + 1];
  }
  return deinterleaved;
}

constexpr double kNormEpsilon = 1e-6;  // a constant in transformers' code, not a config key

std::variant<nn::LayerNorm, nn::RmsNorm> make_norm(const nn::ParameterScope& scope, const VisionConfig& config) {
  if (config.uses_qwen2_5_layers) return nn::RmsNorm(scope, config.hidden_size, kNormEpsilon);
  return nn::LayerNorm(scope, config.hidden_size, kNormEpsilon);
}

nn::MergedLinear make_input_projection(const nn::ParameterScope& scope, const VisionConfig& config) {
  const int64_t features = config.intermediate_size;
  if (config.uses_qwen2_5_layers)
    return {scope, {"gate_proj", "up_proj"},   config.hidden_size, {features, features},
            true,  nn::OutputColumns::kAligned};
  return {scope, {config.first_linear_name}, config.hidden_size, {features}, true, nn::OutputColumns::kAligned};
}

}  // namespace

PatchLayout PatchLayout::make(std::span<const data::PatchGrid> grids, const VisionConfig& config) {
  PatchLayout layout;
  int64_t first_token = 0;
  for (const data::PatchGrid& grid : grids) {
    VLMTRAIN_CHECK(grid.rows % config.merge_size == 0 && grid.columns % config.merge_size == 0,
                   "a grid of {} x {} patches, {} x {} of which form a token", grid.rows, grid.columns,
                   config.merge_size, config.merge_size);
    FrameLayoutBuilder builder(layout, grid, config);
    for (int64_t i = 0; i < grid.frames; ++i) {
      config.tokens_per_window_side ? builder.add_tokens_by_window(first_token) : builder.add_tokens_by_row();
      layout.frame_patch_counts.push_back(grid.patches_per_frame());
      first_token += builder.tokens();
    }
  }
  layout.positions = deinterleave_axes(layout.positions);
  layout.inverse_token_order.resize(layout.token_order.size());
  for (size_t position = 0; position < layout.token_order.size(); ++position) {
    const int64_t token = layout.token_order[position];
    layout.inverse_token_order[static_cast<size_t>(token)] = static_cast<int64_t>(position);
    for (int64_t i = 0; i < config.patches_per_token(); ++i) {
      layout.patch_order.push_back(token * config.patches_per_token() + i);
    }
  }
  return layout;
}

Norm::Norm(const nn::ParameterScope& scope, const VisionConfig& config) : norm_(make_norm(scope, config)) {}

nn::LinearInput Norm::make_linear_input(const at::Tensor& x) const {
  return std::visit([&](const auto& norm) { return norm.make_linear_input(x); }, norm_);
}

VisionMlp::VisionMlp(const nn::ParameterScope& scope, const VisionConfig& config)
    : is_gated_(config.uses_qwen2_5_layers),
      activation_(config.activation),
      gate_up_proj_(make_input_projection(scope, config)),
      down_proj_(scope / (config.uses_qwen2_5_layers ? "down_proj" : config.second_linear_name),
                 config.intermediate_size, config.hidden_size, true, compute_residual_gain(config.num_blocks)) {}

at::Tensor VisionMlp::operator()(const nn::LinearInput& x) const {
  const nn::ResidualBranch branch = gate_up_proj_.forward_branch(x);
  return down_proj_(is_gated_ ? nn::swiglu(branch.value) : nn::apply_activation(activation_, branch.value),
                    /*residual=*/branch.stream);
}

VisionBlock::VisionBlock(const nn::ParameterScope& scope, const VisionConfig& config)
    : head_shape_{.num_heads = config.num_heads,
                  .num_key_value_heads = config.num_heads,
                  .head_dim = config.hidden_size / config.num_heads},
      norm1_(scope / "norm1", config),
      norm2_(scope / "norm2", config),
      qkv_(scope / "attn" / "qkv", config.hidden_size, 3 * config.hidden_size, true),
      out_proj_(scope / "attn" / "proj", config.hidden_size, config.hidden_size, true,
                compute_residual_gain(config.num_blocks)),
      mlp_(scope / "mlp", config) {}

at::Tensor VisionBlock::attend(const at::Tensor& qkv, const VisionContext& context) const {
  const auto [query, key, value] = nn::split_and_rotate_heads(qkv, head_shape_, context.rotary_table);
  return nn::attention(query, key, value, context.segments, /*is_causal=*/false).flatten(1);
}

at::Tensor VisionBlock::operator()(const at::Tensor& x, const VisionContext& context) const {
  nn::ResidualBranch branch = qkv_.forward_branch(norm1_.make_linear_input(x));
  return mlp_(norm2_.make_linear_input(out_proj_(attend(branch.take_value(), context), /*residual=*/branch.stream)));
}

VisionTower::VisionTower(const nn::ParameterScope& scope, const VisionConfig& config)
    : config_(config),
      patch_weight_(
          (scope / "patch_embed" / "proj")
              .add_parameter(
                  "weight", {config.hidden_size, 3, config.temporal_patch_size, config.patch_size, config.patch_size},
                  nn::InitialValues::kaiming(3 * config.temporal_patch_size * config.patch_size * config.patch_size))),
      patch_bias_(
          config.has_patch_bias
              ? (scope / "patch_embed" / "proj").add_parameter("bias", {config.hidden_size}, nn::InitialValues::zeros())
              : at::Tensor()),
      blocks_(scope / "blocks", config.num_blocks, config, memory::Component::kVision) {
  // A head has head_dim / 2 pairs, half of them for each of two axes.
  const int64_t pairs_per_axis = config.hidden_size / config.num_heads / 4;
  const at::Tensor frequencies = nn::compute_inv_freq(2 * pairs_per_axis, config.rope_theta);
  const auto indices = at::TensorOptions(at::kLong);
  rotary_frequencies_ = at::cat({frequencies, frequencies}).to(patch_weight_.device());
  rotary_axes_ =
      at::cat({at::zeros({pairs_per_axis}, indices), at::ones({pairs_per_axis}, indices)}).to(patch_weight_.device());
}

at::Tensor VisionTower::embed(const image::ByteImages& pixels) const {
  return embed_patches(pixels, patch_weight_, patch_bias_);
}

BlockListOutputs VisionTower::operator()(const at::Tensor& embeddings, const PatchLayout& layout,
                                         int64_t recomputed_blocks, const HiddenStateOptions& options) const {
  const auto device = embeddings.device();
  const at::Tensor positions = memory::copy_to_device(layout.positions, device).view({2, -1});
  const auto rotary_table = nn::RotaryTable::from_axes(positions, rotary_axes_, rotary_frequencies_);
  const VisionContext frame_context{nn::Segments::from_lengths(layout.frame_patch_counts, device), rotary_table};
  const VisionContext window_context{nn::Segments::from_lengths(layout.window_patch_counts, device), rotary_table};
  const auto get_context = [&](int64_t block) -> const VisionContext& {
    return config_.has_windows(block) ? window_context : frame_context;
  };
  return blocks_.run_with_contexts(embeddings, recomputed_blocks, get_context, options);
}

PatchMerger::PatchMerger(const nn::ParameterScope& scope, const VisionConfig& config)
    : merged_hidden_size_(config.hidden_size * config.patches_per_token()),
      norm_(scope / "ln_q", config),
      fc1_(scope / "mlp" / "0", merged_hidden_size_, merged_hidden_size_, true),
      fc2_(scope / "mlp" / "2", merged_hidden_size_, config.out_hidden_size, true) {}

at::Tensor PatchMerger::operator()(const at::Tensor& x) const {
  return fc2_(nn::apply_activation(Activation::kGelu, fc1_(norm_(x).view({-1, merged_hidden_size_}))));
}

namespace {

/// Prefixes of parameter names and of the published checkpoints' keys.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kCheckpointKeyPrefixes{
    {{"model.visual.", "visual."}, {"model.language_model.", "model."}}};

}  // namespace

QwenKeyMap QwenKeyMap::detect(std::span<const std::string> tensors) {
  QwenKeyMap key_map;
  key_map.uses_published_keys_ = std::ranges::none_of(
      tensors, [](const std::string& name) { return name.starts_with(kCheckpointKeyPrefixes.back().first); });
  return key_map;
}

std::string QwenKeyMap::to_checkpoint_key(const std::string& parameter) const {
  if (!uses_published_keys_) return parameter;
  for (const auto& [module_prefix, checkpoint_prefix] : kCheckpointKeyPrefixes) {
    if (parameter.starts_with(module_prefix))
      return std::string(checkpoint_prefix) + parameter.substr(module_prefix.size());
  }
  return parameter;
}

using nn::Component;
using nn::ParameterScope;

Model::Model(Config config, QwenKeyMap key_map, image::Normalization normalization,
             const nn::ParameterSettings& settings)
    : VisionLanguageModel(settings),
      config_(std::move(config)),
      key_map_(key_map),
      normalization_(normalization),
      tower_(ParameterScope(parameters(), Component::kVisionTower, "model.visual"), config_.vision),
      merger_(ParameterScope(parameters(), Component::kProjector, "model.visual.merger"), config_.vision),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "model.language_model"), config_.text,
            ParameterScope(parameters(), Component::kLanguageModel, "lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_patch_features) const {
  const auto layout = PatchLayout::make(vision.patch_grids, config_.vision);
  VLMTRAIN_CHECK(std::ssize(layout.positions) == 2 * vision.pixel_values.size(0),
                 "the grids have {} patches, but there are {} rows of pixels", layout.positions.size() / 2,
                 vision.pixel_values.size(0));
  const auto device = vision.pixel_values.device();
  // In the tower, the patches of a window are adjacent; its output is put back into input order.
  const bool has_windows = !layout.patch_order.empty();
  const at::Tensor device_patch_order = has_windows ? memory::copy_to_device(layout.patch_order, device) : at::Tensor();
  const at::Tensor embeddings = tower_.embed({vision.pixel_values, normalization_, device_patch_order});
  at::Tensor patches = tower_(embeddings, layout, recompute_block_counts().vision).last_hidden_state;
  const at::Tensor features = merger_(patches);  // [tokens, text hidden]
  if (!with_patch_features) patches.reset();
  const auto restore_token_order = [&](const at::Tensor& token_rows) {
    return has_windows ? token_rows.index_select(0, memory::copy_to_device(layout.inverse_token_order, device))
                       : token_rows;
  };
  ImageFeatures result{.features = restore_token_order(features)};
  // Dense features are per patch; a row of the view has the patches of one token.
  if (with_patch_features)
    result.patch_features = restore_token_order(patches.view({features.size(0), -1})).view_as(patches);
  return result;
}

ModelOutput Model::compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                         const OutputRequest& request, nn::GenerationCache* cache) const {
  return text_.compute_hidden_states(batch, image_features, request, recompute_block_counts().language_counts(), cache);
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  return std::make_unique<Model>(config, QwenKeyMap::detect(io::read_checkpoint_tensor_names(folder)),
                                 read_image_settings(folder, config.vision, std::nullopt).normalization, settings);
}

}  // namespace vlmtrain::models::qwen2_vl
