#include "models/network/tiny_vit_blocks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/gelu.h>

#include <utility>
#include <vector>

#include "models/network/block_list.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/attention/attention.h"

namespace vlmtrain::models {

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
