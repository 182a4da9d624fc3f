#include "models/prs_med/mask_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/network/config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::prs_med {

namespace {

using nlohmann::ordered_json;

// Keys of transformers' SamVisionConfig and SamMaskDecoderConfig that SamVitConfig and
// MaskDecoderConfig read.
constexpr const char* kVisionConfigKeys[] = {
    "hidden_size", "output_channels", "num_hidden_layers", "num_attention_heads", "patch_size",
    "mlp_dim",     "mlp_ratio",       "hidden_act",        "layer_norm_eps",      "qkv_bias",
    "use_abs_pos", "use_rel_pos",     "window_size",       "global_attn_indexes", "num_channels"};
constexpr const char* kDecoderConfigKeys[] = {
    "hidden_size",           "mlp_dim",    "num_hidden_layers", "num_attention_heads", "attention_downsample_rate",
    "num_multimask_outputs", "hidden_act", "layer_norm_eps"};

// torch.nn.LayerNorm's default, which SAM's code uses in the decoder; transformers' default is
// 1e-6.
constexpr double kOriginalDecoderNormEpsilon = 1e-5;

/// Shapes of the tensors of one module of a mask model. `module` is the prefix of their names.
class ModuleTensorShapes {
 public:
  ModuleTensorShapes(const TensorSource& tensors, std::string module)
      : tensors_(&tensors), module_(std::move(module)) {}

  bool contains(const std::string& name) const { return tensors_->find(module_ + name) != nullptr; }

  /// Returns the size of a tensor's dimension; `fallback` if the tensor or dimension is missing or
  /// empty.
  int64_t size(const std::string& name, size_t dimension, int64_t fallback) const {
    const StoredTensor* const tensor = tensors_->find(module_ + name);
    if (tensor == nullptr || tensor->shape.size() <= dimension) return fallback;
    return tensor->shape[dimension] > 0 ? tensor->shape[dimension] : fallback;
  }

  /// Returns the number of consecutive modules `prefix`0, `prefix`1 …; `fallback` if it is 0.
  int64_t count(const std::string& prefix, int64_t fallback) const {
    int64_t count = 0;
    while (tensors_->has_prefix(fmt::format("{}{}{}.", module_, prefix, count))) ++count;
    return count > 0 ? count : fallback;
  }

 private:
  const TensorSource* tensors_;
  std::string module_;
};

/// Returns the entries of `config` with these keys, except null ones.
ordered_json select_config_entries(const nlohmann::json& config, const auto& keys) {
  ordered_json result = ordered_json::object();
  for (const char* key : keys) {
    if (config.contains(key) && !config[key].is_null()) result[key] = config[key];
  }
  return result;
}

/// Returns the sizes of transformers' SamModel from its config.json.
ordered_json read_config_sizes(const TensorSource& tensors) {
  const auto file = tensors.folder() / "config.json";
  if (!std::filesystem::exists(file)) {
    throw data_error(
        "{}: has the tensor names of transformers' SamModel, but no config.json with its sizes next to the weights; "
        "download the whole folder",
        tensors.path().string());
  }
  const auto config = io::read_json(file);
  const auto type = io::get_or<std::string>(config, "model_type", "sam", file.string());
  if (type != "sam") {
    throw data_error("{}: model_type {} is not a supported mask model; supported: sam", file.string(), type);
  }
  const auto section = [&](const char* key) {
    nlohmann::json value = config.value(key, nlohmann::json::object());
    if (!value.is_object()) throw data_error("{}: {} is not an object; download the file again", file.string(), key);
    return value;
  };
  const auto vision = section("vision_config");
  ordered_json encoder{{"model_type", "sam_vision_model"}};
  encoder.update(select_config_entries(vision, kVisionConfigKeys));
  const auto side = io::get_or<int64_t>(vision, "image_size", SamVitConfig().image_size, file.string());
  return {{"image_size", side},
          {"vision_encoder", encoder},
          {"mask_decoder", select_config_entries(section("mask_decoder_config"), kDecoderConfigKeys)}};
}

/// Returns the config of SAM's encoder. A block stores a table of 2 · n − 1 relative distances; n
/// is the window's side, or `side`, the grid's, in blocks with global attention.
ordered_json make_sam_vit_config(const ModuleTensorShapes& shapes, int64_t side) {
  const SamVitConfig defaults;
  const auto make_block_tensor_name = [](int64_t number, const char* name) {
    return fmt::format("blocks.{}.{}", number, name);
  };
  const int64_t width = shapes.size("pos_embed", 3, defaults.hidden_size);
  const int64_t head_dim = shapes.size(make_block_tensor_name(0, "attn.rel_pos_h"), 1, width / defaults.num_heads);
  int64_t window = defaults.window_size;
  std::vector<int64_t> global_attention_blocks;
  const int64_t blocks = shapes.count("blocks.", defaults.num_layers);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t block_window_size =
        (shapes.size(make_block_tensor_name(i, "attn.rel_pos_h"), 0, 2 * window - 1) + 1) / 2;
    if (block_window_size == side) {
      global_attention_blocks.push_back(i);
    } else {
      window = block_window_size;
    }
  }
  return {{"model_type", "sam_vision_model"},
          {"hidden_size", width},
          {"output_channels", shapes.size("neck.0.weight", 0, defaults.output_channels)},
          {"num_hidden_layers", blocks},
          {"num_attention_heads", std::max<int64_t>(1, width / std::max<int64_t>(1, head_dim))},
          {"patch_size", kMaskFeatureStride},
          {"mlp_dim", shapes.size(make_block_tensor_name(0, "mlp.lin1.weight"), 0, 4 * width)},
          {"layer_norm_eps", defaults.layer_norm_eps},
          {"qkv_bias", shapes.contains(make_block_tensor_name(0, "attn.qkv.bias"))},
          {"use_abs_pos", true},
          {"use_rel_pos", true},
          {"window_size", window},
          {"global_attn_indexes", global_attention_blocks}};
}

