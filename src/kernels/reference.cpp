#include "kernels/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels::reference {

namespace {

constexpr double kQuickGeluScale = 1.702;  // OpenAI's CLIP

at::Tensor apply_rope(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin, double direction) {
  const auto halves = heads.chunk(2, -1);
  const at::Tensor signed_sin = sin * direction;
  return at::cat({halves[0] * cos - halves[1] * signed_sin, halves[1] * cos + halves[0] * signed_sin}, -1);
}

at::Tensor compute_rstd(const at::Tensor& x, double eps) {
  return x.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
}

at::Tensor compute_gain(const at::Tensor& weight, NormGain gain) {
  const at::Tensor weight_fp64 = weight.to(at::kDouble);
  return gain == NormGain::kOnePlusWeight ? weight_fp64 + 1 : weight_fp64;
}

/// Normalized values x̂ = (x − mean) · rstd, and rstd.
struct NormalizedRows {
  at::Tensor value, rstd;
};

NormalizedRows normalize_rows(const at::Tensor& x, const NormParams& norm) {
  const at::Tensor centered = norm.is_centered ? x - x.mean(-1, /*keepdim=*/true) : x;
  const at::Tensor rstd = compute_rstd(centered, norm.eps);
  return {centered * rstd, rstd};
}

}  // namespace

at::Tensor gated_activation(const at::Tensor& x, GateActivation activation) {
  const auto halves = x.to(at::kDouble).chunk(2, -1);
  const at::Tensor activated_gate =
      activation == GateActivation::kSilu ? at::silu(halves[0]) : at::gelu(halves[0], "tanh");
  return (activated_gate * halves[1]).to(x.scalar_type());
}

at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation) {
  const auto halves = x.to(at::kDouble).chunk(2, -1);
  const at::Tensor activated_gate_gradient = gradient.to(at::kDouble) * halves[1];
  const bool is_silu = activation == GateActivation::kSilu;
  const at::Tensor activated_gate = is_silu ? at::silu(halves[0]) : at::gelu(halves[0], "tanh");
  const at::Tensor gate_gradient = is_silu ? at::silu_backward(activated_gate_gradient, halves[0])
                                           : at::gelu_backward(activated_gate_gradient, halves[0], "tanh");
  return at::cat({gate_gradient, gradient.to(at::kDouble) * activated_gate}, -1).to(x.scalar_type());
}

at::Tensor activate(const at::Tensor& x, ActivationFunction function) {
  const at::Tensor x_fp64 = x.to(at::kDouble);
  const auto value = [&] {
    switch (function) {
      case ActivationFunction::kGelu:
        return at::gelu(x_fp64);
      case ActivationFunction::kGeluTanh:
        return at::gelu(x_fp64, "tanh");
      case ActivationFunction::kQuickGelu:
        return x_fp64 * (x_fp64 * kQuickGeluScale).sigmoid();
      case ActivationFunction::kRelu:
        return x_fp64.clamp_min(0);
    }
    throw InternalError("unknown activation");
  };
  return value().to(x.scalar_type());
}

at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function) {
  const at::Tensor x_fp64 = x.to(at::kDouble), dy = gradient.to(at::kDouble);
  const auto dx = [&] {
    switch (function) {
      case ActivationFunction::kGelu:
        return at::gelu_backward(dy, x_fp64);
      case ActivationFunction::kGeluTanh:
        return at::gelu_backward(dy, x_fp64, "tanh");
      case ActivationFunction::kQuickGelu:
        return at::silu_backward(dy, x_fp64 * kQuickGeluScale);
      case ActivationFunction::kRelu:
        return dy * x_fp64.gt(0);
    }
    throw InternalError("unknown activation");
  };
  return dx().to(x.scalar_type());
}

at::Tensor rope(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin, double direction) {
  return apply_rope(heads.to(at::kDouble), cos, sin, direction).to(heads.scalar_type());
}

