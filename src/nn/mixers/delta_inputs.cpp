#include "nn/mixers/delta_inputs.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/softplus_backward.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <utility>

namespace vlmtrain::nn {

namespace {

constexpr double kNormEpsilon = 1e-6;  // of the L2 norms; a constant in transformers' code and in FLA

// torch.nn.functional.softplus' defaults.
constexpr double kSoftplusBeta = 1, kSoftplusThreshold = 20;

double compute_query_scale(const GatedDeltaShape& shape) {
  return 1 / std::sqrt(static_cast<double>(shape.key_dim));
}

/// Returns the convolution's weight as [kernel_size, channels] in the dtype of the computation.
at::Tensor transpose_weight(const at::Tensor& weight) {
  return weight.squeeze(1).t().to(at::toOpMathType(weight.scalar_type())).contiguous();
}

/// Returns Σ_j weight_j · rows_(i + j) for each row i of the result: [n, rows, channels] →
/// [n, rows − kernel_size + 1, channels].
at::Tensor convolve_rows(const at::Tensor& rows, const at::Tensor& weight) {
  const int64_t kernel_size = weight.size(0), num_rows = rows.size(1) - kernel_size + 1;
  at::Tensor result = rows.narrow(1, 0, num_rows) * weight[0];
  for (int64_t j = 1; j < kernel_size; ++j) result.addcmul_(rows.narrow(1, j, num_rows), weight[j]);
  return result;
}

/// Returns 1 / √(Σ x² + eps) over the last dimension, which is kept with size 1.
at::Tensor compute_rnorm(const at::Tensor& x) {
  return x.square().sum(-1, /*keepdim=*/true).add_(kNormEpsilon).rsqrt_();
}

/// Returns the gradient of x given that of y = scale · x · rnorm. `normalized` is y.
at::Tensor l2_norm_backward(const at::Tensor& gradient, const at::Tensor& normalized, const at::Tensor& rnorm,
                            double scale) {
  const at::Tensor projection = (gradient * normalized).sum(-1, /*keepdim=*/true).mul_(1 / (scale * scale));
  return at::mul(gradient, scale).addcmul_(normalized, projection, -scale).mul_(rnorm);
}

/// The channels of query, key and value.
struct ChannelRange {
  int64_t first, heads, head_dim;
};

struct QkvChannels {
  ChannelRange query, key, value;

