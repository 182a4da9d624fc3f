#include "models/network/tiny_vit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/gelu.h>

#include <utility>
#include <vector>

#include "models/checkpoints/config_checks.h"
#include "models/network/block_list.h"
#include "models/network/mask_encoder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/nn/attention/attention.h"

namespace vlmtrain::models {

namespace {

constexpr NumberRange kWidthRatioRange{0, 64};
// The bias indices have window⁴ entries, 16.8 million at 64; published models have at most 14.
constexpr int64_t kMaxWindowSize = 64;
constexpr int64_t kMaxStages = 16;  // published models have 4

/// A config key with one number per stage.
struct StageConfigKey {
  const char* key;
  int64_t TinyVitStage::*member;  ///< field that the numbers are stored in
  int64_t max;                    ///< largest valid number
};

constexpr StageConfigKey kStageConfigKeys[] = {{"embed_dims", &TinyVitStage::width, kMaxLayerWidth},
                                               {"depths", &TinyVitStage::num_blocks, kMaxBlocks},
                                               {"num_heads", &TinyVitStage::num_heads, kMaxLayerWidth},
                                               {"window_sizes", &TinyVitStage::window, kMaxWindowSize}};

std::vector<int64_t> collect_stage_values(const std::vector<TinyVitStage>& stages, int64_t TinyVitStage::*member) {
  std::vector<int64_t> values;
  values.reserve(stages.size());
  for (const TinyVitStage& stage : stages) values.push_back(stage.*member);
  return values;
}

std::vector<TinyVitStage> read_stages(const nlohmann::json& json, const std::vector<TinyVitStage>& defaults,
                                      const std::string& source) {
  std::vector<TinyVitStage> stages;
  for (const auto& [key, member, max] : kStageConfigKeys) {
    const auto values = io::get_or<std::vector<int64_t>>(json, key, collect_stage_values(defaults, member), source);
    if (stages.empty()) {
      check_size(std::ssize(values), fmt::format("the length of {}", key), kMaxStages, source);
      stages.resize(values.size());
    }
    if (values.size() != stages.size()) {
      throw data_error("{}: {} has {} entries, but {} has {}; give one per stage", source, key, values.size(),
                       kStageConfigKeys[0].key, stages.size());
    }
    for (size_t i = 0; i < stages.size(); ++i) {
      check_size(values[i], key, max, source);
      stages[i].*member = values[i];
    }
  }
  return stages;
}

void check_stages(const TinyVitConfig& config, const std::string& source) {
  if (config.stages[0].width % 2 != 0) {
    throw data_error(
        "{}: embed_dims begins with {}; it must be even, since the first convolution has half as many channels", source,
        config.stages[0].width);
  }
  for (size_t i = 1; i < config.stages.size(); ++i) {
    const TinyVitStage& stage = config.stages[i];
    if (stage.width % stage.num_heads == 0) continue;
    throw config_error("{}: stage {} has {} in embed_dims, which is not a multiple of {} in num_heads", source, i,
                       stage.width, stage.num_heads);
  }
  if (config.stride() != kMaskFeatureStride) {
    throw data_error(
        "{}: {} stages with last_merging_keeps_size {} give features of {} pixels, but the mask decoder needs {}; use "
        "4 stages, the last of which keeps the size, or 3 stages",
        source, config.stages.size(), config.last_merging_keeps_size, config.stride(), kMaskFeatureStride);
  }
}

void check_stage_widths(const TinyVitConfig& config, const std::string& source) {
  for (const TinyVitStage& stage : config.stages) {
    check_size(config.compute_mlp_width(stage.width), "embed_dims times mlp_ratio", kMaxLayerWidth, source);
    check_size(config.compute_expanded_channels(stage.width), "embed_dims times mbconv_expand_ratio", kMaxLayerWidth,
               source);
  }
}

constexpr double kNeckNormEpsilon = 1e-6;  // of SAM's LayerNorm2d

/// Returns the shape of a convolution that halves height and width.
nn::ConvolutionShape make_embedding_convolution_shape(int64_t in_channels, int64_t out_channels) {
  return {.in_channels = in_channels, .out_channels = out_channels, .kernel_size = 3, .stride = 2};
}

void add_stage_blocks(RecomputedBlocks& blocks, const nn::ParameterScope& scope, const TinyVitConfig& config,
                      size_t index) {
  const TinyVitStage& stage = config.stages[index];
  const bool is_convolutional = index == 0;
  const at::Tensor bias_indices =
      is_convolutional ? at::Tensor() : make_bias_indices(stage.window, scope.store().options().device());
  for (int64_t i = 0; i < stage.num_blocks; ++i) {
    const nn::ParameterScope block_scope = scope / "blocks" / i;
    if (is_convolutional) {
      blocks.add_block(scope.store(),
                       [&] { return MBConv(block_scope, stage.width, config.compute_expanded_channels(stage.width)); });
    } else {
      blocks.add_block(scope.store(), [&] { return TinyVitBlock(block_scope, config, stage, bias_indices); });
    }
  }
  if (index + 1 == config.stages.size()) return;
  blocks.add_block(scope.store(), [&] {
    return PatchMerging(scope / "downsample", stage.width, config.stages[index + 1].width,
                        config.has_downsampling(index) ? 2 : 1);
  });
}

RecomputedBlocks make_tiny_vit_blocks(const nn::ParameterScope& scope, const TinyVitConfig& config) {
  RecomputedBlocks blocks;
  for (size_t i = 0; i < config.stages.size(); ++i) {
    add_stage_blocks(blocks, scope / static_cast<int64_t>(i), config, i);
  }
  return blocks;
}

}  // namespace

TinyVitConfig TinyVitConfig::from_json(const nlohmann::json& json, const std::string& source) {
  TinyVitConfig config;
  config.image_size = read_size(json, "image_size", config.image_size, kMaxImageSide, source);
  config.stages = read_stages(json, config.stages, source);
  config.mlp_ratio = read_number(json, "mlp_ratio", config.mlp_ratio, kWidthRatioRange, source);
  config.mbconv_expand_ratio =
      read_number(json, "mbconv_expand_ratio", config.mbconv_expand_ratio, kWidthRatioRange, source);
  config.local_conv_size = read_size(json, "local_conv_size", config.local_conv_size, kMaxWindowSize, source);
  config.last_merging_keeps_size =
      io::get_or<bool>(json, "last_merging_keeps_size", config.last_merging_keeps_size, source);
  config.out_channels = read_size(json, "out_channels", config.out_channels, kMaxLayerWidth, source);
  if (config.image_size % kMaskFeatureStride != 0) {
    throw config_error("{}: image_size {} is not a multiple of {}", source, config.image_size, kMaskFeatureStride);
  }
  if (config.local_conv_size % 2 == 0) {
    throw data_error("{}: local_conv_size is {}; it must be odd, to keep height and width", source,
                     config.local_conv_size);
  }
  check_stages(config, source);
  check_stage_widths(config, source);
  return config;
}

int64_t TinyVitConfig::stride() const {
  int64_t stride = 4;  // two convolutions of stride 2 in the patch embedding
  for (size_t i = 0; i + 1 < stages.size(); ++i) stride *= has_downsampling(i) ? 2 : 1;
  return stride;
}

int64_t TinyVitConfig::num_blocks() const {
  int64_t blocks = 0;
  for (const TinyVitStage& stage : stages) blocks += stage.num_blocks;
  return blocks;
}

double TinyVitConfig::num_parameters() const {
  const auto out = static_cast<double>(out_channels);
  // The neck has a 3×3 convolution (here) and a 1×1 convolution (at the end). A block is an MBConv
  // in the first stage, else four attention matrices, an MLP and a bias table. The patch
  // embedding's 3×3 convolution from width / 2 to width has 4.5 · width² parameters; a merging has
  // two 1×1 convolutions.
  double count = 9 * out * out;
  double previous_width = 0;
  for (const TinyVitStage& stage : stages) {
    const auto width = static_cast<double>(stage.width);
    const double parameters_per_block =
        previous_width == 0
            ? 2 * mbconv_expand_ratio * width * width
            : (4 + 2 * mlp_ratio) * width * width + static_cast<double>(stage.num_heads * stage.window * stage.window);
    count += width * (previous_width + (previous_width == 0 ? 4.5 * width : width)) +
             static_cast<double>(stage.num_blocks) * parameters_per_block;
    previous_width = width;
  }
  return count + previous_width * out;
}

TinyVit::TinyVit(const nn::ParameterScope& scope, const TinyVitConfig& config)
    : embedding_conv1_(scope / "patch_embed" / "seq" / 0,
                       make_embedding_convolution_shape(3, config.stages.front().width / 2)),
      embedding_conv2_(scope / "patch_embed" / "seq" / 2,
                       make_embedding_convolution_shape(config.stages.front().width / 2, config.stages.front().width)),
      blocks_(make_tiny_vit_blocks(scope / "layers", config)),
      neck_conv1_(scope / "neck" / 0, {.in_channels = config.stages.back().width, .out_channels = config.out_channels},
                  /*bias=*/false),
      neck_norm1_(scope / "neck" / 1, config.out_channels, kNeckNormEpsilon),
      neck_conv2_(scope / "neck" / 2,
                  {.in_channels = config.out_channels, .out_channels = config.out_channels, .kernel_size = 3},
                  /*bias=*/false),
      neck_norm2_(scope / "neck" / 3, config.out_channels, kNeckNormEpsilon) {
  VLMTRAIN_CHECK(config.stride() == kMaskFeatureStride, "an encoder of stride {}", config.stride());
}

at::Tensor TinyVit::embed(const at::Tensor& pixels) const {
  return embedding_conv2_(at::gelu(embedding_conv1_(pixels)));
}

at::Tensor TinyVit::apply_neck(const at::Tensor& x) const {
  const at::Tensor projected = neck_norm1_(to_channels_last(neck_conv1_(x)));
  return neck_norm2_(to_channels_last(neck_conv2_(to_channels_first(projected)))).flatten(0, 2);
}

at::Tensor TinyVit::operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const {
  VLMTRAIN_CHECK(pixels.size(2) == pixels.size(3) && pixels.size(2) % kMaskFeatureStride == 0,
                 "images of {}×{} for a mask encoder of stride {}", pixels.size(2), pixels.size(3), kMaskFeatureStride);
  return apply_neck(blocks_.run(embed(pixels), recomputed_blocks));
}

namespace {

/// Returns the shape of a 1×1 convolution.
nn::ConvolutionShape make_pointwise_shape(int64_t in_channels, int64_t out_channels) {
  return {.in_channels = in_channels, .out_channels = out_channels};
}

/// Returns the shape of a 3×3 convolution of each channel by itself.
nn::ConvolutionShape make_depthwise_shape(int64_t channels, int64_t stride) {
  return {.in_channels = channels, .out_channels = channels, .kernel_size = 3, .stride = stride, .groups = channels};
}

constexpr double kAttentionNormEpsilon = 1e-5;  // torch.nn.LayerNorm's default

int64_t count_windows_along_side(int64_t side, int64_t window) {
  return (side + window - 1) / window;
}

constexpr double kMlpNormEpsilon = 1e-5;  // torch.nn.LayerNorm's default

}  // namespace

MBConv::MBConv(const nn::ParameterScope& scope, int64_t channels, int64_t expanded_channels)
    : conv1_(scope / "conv1", make_pointwise_shape(channels, expanded_channels)),
      conv2_(scope / "conv2", make_depthwise_shape(expanded_channels, /*stride=*/1)),
      conv3_(scope / "conv3", make_pointwise_shape(expanded_channels, channels), /*initial_scale=*/0) {}

at::Tensor MBConv::operator()(const at::Tensor& x) const {
  return at::gelu(x + conv3_(at::gelu(conv2_(at::gelu(conv1_(x))))));
}

PatchMerging::PatchMerging(const nn::ParameterScope& scope, int64_t channels, int64_t out_channels, int64_t stride)
    : conv1_(scope / "conv1", make_pointwise_shape(channels, out_channels)),
      conv2_(scope / "conv2", make_depthwise_shape(out_channels, stride)),
      conv3_(scope / "conv3", make_pointwise_shape(out_channels, out_channels)) {}

at::Tensor PatchMerging::operator()(const at::Tensor& x) const {
  return conv3_(at::gelu(conv2_(at::gelu(conv1_(x)))));
}

at::Tensor make_bias_indices(int64_t window, at::Device device) {
  const at::Tensor positions = at::arange(window, at::TensorOptions(at::kLong));
  const at::Tensor distance = (positions.unsqueeze(1) - positions.unsqueeze(0)).abs();
  const at::Tensor rows = distance.view({window, 1, window, 1});
  const at::Tensor columns = distance.view({1, window, 1, window});
  return (rows * window + columns).flatten().to(device);
}

WindowAttention::WindowAttention(const nn::ParameterScope& scope, const TinyVitStage& stage, at::Tensor bias_indices,
                                 double initial_gain)
    : num_heads_(stage.num_heads),
      norm_(scope / "norm", stage.width, kAttentionNormEpsilon),
      qkv_(scope / "qkv", stage.width, 3 * stage.width, true),
      projection_(scope / "proj", stage.width, stage.width, true, initial_gain),
      attention_biases_(scope.add_parameter("attention_biases", {stage.num_heads, stage.window * stage.window},
                                            nn::InitialValues::zeros())),
      bias_indices_(std::move(bias_indices)) {}

/// Returns the bias of all pairs of positions, [1, heads, positions, positions]. Gathers it in
/// fp32, so that the gradient of an entry, a sum over hundreds of pairs, accumulates in fp32.
at::Tensor WindowAttention::gather_attention_bias(int64_t positions, at::ScalarType dtype) const {
  return attention_biases_.to(at::kFloat)
      .index_select(1, bias_indices_)
      .to(dtype)
      .view({1, num_heads_, positions, positions});
}

at::Tensor WindowAttention::operator()(const at::Tensor& x) const {
  const int64_t positions = x.size(1);
  const at::Tensor projected = qkv_(norm_(x).flatten(0, 1)).view({x.size(0), positions, num_heads_, -1});
  const std::vector<at::Tensor> qkv = projected.chunk(3, /*dim=*/-1);
  const at::Tensor attention_output =
      nn::biased_attention(qkv[0], qkv[1], qkv[2], gather_attention_bias(positions, projected.scalar_type()));
  return projection_(attention_output.reshape({x.size(0) * positions, x.size(2)})).view(x.sizes());
}

at::Tensor window_partition(const at::Tensor& x, int64_t window) {
  const int64_t rows = count_windows_along_side(x.size(1), window);
  const int64_t columns = count_windows_along_side(x.size(2), window);
  const int64_t pad_bottom = rows * window - x.size(1);
  const int64_t pad_right = columns * window - x.size(2);
  const at::Tensor padded =
      pad_bottom + pad_right > 0 ? at::constant_pad_nd(x, {0, 0, 0, pad_right, 0, pad_bottom}) : x;
  return padded.view({x.size(0), rows, window, columns, window, x.size(3)})
      .transpose(2, 3)
      .reshape({x.size(0) * rows * columns, window * window, x.size(3)});
}

at::Tensor window_unpartition(const at::Tensor& windows, int64_t window, at::IntArrayRef sizes) {
  VLMTRAIN_CHECK(sizes.size() == 4, "windows of {} dimensions", sizes.size());
  const int64_t rows = count_windows_along_side(sizes[1], window);
  const int64_t columns = count_windows_along_side(sizes[2], window);
  return windows.view({sizes[0], rows, columns, window, window, sizes[3]})
      .transpose(2, 3)
      .reshape({sizes[0], rows * window, columns * window, sizes[3]})
      .narrow(1, 0, sizes[1])
      .narrow(2, 0, sizes[2]);
}

TinyVitBlock::TinyVitBlock(const nn::ParameterScope& scope, const TinyVitConfig& config, const TinyVitStage& stage,
                           const at::Tensor& bias_indices)
    : window_size_(stage.window),
      attention_(scope / "attn", stage, bias_indices, compute_residual_gain(config.num_blocks())),
      norm_(scope / "mlp" / "norm", stage.width, kMlpNormEpsilon),
      fc1_(scope / "mlp" / "fc1", stage.width, config.compute_mlp_width(stage.width), true),
      fc2_(scope / "mlp" / "fc2", config.compute_mlp_width(stage.width), stage.width, true,
           compute_residual_gain(config.num_blocks())),
      local_convolution_(scope / "local_conv", {.in_channels = stage.width,
                                                .out_channels = stage.width,
                                                .kernel_size = config.local_conv_size,
                                                .groups = stage.width}) {}

at::Tensor TinyVitBlock::apply_mlp(const at::Tensor& x) const {
  return fc2_(at::gelu(fc1_(norm_(x).flatten(0, 2)))).view(x.sizes());
}

at::Tensor TinyVitBlock::operator()(const at::Tensor& x) const {
  const at::Tensor positions = to_channels_last(x);
  const at::Tensor hidden_states = positions + window_unpartition(attention_(window_partition(positions, window_size_)),
                                                                  window_size_, positions.sizes());
  const at::Tensor convolved = to_channels_last(local_convolution_(to_channels_first(hidden_states)));
  return to_channels_first(convolved + apply_mlp(convolved));
}

}  // namespace vlmtrain::models