at::Tensor nf4_dequantize(const Nf4Weights& blocks, at::ScalarType dtype) {
  const at::Tensor decoded_absmax =
      blocks.absmax_codebook.index_select(0, blocks.absmax.to(at::kLong)).view({-1, kNf4NestedBlockSize});
  at::Tensor absmax = decoded_absmax * blocks.nested_absmax.unsqueeze(1);
  const auto weights = std::ssize(blocks.first_super_blocks);
  for (int64_t i = 0; i < weights; ++i) {
    const auto index = static_cast<size_t>(i);
    const int64_t first = blocks.first_super_blocks[index];
    const int64_t end = i + 1 < weights ? blocks.first_super_blocks[index + 1] : absmax.size(0);
    absmax.narrow(0, first, end - first).add_(blocks.nested_offset[i]);
  }
  const at::Tensor bytes = blocks.packed_indices.to(at::kLong);
  const at::Tensor indices = at::stack({bytes.div(16, "floor"), bytes.remainder(16)}, 1).view(-1);
  const at::Tensor values = blocks.values.to(bytes.device()).index_select(0, indices).view({-1, kNf4BlockSize});
  return (values * absmax.view({-1, 1})).view(-1).to(dtype);
}

at::Tensor int8_dequantize(const at::Tensor& values, const at::Tensor& row_absmax, double step, at::ScalarType dtype) {
  return (values * row_absmax.unsqueeze(1)).mul_(step).to(dtype);
}

at::Tensor patchify(const image::ByteImages& pixels, image::ImageSize patch, at::ScalarType dtype) {
  const at::Tensor bytes =
      pixels.image_indices.defined() ? pixels.bytes.index_select(0, pixels.image_indices) : pixels.bytes;
  // Unfolds twice to be independent of extract_patch_rows() (models/network/patch_embedding.cpp).
  return image::normalize_pixels(bytes, pixels.normalization)
      .to(dtype)
      .unfold(2, patch.height, patch.height)
      .unfold(3, patch.width, patch.width)
      .permute({0, 2, 3, 1, 4, 5})
      .reshape({-1, kNumPixelChannels * patch.height * patch.width});
}

CrossEntropyAndGradient cross_entropy(const at::Tensor& logits, const at::Tensor& labels, double factor,
                                      const at::Tensor& row_factors) {
  const at::Tensor logits_fp64 = logits.to(at::kDouble), label = labels.unsqueeze(1);
  const at::Tensor log_softmax = at::log_softmax(logits_fp64, 1);
  at::Tensor logits_gradient = log_softmax.exp();
  logits_gradient.scatter_add_(1, label, at::full_like(label, -1, logits_gradient.options()));
  logits_gradient.mul_(factor);
  if (row_factors.defined()) logits_gradient.mul_(row_factors.unsqueeze(1));
  const at::Tensor max_logit = logits_fp64.amax(1, /*keepdim=*/true);
  return {log_softmax.gather(1, label).neg_().to(at::kFloat), logits_fp64.gather(1, label).eq(max_logit).to(at::kFloat),
          logits_gradient.to(logits.scalar_type())};
}

at::Tensor run_first_adamw_step(const at::Tensor& master, const at::Tensor& gradient, const AdamWStep& step) {
  // After one update the bias corrections turn the moments into the gradient and its square.
  const at::Tensor gradient_fp64 = gradient.to(at::kDouble) / step.divisor.to(at::kDouble);
  const at::Tensor decayed_weight = master.to(at::kDouble) * (1 - step.learning_rate * step.weight_decay);
  return (decayed_weight - gradient_fp64 / (gradient_fp64.abs() + step.epsilon) * step.learning_rate).to(at::kFloat);
}

