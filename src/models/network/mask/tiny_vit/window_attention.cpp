#include "models/network/mask/tiny_vit/window_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>

#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/biased_attention.h"

namespace vlmtrain::models {

namespace {

constexpr double kWindowNormEpsilon = 1e-5;  // torch.nn.LayerNorm's

int64_t count_windows(int64_t side, int64_t window) {
  return (side + window - 1) / window;
}

}  // namespace

at::Tensor make_window_offsets(int64_t window, at::Device device) {
  const at::Tensor positions = at::arange(window, at::TensorOptions(at::kLong));
  const at::Tensor distance = (positions.unsqueeze(1) - positions.unsqueeze(0)).abs();
  const at::Tensor rows = distance.view({window, 1, window, 1});
  const at::Tensor columns = distance.view({1, window, 1, window});
  return (rows * window + columns).flatten().to(device);
}

WindowAttention::WindowAttention(const nn::ParameterScope& scope, const TinyVitStage& stage, at::Tensor offsets,
                                 double initial_gain)
    : heads_(stage.heads),
      norm_(scope / "norm", stage.width, kWindowNormEpsilon),
      qkv_(scope / "qkv", stage.width, 3 * stage.width, true),
      projection_(scope / "proj", stage.width, stage.width, true, initial_gain),
      biases_(
          scope.parameter("attention_biases", {stage.heads, stage.window * stage.window}, nn::InitialValues::zeros())),
      offsets_(std::move(offsets)) {}

/// Taken in fp32, so that an entry's gradient, a sum over hundreds of pairs of positions, is added up there.
at::Tensor WindowAttention::bias(int64_t positions, at::ScalarType dtype) const {
  return biases_.to(at::kFloat).index_select(1, offsets_).to(dtype).view({1, heads_, positions, positions});
}

at::Tensor WindowAttention::operator()(const at::Tensor& x) const {
  const int64_t positions = x.size(1);
  const at::Tensor projected = qkv_(norm_(x).flatten(0, 1)).view({x.size(0), positions, heads_, -1});
  const std::vector<at::Tensor> qkv_parts = projected.chunk(3, /*dim=*/-1);
  const at::Tensor attended =
      nn::biased_attention(qkv_parts[0], qkv_parts[1], qkv_parts[2], bias(positions, projected.scalar_type()));
  return projection_(attended.reshape({x.size(0) * positions, x.size(2)})).view(x.sizes());
}

at::Tensor window_partition(const at::Tensor& x, int64_t window) {
  const int64_t rows = count_windows(x.size(1), window);
  const int64_t columns = count_windows(x.size(2), window);
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
  const int64_t rows = count_windows(sizes[1], window);
  const int64_t columns = count_windows(sizes[2], window);
  return windows.view({sizes[0], rows, columns, window, window, sizes[3]})
      .transpose(2, 3)
      .reshape({sizes[0], rows * window, columns * window, sizes[3]})
      .narrow(1, 0, sizes[1])
      .narrow(2, 0, sizes[2]);
}

}  // namespace vlmtrain::models