  explicit QkvChannels(const GatedDeltaShape& shape)
      : query{0, shape.key_heads, shape.key_dim},
        key{shape.key_heads * shape.key_dim, shape.key_heads, shape.key_dim},
        value{2 * shape.key_heads * shape.key_dim, shape.value_heads, shape.value_dim} {}
};

/// Returns a view of channels as heads: [..., channels] → [..., heads, head_dim].
at::Tensor view_channels(const at::Tensor& x, const ChannelRange& range) {
  return x.narrow(-1, range.first, range.heads * range.head_dim).unflatten(-1, {range.heads, range.head_dim});
}

/// Returns log α [rows, value_heads].
at::Tensor compute_log_decay(const DeltaProjections& projections) {
  const auto type = at::toOpMathType(projections.step.scalar_type());
  return at::softplus(projections.step.to(type) + projections.step_bias.to(type), kSoftplusBeta, kSoftplusThreshold)
      .mul_(projections.a_log.to(type).exp().neg_());
}

at::Tensor compute_beta(const DeltaProjections& projections) {
  return at::sigmoid(projections.beta.to(at::toOpMathType(projections.beta.scalar_type())));
}

/// Returns the gates [rows, value_heads] of the rows of all chunks, 0 in padding: [chunks,
/// value_heads, kChunkRows].
at::Tensor gather_gates(const at::Tensor& gates, const ChunkLayout& layout) {
  const at::Tensor chunks = gates.index_select(0, layout.rows).view({layout.num_chunks, kChunkRows, -1});
  return (chunks * layout.is_row).transpose(1, 2).contiguous();
}

/// Returns the rows of the stream from those of all chunks: [chunks, heads, kChunkRows, …] →
/// [rows, heads, …].
at::Tensor gather_rows(const at::Tensor& chunks, const ChunkLayout& layout) {
  return chunks.transpose(1, 2).flatten(0, 1).index_select(0, layout.slots);
}

}  // namespace

ChunkedDeltaInputs::ChunkedDeltaInputs(const DeltaProjections& projections, const GatedDeltaShape& shape,
                                       const ChunkLayout& layout)
    : projections_(projections), shape_(shape), layout_(&layout), weight_(transpose_weight(projections.convolution)) {
  const at::NoGradGuard no_gradients;
  rows_ = projections.qkv.index_select(0, layout.history_rows)
              .to(weight_.scalar_type())
              .view({layout.num_chunks, layout.num_history_rows + kChunkRows, -1});
  // Before the first row of a segment there are zeros.
  rows_.narrow(0, 0, layout.num_segments()).narrow(1, 0, layout.num_history_rows).zero_();
  convolved_ = convolve_rows(rows_, weight_);
  const at::Tensor activated = at::silu(convolved_);

  const QkvChannels channels(shape);
  const auto copy_heads = [&](const ChannelRange& range) {
    return view_channels(activated, range).transpose(1, 2).contiguous();
  };
  inputs_.query = copy_heads(channels.query);
  query_rnorm_ = compute_rnorm(inputs_.query);
  inputs_.query.mul_(query_rnorm_).mul_(compute_query_scale(shape));
  inputs_.key = copy_heads(channels.key);
  key_rnorm_ = compute_rnorm(inputs_.key);
  inputs_.key.mul_(key_rnorm_);
  inputs_.value = copy_heads(channels.value);
  inputs_.log_decay = gather_gates(compute_log_decay(projections), layout);
  inputs_.beta = gather_gates(compute_beta(projections), layout);
}

at::Tensor ChunkedDeltaInputs::convolution_backward(const at::Tensor& gradient, at::Tensor* dweight) const {
  at::Tensor drows = at::zeros(rows_.sizes(), gradient.options());
  std::vector<at::Tensor> dtaps;
  for (int64_t j = 0; j < weight_.size(0); ++j) {
    drows.narrow(1, j, kChunkRows).addcmul_(gradient, weight_[j]);
    if (dweight != nullptr) dtaps.push_back((gradient * rows_.narrow(1, j, kChunkRows)).flatten(0, 1).sum(0));
  }
  if (dweight != nullptr) *dweight = at::stack(dtaps, 1).unsqueeze(1).to(projections_.convolution.scalar_type());
  return drows;
}

DeltaProjections ChunkedDeltaInputs::backward(DeltaRuleInputs gradients, const DeltaGradientNeeds& needs) && {
  const at::NoGradGuard no_gradients;
  DeltaProjections result;
  at::Tensor gradient = at::empty_like(convolved_);
  const QkvChannels channels(shape_);
  const auto write = [&](const ChannelRange& range, const at::Tensor& heads) {
    view_channels(gradient, range).copy_(heads.transpose(1, 2));
  };
  write(channels.query, l2_norm_backward(gradients.query, inputs_.query, query_rnorm_, compute_query_scale(shape_)));
  write(channels.key, l2_norm_backward(gradients.key, inputs_.key, key_rnorm_, 1));
  write(channels.value, gradients.value);
  gradients.query.reset();
  gradients.key.reset();
  gradients.value.reset();
  inputs_ = {};
  at::silu_backward_out(gradient, gradient, convolved_);
  convolved_.reset();

  const at::Tensor drows = convolution_backward(gradient, needs.convolution ? &result.convolution : nullptr);
  gradient.reset();
  rows_.reset();
  at::Tensor dqkv = drows.flatten(0, 1).index_select(0, layout_->history_slots);
  const int64_t first = layout_->num_segments(), count = layout_->num_chunks - first;
  if (count > 0 && layout_->num_history_rows > 0) {
    // The rows before a chunk belong to the chunk before it. No row precedes two chunks.
    const at::Tensor rows = layout_->history_rows.view({layout_->num_chunks, -1});
    const auto select_history = [&](const at::Tensor& x) {
      return x.narrow(0, first, count).narrow(1, 0, layout_->num_history_rows).flatten(0, 1);
    };
    dqkv.index_add_(0, select_history(rows), select_history(drows));
  }
  result.qkv = dqkv.to(projections_.qkv.scalar_type());

  const auto type = dqkv.scalar_type();
  const at::Tensor beta = compute_beta(projections_);
  result.beta = gather_rows(gradients.beta, *layout_).mul_(beta).mul_(1 - beta).to(projections_.beta.scalar_type());

  const at::Tensor dlog_decay = gather_rows(gradients.log_decay, *layout_);
  const at::Tensor steps = projections_.step.to(type) + projections_.step_bias.to(type);
  const at::Tensor dsteps = at::softplus_backward(dlog_decay, steps, kSoftplusBeta, kSoftplusThreshold)
                                .mul_(projections_.a_log.to(type).exp().neg_());
  result.step = dsteps.to(projections_.step.scalar_type());
  if (needs.gates) {
    result.step_bias = dsteps.sum(0).to(projections_.step_bias.scalar_type());
    result.a_log = (dlog_decay * compute_log_decay(projections_)).sum(0).to(projections_.a_log.scalar_type());
  }
  return result;
}

DeltaRuleInputs make_step_inputs(const DeltaProjections& projections, const GatedDeltaShape& shape,
                                 const at::Tensor& history) {
  const at::NoGradGuard no_gradients;
  const at::Tensor weight = transpose_weight(projections.convolution);
  const at::Tensor rows = at::cat({history, projections.qkv.unsqueeze(1)}, 1);
  history.copy_(rows.narrow(1, 1, history.size(1)));
  const at::Tensor activated = at::silu(convolve_rows(rows.to(weight.scalar_type()), weight)).squeeze(1);
  const QkvChannels channels(shape);
  const at::Tensor query = view_channels(activated, channels.query), key = view_channels(activated, channels.key);
  return {.query = (query * compute_rnorm(query)).mul_(compute_query_scale(shape)),
          .key = key * compute_rnorm(key),
          .value = view_channels(activated, channels.value),
          .log_decay = compute_log_decay(projections),
          .beta = compute_beta(projections)};
}

}  // namespace vlmtrain::nn