/// Returns the config of TinyViT. Stage 0 has convolutions only; its attention sizes keep the
/// defaults.
ordered_json make_tiny_vit_config(const ModuleTensorShapes& shapes) {
  const TinyVitConfig defaults;
  const int64_t stages = shapes.count("layers.", std::ssize(defaults.stages));
  std::vector<int64_t> widths, depths, heads, windows;
  double mlp_ratio = defaults.mlp_ratio;
  int64_t kernel_size = defaults.local_conv_size;
  for (int64_t i = 0; i < stages; ++i) {
    const TinyVitStage& stage = defaults.stages[std::min(static_cast<size_t>(i), defaults.stages.size() - 1)];
    const std::string first_block = fmt::format("layers.{}.blocks.0.", i);
    const int64_t width = i == 0 ? shapes.size("patch_embed.seq.2.c.weight", 0, stage.width)
                                 : shapes.size(first_block + "attn.norm.weight", 0, stage.width);
    const int64_t window_area = shapes.size(first_block + "attn.attention_biases", 1, stage.window * stage.window);
    widths.push_back(width);
    depths.push_back(shapes.count(fmt::format("layers.{}.blocks.", i), stage.num_blocks));
    heads.push_back(shapes.size(first_block + "attn.attention_biases", 0, stage.num_heads));
    windows.push_back(std::llround(std::sqrt(static_cast<double>(window_area))));
    if (i == 0) continue;
    mlp_ratio =
        static_cast<double>(shapes.size(first_block + "mlp.fc1.weight", 0, 4 * width)) / static_cast<double>(width);
    kernel_size = shapes.size(first_block + "local_conv.c.weight", 2, kernel_size);
  }
  const int64_t width = shapes.size("patch_embed.seq.2.c.weight", 0, defaults.stages[0].width);
  const int64_t expanded_channels = shapes.size("layers.0.blocks.0.conv1.c.weight", 0, 4 * width);
  return {{"model_type", "tiny_vit"},
          {"embed_dims", widths},
          {"depths", depths},
          {"num_heads", heads},
          {"window_sizes", windows},
          {"mlp_ratio", mlp_ratio},
          {"mbconv_expand_ratio", static_cast<double>(expanded_channels) / static_cast<double>(width)},
          {"local_conv_size", kernel_size},
          {"last_merging_keeps_size", stages != 3},  // three stages already have a stride of 16 pixels
          {"out_channels", shapes.size("neck.0.weight", 0, defaults.out_channels)}};
}

/// Returns the config of the decoder. Shapes do not depend on the number of heads, which is 8 in
/// all published decoders.
ordered_json make_decoder_config(const TensorSource& tensors) {
  const ModuleTensorShapes shapes(tensors, "mask_decoder.");
  const TwoWayTransformerConfig defaults;
  const std::string layers = "transformer.layers.";
  const int64_t hidden = shapes.size("iou_token.weight", 1, defaults.hidden_size);
  const int64_t cross_attention_width =
      shapes.size(layers + "0.cross_attn_token_to_image.q_proj.weight", 0, hidden / defaults.attention_downsample_rate);
  return {{"hidden_size", hidden},
          {"mlp_dim", shapes.size(layers + "0.mlp.lin1.weight", 0, defaults.mlp_dim)},
          {"num_hidden_layers", shapes.count(layers, defaults.num_layers)},
          {"num_attention_heads", defaults.num_heads},
          {"attention_downsample_rate", std::max<int64_t>(1, hidden / std::max<int64_t>(1, cross_attention_width))},
          {"num_multimask_outputs", shapes.size("mask_tokens.weight", 0, MaskDecoderConfig().num_mask_tokens) - 1},
          {"layer_norm_eps", kOriginalDecoderNormEpsilon}};
}

}  // namespace

ordered_json read_mask_sizes(const TensorSource& tensors, MaskCheckpointFormat format, int64_t side) {
  if (format == MaskCheckpointFormat::kTransformers) return read_config_sizes(tensors);
  const ModuleTensorShapes encoder_shapes(tensors, "image_encoder.");
  if (format == MaskCheckpointFormat::kMobileSam) {
    return {{"image_size", side},
            {"vision_encoder", make_tiny_vit_config(encoder_shapes)},
            {"mask_decoder", make_decoder_config(tensors)}};
  }
  const int64_t features = encoder_shapes.size("pos_embed", 1, SamVitConfig().patches_per_side());
  return {{"image_size", features * kMaskFeatureStride},
          {"vision_encoder", make_sam_vit_config(encoder_shapes, features)},
          {"mask_decoder", make_decoder_config(tensors)}};
}

}  // namespace vlmtrain::models::prs_med