std::array<uint32_t, 4> philox(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter) {
  const auto multiply_wide = [](uint64_t a, uint64_t b) {
    return std::pair(static_cast<uint32_t>(a * b >> 32), static_cast<uint32_t>(a * b));
  };
  // The paper's names and constants (Salmon et al. 2011).
  auto [l0, r0, l1, r1] = counter;
  for (int round = 0; round < 10; ++round) {
    const auto [high0, low0] = multiply_wide(0xD2511F53U, l0);
    const auto [high1, low1] = multiply_wide(0xCD9E8D57U, l1);
    l0 = high1 ^ r0 ^ key[0];
    r0 = low1;
    l1 = high0 ^ r1 ^ key[1];
    r1 = low0;
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return {l0, r0, l1, r1};
}

at::Tensor make_dropout_masks(const at::Tensor& x, int64_t num_consumers, const DropoutParams& params) {
  constexpr int64_t kValuesPerPhiloxCall = 8;  // 16-bit numbers in the 128 bits of one Philox call
  const double keep_threshold = (1 - params.probability) * 0x1p32;
  const at::Tensor masks = at::empty({num_consumers, x.size(0), x.size(1)}, at::kDouble);
  auto* mask = masks.mutable_data_ptr<double>();
  for (int64_t consumer = 0; consumer < num_consumers; ++consumer) {
    for (int64_t row = 0; row < x.size(0); ++row) {
      const auto next_stream = std::ranges::upper_bound(params.streams, row, {}, &DropoutStream::first_row);
      const DropoutStream& stream = *std::prev(next_stream);
      const uint64_t key = stream.key;
      const auto stream_row = static_cast<uint64_t>(row - stream.first_row);
      for (int64_t column = 0; column < x.size(1); ++column) {
        const auto draw_16_bits = [&](uint32_t is_lower) {
          const auto words = philox(
              {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)},
              {static_cast<uint32_t>(column / kValuesPerPhiloxCall), static_cast<uint32_t>(consumer) | is_lower << 31,
               static_cast<uint32_t>(stream_row), static_cast<uint32_t>(stream_row >> 32)});
          const auto index = static_cast<size_t>(column % kValuesPerPhiloxCall);
          return words.at(index / 2) >> (index % 2 * 16) & 0xffffU;
        };
        // Always draws all 32 bits; the kernel draws the lower 16 only if the upper 16 do not
        // decide.
        *mask++ = draw_16_bits(0) * 0x1p16 + draw_16_bits(1) < keep_threshold ? 1 : 0;
      }
    }
  }
  return masks.to(x.device());
}

at::Tensor dropout(const at::Tensor& x, const at::Tensor& masks, double probability) {
  return (x.to(at::kDouble) * masks / (1 - probability)).to(x.scalar_type());
}

at::Tensor dropout_backward(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& masks, double probability) {
  return (sum.to(at::kDouble) + (x.to(at::kDouble) * masks).sum(0) / (1 - probability)).to(x.scalar_type());
}

at::Tensor qk_norm_rope(const at::Tensor& heads, const at::Tensor& weight, NormGain gain, double eps,
                        const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor x = heads.to(at::kDouble);
  return apply_rope(x * compute_rstd(x, eps) * compute_gain(weight, gain), cos, sin, 1).to(heads.scalar_type());
}

QkNormRopeGradients qk_norm_rope_backward(const at::Tensor& gradient, const at::Tensor& heads, const at::Tensor& weight,
                                          NormGain gain, double eps, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor x = heads.to(at::kDouble), rstd = compute_rstd(x, eps), xhat = x * rstd;
  const at::Tensor unrotated_dy = apply_rope(gradient.to(at::kDouble), cos, sin, -1);
  const at::Tensor dxhat = unrotated_dy * compute_gain(weight, gain);
  const at::Tensor dx = rstd * (dxhat - xhat * (dxhat * xhat).mean(-1, /*keepdim=*/true));
  return {dx.to(heads.scalar_type()), (unrotated_dy * xhat).sum(at::IntArrayRef{0, 1}).to(weight.scalar_type())};
}

at::Tensor norm(const at::Tensor& x, const NormParams& norm, const at::Tensor& residual) {
  at::Tensor value = normalize_rows(x.to(at::kDouble), norm).value * compute_gain(norm.weight, norm.gain);
  if (norm.bias.defined()) value = value + norm.bias;
  if (residual.defined()) value = value + residual;
  return value.to(x.scalar_type());
}

at::Tensor norm_backward(const at::Tensor& gradient, const at::Tensor& x, const NormParams& norm,
                         const at::Tensor& residual_gradient) {
  const auto [value, rstd] = normalize_rows(x.to(at::kDouble), norm);
  const at::Tensor dxhat = gradient.to(at::kDouble) * compute_gain(norm.weight, norm.gain);
  at::Tensor dx = dxhat - value * (dxhat * value).mean(-1, /*keepdim=*/true);
  if (norm.is_centered) dx = dx - dxhat.mean(-1, /*keepdim=*/true);
  dx = dx * rstd;
  if (residual_gradient.defined()) dx = dx + residual_gradient;
  return dx.to(x.scalar_type());
}

}  // namespace vlmtrain::kernels::reference
