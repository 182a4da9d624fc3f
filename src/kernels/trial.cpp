#include "kernels/trial.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/reference.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/first_line.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/kernels/adamw.h"
#include "vlmtrain/kernels/cross_entropy.h"
#include "vlmtrain/kernels/dropout.h"
#include "vlmtrain/kernels/patches.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::kernels {

namespace {

/// Inputs of a trial, uniform from −2 to 2, from the host's generator, so that every card gets the same.
class Inputs {
 public:
  Inputs(at::Device device, at::ScalarType dtype) : options_(at::TensorOptions(device).dtype(dtype)) {}

  at::Tensor draw(at::IntArrayRef sizes) {
    const at::Tensor values = at::empty(sizes, at::kFloat);
    auto* value = values.mutable_data_ptr<float>();
    for (int64_t i = 0; i < values.numel(); ++i) *value++ = uniform();
    return values.to(options_);
  }

  at::Tensor fp32(at::IntArrayRef sizes) { return draw(sizes).to(at::kFloat); }

 private:
  float uniform() { return static_cast<float>(random_.next() >> 40) * 0x1p-22F - 2; }

  at::TensorOptions options_;
  RandomStream random_{stream_seed(1, "kernels", {})};
};

using Trial = std::function<std::vector<Compared>(Inputs&, const TrialSizes&)>;

std::vector<Compared> try_gate(Inputs& inputs, const TrialSizes& sizes) {
  std::vector<Compared> all;
  for (const int64_t columns : sizes.columns) {
    for (const auto activation : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
      const at::Tensor x = inputs.draw({sizes.rows, 2 * columns}), gradient = inputs.draw({sizes.rows, columns});
      all.push_back({gate(x, activation), reference::gate(x, activation)});
      all.push_back({gate_backward(gradient, x, activation), reference::gate_backward(gradient, x, activation)});
    }
  }
  return all;
}

std::vector<Compared> try_activation(Inputs& inputs, const TrialSizes& sizes) {
  std::vector<Compared> all;
  for (const int64_t columns : sizes.columns) {
    for (const auto function : {ActivationFunction::kGelu, ActivationFunction::kGeluTanh,
                                ActivationFunction::kQuickGelu, ActivationFunction::kRelu}) {
      const at::Tensor x = inputs.draw({sizes.rows, columns}), gradient = inputs.draw({sizes.rows, columns});
      all.push_back({activate(x, function), reference::activate(x, function)});
      all.push_back(
          {activation_backward(gradient, x, function), reference::activation_backward(gradient, x, function)});
    }
  }
  return all;
}

std::vector<Compared> try_rotate(Inputs& inputs, const TrialSizes& sizes) {
  std::vector<Compared> all;
  for (const int64_t features : {int64_t{32}, int64_t{6}}) {
    const at::Tensor x = inputs.draw({sizes.rows, 6, features});
    const at::Tensor cos = inputs.fp32({sizes.rows, 1, features / 2}), sin = inputs.fp32({sizes.rows, 1, features / 2});
    const at::Tensor made = at::empty_like(x);
    const auto parts = [](const at::Tensor& heads) {
      return Heads{heads.narrow(1, 0, 3), heads.narrow(1, 3, 2), heads.narrow(1, 5, 1)};
    };
    rotate(parts(made), parts(x), cos, sin, -1);
    all.push_back({made.narrow(1, 0, 5), reference::rotate(x.narrow(1, 0, 5), cos, sin, -1)});
    all.push_back({made.narrow(1, 5, 1), x.narrow(1, 5, 1)});
  }
  return all;
}

std::vector<Compared> try_norm_rotate(Inputs& inputs, const TrialSizes& sizes) {
  constexpr double kEps = 1e-6;
  std::vector<Compared> all;
  for (const auto gain : {Gain::kWeight, Gain::kOnePlusWeight}) {
    for (const int64_t features : {int64_t{128}, int64_t{6}}) {
      const at::Tensor x = inputs.draw({sizes.rows, 6, features}), gradient = inputs.draw({sizes.rows, 6, features});
      const at::Tensor cos = inputs.fp32({sizes.rows, 1, features / 2}),
                       sin = inputs.fp32({sizes.rows, 1, features / 2});
      const HeadNorm norm{inputs.draw({features}), inputs.draw({features}), gain, kEps};
      const at::Tensor made = at::empty_like(x), of_x = at::empty_like(x);
      const auto parts = [](const at::Tensor& heads) {
        return Heads{heads.narrow(1, 0, 3), heads.narrow(1, 3, 2), heads.narrow(1, 5, 1)};
      };
      const at::Tensor reciprocal = norm_rotate(parts(made), parts(x), norm, cos, sin);
      const auto of_weights =
          norm_rotate_backward(parts(of_x), parts(gradient), parts(x), reciprocal, norm, cos, sin, true);
      const auto compare = [&](int64_t first, int64_t count, const at::Tensor& weight, const at::Tensor& of_weight) {
        const at::Tensor heads = x.narrow(1, first, count);
        all.push_back({made.narrow(1, first, count), reference::norm_rotate(heads, weight, gain, kEps, cos, sin)});
        const auto wanted =
            reference::norm_rotate_backward(gradient.narrow(1, first, count), heads, weight, gain, kEps, cos, sin);
        all.push_back({of_x.narrow(1, first, count), wanted.heads});
        all.push_back({of_weight, wanted.weight});
      };
      compare(0, 3, norm.query_weight, of_weights.query_weight);
      compare(3, 2, norm.key_weight, of_weights.key_weight);
      all.push_back({of_x.narrow(1, 5, 1), gradient.narrow(1, 5, 1)});
    }
  }
  return all;
}

std::vector<Compared> try_norm(Inputs& inputs, const TrialSizes& sizes) {
  std::vector<Compared> all;
  for (const int64_t columns : sizes.columns) {
    for (const bool is_centered : {false, true}) {
      const at::Tensor x = inputs.draw({sizes.rows, columns}), other = inputs.draw({sizes.rows, columns});
      const Norm by{.weight = inputs.draw({columns}),
                    .bias = is_centered ? inputs.draw({columns}) : at::Tensor(),
                    .gain = is_centered ? Gain::kWeight : Gain::kOnePlusWeight,
                    .is_centered = is_centered,
                    .eps = 1e-6};
      const at::Tensor gradient = inputs.draw({sizes.rows, columns});
      const Normed made = norm(x, by, other);
      all.push_back({made.value, reference::norm(x, by, other)});
      all.push_back(
          {norm_backward(gradient, x, made.statistics, by, other), reference::norm_backward(gradient, x, by, other)});
    }
  }
  return all;
}

std::vector<Compared> try_cross_entropy(Inputs& inputs, const TrialSizes& sizes) {
  std::vector<Compared> all;
  for (const int64_t columns : sizes.columns) {
    at::Tensor logits = inputs.draw({sizes.rows, columns});
    const at::Tensor row_factors = inputs.fp32({sizes.rows});
    const at::Tensor labels = at::arange(sizes.rows, logits.options().dtype(at::kLong));
    const auto wanted = reference::cross_entropy(logits, labels, 1, row_factors);
    const auto made = cross_entropy(logits, labels, 1, row_factors, /*gradient_wanted=*/true);
    all.push_back({made.cross_entropy, wanted.cross_entropy});
    all.push_back({made.is_right, wanted.is_right});
    all.push_back({logits, wanted.of_logits});
  }
  return all;
}

std::vector<Compared> try_nf4(Inputs& inputs, const TrialSizes& sizes) {
  const at::Tensor like = inputs.draw({1});
  const auto bytes = [&](int64_t count) { return inputs.fp32({count}).add_(2).mul_(63).to(at::kByte); };
  const Nf4Blocks blocks{.packed = bytes(sizes.super_blocks * kNf4SuperBlock / 2),
                         .absmax = bytes(sizes.super_blocks * kNf4NestedBlock),
                         .nested_absmax = inputs.fp32({sizes.super_blocks}),
                         .nested_offset = inputs.fp32({2}),
                         .absmax_codes = inputs.fp32({256}),
                         .values = inputs.fp32({16}).to(at::kCPU),
                         .first_super_blocks = {0, 2}};
  const at::Tensor made = at::empty({sizes.super_blocks * kNf4SuperBlock}, like.options());
  nf4_dequantize(made, blocks);
  return {{made, reference::nf4_dequantize(blocks, like.scalar_type())}};
}

std::vector<Compared> try_int8(Inputs& inputs, const TrialSizes& sizes) {
  constexpr double kStep = 1.0 / 127;
  std::vector<Compared> all;
  for (const int64_t columns : sizes.columns) {
    const at::Tensor values = inputs.fp32({sizes.rows, columns}).mul_(60).to(at::kChar),
                     absmax = inputs.fp32({sizes.rows});
    const at::Tensor made = at::empty({sizes.rows, columns}, inputs.draw({1}).options());
    int8_dequantize(made, values, absmax, kStep);
    all.push_back({made, reference::int8_dequantize(values, absmax, kStep, made.scalar_type())});
  }
  return all;
}

std::vector<Compared> try_patches(Inputs& inputs, const TrialSizes& sizes) {
  const image::Normalization normalization{{0.5, 0.25, 0.75}, {0.25, 0.5, 0.3}, 1.0 / 255};
  const at::ScalarType dtype = inputs.draw({1}).scalar_type();
  const at::Tensor bytes =
      inputs.fp32({3, 3, sizes.picture.height, sizes.picture.width}).add_(2).mul_(63).to(at::kByte);
  const at::Tensor order = at::arange(2, bytes.options().dtype(at::kLong)).mul_(-1).add_(2);
  std::vector<Compared> all;
  // Read in packs, in pairs, one by one, and whole lines.
  for (const auto& patch : {image::ImageSize{16, 16}, {14, 14}, {5, 7}, {11, sizes.picture.width}}) {
    const image::BytePixels pixels{bytes, normalization, patch.width == 14 ? order : at::Tensor()};
    all.push_back({patches(pixels, patch, dtype), reference::patches(pixels, patch, dtype)});
  }
  return all;
}

std::vector<Compared> try_dropout(Inputs& inputs, const TrialSizes& sizes) {
  constexpr int64_t kReaders = 3;
  constexpr DropoutStream kStreams[] = {{.key = 1, .first_row = 0}, {.key = 2, .first_row = 2}};
  const DropoutDraw draw{.probability = 0.25, .streams = kStreams};
  std::vector<Compared> all;
  for (const int64_t columns : sizes.columns) {
    const at::Tensor x = inputs.draw({sizes.rows, columns}), gradients = inputs.draw({kReaders, sizes.rows, columns});
    const at::Tensor masks = reference::dropout_masks(x, kReaders, draw), made = at::empty_like(gradients);
    dropout(made, x, draw);
    all.push_back({made, reference::dropout(x, masks, draw.probability)});
    const at::Tensor wanted = reference::dropout_backward(x, gradients, masks, draw.probability);
    dropout_backward(x, gradients, draw);
    all.push_back({x, wanted});
  }
  return all;
}

/// A first step, of moments that are zeros, in fp32, bf16 and 8 bits; the inputs' type is that of the weights.
std::vector<Compared> try_adamw(Inputs& inputs, const TrialSizes& sizes) {
  const int64_t count = sizes.parameters;
  const at::Tensor like = inputs.draw({1}), fp32 = inputs.fp32({1}), zero = fp32.new_zeros({});
  const at::Tensor codes = at::arange(kMomentCodes, fp32.options()).div_(kMomentCodes - 1).repeat({2, 1});
  const AdamWStep step{.learning_rate = 0.125,
                       .beta1 = 0.5,
                       .beta2 = 0.75,
                       .epsilon = 1e-3,
                       .weight_decay = 0.25,
                       .divisor = zero + 2,
                       .skipped = zero,
                       .codes = codes,
                       .bounds = codes + 0.5 / (kMomentCodes - 1),
                       .seed = 1};
  std::vector<Compared> all;
  for (const auto held : {at::kFloat, at::kBFloat16, at::kByte}) {
    MovedTensor moved{.master = inputs.fp32({count}),
                      .gradient = inputs.fp32({count}),
                      .weight = like.scalar_type() == at::kFloat ? at::Tensor() : like.new_empty({count}),
                      .steps = zero + 1,
                      .moments = {},
                      .absmax = {}};
    const int64_t blocks = (count + kMomentBlock - 1) / kMomentBlock;
    for (size_t i = 0; i < 2; ++i) {
      moved.moments[i] = held == at::kFloat ? fp32.new_zeros({count})
                                            : fp32.new_zeros({blocks, kMomentBlock}, fp32.options().dtype(held));
      if (held == at::kByte) moved.absmax[i] = fp32.new_zeros({blocks});
    }
    const at::Tensor wanted = reference::first_adamw_step(moved.master, moved.gradient, step);
    adamw(std::span(&moved, 1), step);
    all.push_back({moved.master, wanted});
    if (moved.weight.defined()) all.push_back({moved.weight, wanted.to(like.scalar_type())});
    const at::Tensor mean = moved.gradient * (0.5 * (1 - step.beta1));
    if (held == at::kFloat) all.push_back({moved.moments[0], mean});
    if (held == at::kBFloat16) all.push_back({moved.moments[0].view(-1).narrow(0, 0, count), mean.to(held)});
    if (held == at::kByte)
      all.push_back({moved.absmax[0].narrow(0, 0, 1), mean.narrow(0, 0, kMomentBlock).abs().amax(0, true)});
  }
  return all;
}

struct KernelTrial {
  Kernel kernel;
  Trial trial;
};

const std::vector<KernelTrial>& trials() {
  static const std::vector<KernelTrial> all{{Kernel::kGate, try_gate},      {Kernel::kActivation, try_activation},
                                            {Kernel::kRotate, try_rotate},  {Kernel::kNormRotate, try_norm_rotate},
                                            {Kernel::kNorm, try_norm},      {Kernel::kCrossEntropy, try_cross_entropy},
                                            {Kernel::kAdamW, try_adamw},    {Kernel::kNf4, try_nf4},
                                            {Kernel::kInt8, try_int8},      {Kernel::kPatches, try_patches},
                                            {Kernel::kDropout, try_dropout}};
  VLMTRAIN_CHECK(all.size() == all_kernels().size(), "{} trials of {} kernels", all.size(), all_kernels().size());
  return all;
}

/// A unit in the last place, relative: what lies almost in the middle of two is rounded to either. Of fp32 what is lost
/// on the way.
double allowed(at::ScalarType dtype) {
  constexpr double kOfComputing = 2e-5;
  return dtype == at::kBFloat16 ? 0x1p-7 : dtype == at::kHalf ? 0x1p-10 : kOfComputing;
}

int64_t count_of_wrong(const Compared& compared) {
  const at::Tensor made = compared.made.to(at::kCPU).to(at::kDouble);
  const at::Tensor wanted = compared.wanted.to(at::kCPU).to(at::kDouble);
  const at::Tensor bound = (wanted.abs() + 0.1) * allowed(compared.wanted.scalar_type());
  // Not-a-numbers are within no bound.
  return ((made - wanted).abs() <= bound).logical_not().sum().item<int64_t>();
}

std::optional<std::string> reason_to_leave_out(Kernel kernel, at::Device device, at::ScalarType dtype) {
  try {
    for (const Compared& compared : try_kernel(kernel, device, dtype)) {
      if (const int64_t count = count_of_wrong(compared); count > 0)
        return fmt::format("{} of {} values differ from ATen's", count, compared.wanted.numel());
    }
    return std::nullopt;
  } catch (const std::exception& error) {
    return first_line(error.what());
  }
}

std::vector<at::ScalarType> types_for(at::Device device) {
  constexpr int kFirstWithBf16 = 80;
  const bool has_bf16 = device.is_cpu() || memory::architecture_of(device) >= kFirstWithBf16;
  return {at::kFloat, has_bf16 ? at::kBFloat16 : at::kHalf};
}

}  // namespace

std::vector<Compared> try_kernel(Kernel kernel, at::Device device, at::ScalarType dtype, const TrialSizes& sizes) {
  Inputs inputs(device, dtype);
  return std::ranges::find(trials(), kernel, &KernelTrial::kernel)->trial(inputs, sizes);
}

std::vector<FailedTrial> failed_trials(at::Device device) {
  std::vector<FailedTrial> failed;
  for (const Kernel kernel : all_kernels()) {
    if (left_out_kernels().contains(kernel)) continue;
    for (const at::ScalarType dtype : types_for(device)) {
      auto how = reason_to_leave_out(kernel, device, dtype);
      if (!how) continue;
      failed.push_back({kernel, fmt::format("{} in {}: {}", name_of(kernel), toString(dtype), *how)});
      break;
    }
  }
  if (!device.is_cpu()) memory::release_unused(device);
  return failed;
}

}  // namespace vlmtrain::kernels
