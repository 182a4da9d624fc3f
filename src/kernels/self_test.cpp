#include "kernels/self_test.h"

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
#include "vlmtrain/base/random.h"
#include "vlmtrain/kernels/adamw.h"
#include "vlmtrain/kernels/cross_entropy.h"
#include "vlmtrain/kernels/elementwise.h"
#include "vlmtrain/kernels/patchify.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::kernels {

namespace {

/// Uniform inputs in [−2, 2) from the CPU's generator, which are equal on every device.
class RandomInputGenerator {
 public:
  RandomInputGenerator(at::Device device, at::ScalarType dtype) : options_(at::TensorOptions(device).dtype(dtype)) {}

  at::Tensor make_test_tensor(at::IntArrayRef sizes) {
    const at::Tensor values = at::empty(sizes, at::kFloat);
    auto* value = values.mutable_data_ptr<float>();
    for (int64_t i = 0; i < values.numel(); ++i) *value++ = draw_uniform();
    return values.to(options_);
  }

  at::Tensor make_fp32_test_tensor(at::IntArrayRef sizes) { return make_test_tensor(sizes).to(at::kFloat); }

 private:
  /// Maps 24 random bits, the precision of fp32, to [−2, 2).
  float draw_uniform() { return static_cast<float>(random_stream_.next() >> 40) * 0x1p-22F - 2; }

  at::TensorOptions options_;
  RandomStream random_stream_{derive_stream_seed(1, "kernels", {})};
};

using KernelTestFunction = std::function<std::vector<ComparedTensors>(RandomInputGenerator&, const KernelTestSizes&)>;

std::vector<ComparedTensors> test_gated_activation(RandomInputGenerator& inputs, const KernelTestSizes& sizes) {
  std::vector<ComparedTensors> compared_tensors;
  for (const int64_t columns : sizes.columns) {
    for (const auto activation : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
      const at::Tensor x = inputs.make_test_tensor({sizes.rows, 2 * columns}),
                       gradient = inputs.make_test_tensor({sizes.rows, columns});
      compared_tensors.push_back({gated_activation(x, activation), reference::gated_activation(x, activation)});
      compared_tensors.push_back({gated_activation_backward(gradient, x, activation),
                                  reference::gated_activation_backward(gradient, x, activation)});
    }
  }
  return compared_tensors;
}

std::vector<ComparedTensors> test_activation(RandomInputGenerator& inputs, const KernelTestSizes& sizes) {
  std::vector<ComparedTensors> compared_tensors;
  for (const int64_t columns : sizes.columns) {
    for (const auto function : {ActivationFunction::kGelu, ActivationFunction::kGeluTanh,
                                ActivationFunction::kQuickGelu, ActivationFunction::kRelu}) {
      const at::Tensor x = inputs.make_test_tensor({sizes.rows, columns}),
                       gradient = inputs.make_test_tensor({sizes.rows, columns});
      compared_tensors.push_back({activate(x, function), reference::activate(x, function)});
      compared_tensors.push_back(
          {activation_backward(gradient, x, function), reference::activation_backward(gradient, x, function)});
    }
  }
  return compared_tensors;
}

std::vector<ComparedTensors> test_rope(RandomInputGenerator& inputs, const KernelTestSizes& sizes) {
  std::vector<ComparedTensors> compared_tensors;
  for (const int64_t features : {int64_t{32}, int64_t{6}}) {
    const at::Tensor x = inputs.make_test_tensor({sizes.rows, 6, features});
    const at::Tensor cos = inputs.make_fp32_test_tensor({sizes.rows, 1, features / 2}),
                     sin = inputs.make_fp32_test_tensor({sizes.rows, 1, features / 2});
    const at::Tensor actual = at::empty_like(x);
    const auto split_heads = [](const at::Tensor& heads) {
      return QkvHeads{heads.narrow(1, 0, 3), heads.narrow(1, 3, 2), heads.narrow(1, 5, 1)};
    };
    rope(split_heads(actual), split_heads(x), cos, sin, -1);
    compared_tensors.push_back({actual.narrow(1, 0, 5), reference::rope(x.narrow(1, 0, 5), cos, sin, -1)});
    compared_tensors.push_back({actual.narrow(1, 5, 1), x.narrow(1, 5, 1)});
  }
  return compared_tensors;
}

std::vector<ComparedTensors> test_qk_norm_rope(RandomInputGenerator& inputs, const KernelTestSizes& sizes) {
  constexpr double kEps = 1e-6;
  std::vector<ComparedTensors> compared_tensors;
  for (const auto gain : {NormGain::kWeight, NormGain::kOnePlusWeight}) {
    for (const int64_t features : {int64_t{128}, int64_t{6}}) {
      const at::Tensor x = inputs.make_test_tensor({sizes.rows, 6, features}),
                       gradient = inputs.make_test_tensor({sizes.rows, 6, features});
      const at::Tensor cos = inputs.make_fp32_test_tensor({sizes.rows, 1, features / 2}),
                       sin = inputs.make_fp32_test_tensor({sizes.rows, 1, features / 2});
      const QkNormParams norm{inputs.make_test_tensor({features}), inputs.make_test_tensor({features}), gain, kEps};
      const at::Tensor actual = at::empty_like(x), dx = at::empty_like(x);
      const auto split_heads = [](const at::Tensor& heads) {
        return QkvHeads{heads.narrow(1, 0, 3), heads.narrow(1, 3, 2), heads.narrow(1, 5, 1)};
      };
      const at::Tensor rstd = qk_norm_rope(split_heads(actual), split_heads(x), norm, cos, sin);
      const auto weight_gradients =
          qk_norm_rope_backward(split_heads(dx), split_heads(gradient), split_heads(x), rstd, norm, cos, sin, true);
      const auto compare = [&](int64_t first, int64_t count, const at::Tensor& weight,
                               const at::Tensor& weight_gradient) {
        const at::Tensor heads = x.narrow(1, first, count);
        compared_tensors.push_back(
            {actual.narrow(1, first, count), reference::qk_norm_rope(heads, weight, gain, kEps, cos, sin)});
        const auto expected =
            reference::qk_norm_rope_backward(gradient.narrow(1, first, count), heads, weight, gain, kEps, cos, sin);
        compared_tensors.push_back({dx.narrow(1, first, count), expected.heads});
        compared_tensors.push_back({weight_gradient, expected.weight});
      };
      compare(0, 3, norm.query_weight, weight_gradients.query_weight);
      compare(3, 2, norm.key_weight, weight_gradients.key_weight);
      compared_tensors.push_back({dx.narrow(1, 5, 1), gradient.narrow(1, 5, 1)});
    }
  }
  return compared_tensors;
}

std::vector<ComparedTensors> test_norm(RandomInputGenerator& inputs, const KernelTestSizes& sizes) {
  std::vector<ComparedTensors> compared_tensors;
  for (const int64_t columns : sizes.columns) {
    for (const bool is_centered : {false, true}) {
      const at::Tensor x = inputs.make_test_tensor({sizes.rows, columns}),
                       residual = inputs.make_test_tensor({sizes.rows, columns});
      const NormParams params{.weight = inputs.make_test_tensor({columns}),
                              .bias = is_centered ? inputs.make_test_tensor({columns}) : at::Tensor(),
                              .gain = is_centered ? NormGain::kWeight : NormGain::kOnePlusWeight,
                              .is_centered = is_centered,
                              .eps = 1e-6};
      const at::Tensor gradient = inputs.make_test_tensor({sizes.rows, columns});
      const NormResult actual = norm(x, params, residual);
      compared_tensors.push_back({actual.value, reference::norm(x, params, residual)});
      compared_tensors.push_back({norm_backward(gradient, x, actual.statistics, params, residual),
                                  reference::norm_backward(gradient, x, params, residual)});
    }
  }
  return compared_tensors;
}

std::vector<ComparedTensors> test_cross_entropy(RandomInputGenerator& inputs, const KernelTestSizes& sizes) {
  std::vector<ComparedTensors> compared_tensors;
  for (const int64_t columns : sizes.columns) {
    at::Tensor logits = inputs.make_test_tensor({sizes.rows, columns});
    const at::Tensor row_factors = inputs.make_fp32_test_tensor({sizes.rows});
    const at::Tensor labels = at::arange(sizes.rows, logits.options().dtype(at::kLong));
    const auto expected = reference::cross_entropy(logits, labels, 1, row_factors);
    const auto actual = cross_entropy(logits, labels, 1, row_factors, /*compute_gradient=*/true);
    compared_tensors.push_back({actual.cross_entropy, expected.cross_entropy});
    compared_tensors.push_back({actual.is_correct, expected.is_correct});
    compared_tensors.push_back({logits, expected.logits_gradient});
  }
  return compared_tensors;
}

std::vector<ComparedTensors> test_nf4(RandomInputGenerator& inputs, const KernelTestSizes& sizes) {
  const at::Tensor example = inputs.make_test_tensor({1});
  const auto bytes = [&](int64_t count) {
    return inputs.make_fp32_test_tensor({count}).add_(2).mul_(63).to(at::kByte);
  };
  const Nf4Weights blocks{.packed_indices = bytes(sizes.super_blocks * kNf4SuperBlockSize / 2),
                          .absmax = bytes(sizes.super_blocks * kNf4NestedBlockSize),
                          .nested_absmax = inputs.make_fp32_test_tensor({sizes.super_blocks}),
                          .nested_offset = inputs.make_fp32_test_tensor({2}),
                          .absmax_codebook = inputs.make_fp32_test_tensor({256}),
                          .values = inputs.make_fp32_test_tensor({16}).to(at::kCPU),
                          .first_super_blocks = {0, 2}};
  const at::Tensor actual = at::empty({sizes.super_blocks * kNf4SuperBlockSize}, example.options());
  nf4_dequantize(actual, blocks);
  return {{actual, reference::nf4_dequantize(blocks, example.scalar_type())}};
}

std::vector<ComparedTensors> test_int8(RandomInputGenerator& inputs, const KernelTestSizes& sizes) {
  constexpr double kInt8Step = 1.0 / 127;
  std::vector<ComparedTensors> compared_tensors;
  for (const int64_t columns : sizes.columns) {
    const at::Tensor values = inputs.make_fp32_test_tensor({sizes.rows, columns}).mul_(60).to(at::kChar),
                     absmax = inputs.make_fp32_test_tensor({sizes.rows});
    const at::Tensor actual = at::empty({sizes.rows, columns}, inputs.make_test_tensor({1}).options());
    int8_dequantize(actual, values, absmax, kInt8Step);
    compared_tensors.push_back({actual, reference::int8_dequantize(values, absmax, kInt8Step, actual.scalar_type())});
  }
  return compared_tensors;
}

std::vector<ComparedTensors> test_patchify(RandomInputGenerator& inputs, const KernelTestSizes& sizes) {
  const image::Normalization normalization{{0.5, 0.25, 0.75}, {0.25, 0.5, 0.3}, 1.0 / 255};
  const at::ScalarType dtype = inputs.make_test_tensor({1}).scalar_type();
  const at::Tensor bytes = inputs.make_fp32_test_tensor({3, 3, sizes.image_size.height, sizes.image_size.width})
                               .add_(2)
                               .mul_(63)
                               .to(at::kByte);
  const at::Tensor order = at::arange(2, bytes.options().dtype(at::kLong)).mul_(-1).add_(2);
  std::vector<ComparedTensors> compared_tensors;
  // Patch widths that the kernel reads in packs of 16 bytes, in pairs, byte by byte, and as whole
  // lines.
  for (const auto& patch : {image::ImageSize{16, 16}, {14, 14}, {5, 7}, {11, sizes.image_size.width}}) {
    const image::ByteImages pixels{bytes, normalization, patch.width == 14 ? order : at::Tensor()};
    compared_tensors.push_back({patchify(pixels, patch, dtype), reference::patchify(pixels, patch, dtype)});
  }
  return compared_tensors;
}

std::vector<ComparedTensors> test_dropout(RandomInputGenerator& inputs, const KernelTestSizes& sizes) {
  constexpr int64_t kNumConsumers = 3;
  constexpr DropoutStream kStreams[] = {{.key = 1, .first_row = 0}, {.key = 2, .first_row = 2}};
  const DropoutParams params{.probability = 0.25, .streams = kStreams};
  std::vector<ComparedTensors> compared_tensors;
  for (const int64_t columns : sizes.columns) {
    const at::Tensor x = inputs.make_test_tensor({sizes.rows, columns}),
                     gradients = inputs.make_test_tensor({kNumConsumers, sizes.rows, columns});
    const at::Tensor masks = reference::make_dropout_masks(x, kNumConsumers, params),
                     actual = at::empty_like(gradients);
    dropout(actual, x, params);
    compared_tensors.push_back({actual, reference::dropout(x, masks, params.probability)});
    const at::Tensor expected = reference::dropout_backward(x, gradients, masks, params.probability);
    dropout_backward(x, gradients, params);
    compared_tensors.push_back({x, expected});
  }
  return compared_tensors;
}

/// Tests the first update, from zero moments in fp32, bf16 and 8 bits; the weights have the inputs'
/// type.
std::vector<ComparedTensors> test_adamw(RandomInputGenerator& inputs, const KernelTestSizes& sizes) {
  const int64_t count = sizes.parameters;
  const at::Tensor example = inputs.make_test_tensor({1}), fp32 = inputs.make_fp32_test_tensor({1}),
                   zero = fp32.new_zeros({});
  const at::Tensor codes = at::arange(kNumMomentCodes, fp32.options()).div_(kNumMomentCodes - 1).repeat({2, 1});
  const AdamWStep step{.learning_rate = 0.125,
                       .beta1 = 0.5,
                       .beta2 = 0.75,
                       .epsilon = 1e-3,
                       .weight_decay = 0.25,
                       .divisor = zero + 2,
                       .skip_flag = zero,
                       .code_values = codes,
                       .rounding_bounds = codes + 0.5 / (kNumMomentCodes - 1),
                       .seed = 1};
  std::vector<ComparedTensors> compared_tensors;
  for (const auto moments_type : {at::kFloat, at::kBFloat16, at::kByte}) {
    AdamWParameter parameter{.master = inputs.make_fp32_test_tensor({count}),
                             .gradient = inputs.make_fp32_test_tensor({count}),
                             .weight = example.scalar_type() == at::kFloat ? at::Tensor() : example.new_empty({count}),
                             .steps = zero + 1,
                             .moments = {},
                             .absmax = {}};
    const int64_t blocks = (count + kMomentBlockSize - 1) / kMomentBlockSize;
    for (size_t i = 0; i < 2; ++i) {
      parameter.moments[i] = moments_type == at::kFloat
                                 ? fp32.new_zeros({count})
                                 : fp32.new_zeros({blocks, kMomentBlockSize}, fp32.options().dtype(moments_type));
      if (moments_type == at::kByte) parameter.absmax[i] = fp32.new_zeros({blocks});
    }
    const at::Tensor expected = reference::run_first_adamw_step(parameter.master, parameter.gradient, step);
    adamw(std::span(&parameter, 1), step);
    compared_tensors.push_back({parameter.master, expected});
    if (parameter.weight.defined()) compared_tensors.push_back({parameter.weight, expected.to(example.scalar_type())});
    const at::Tensor mean = parameter.gradient * (0.5 * (1 - step.beta1));  // 0.5 = 1 / divisor
    if (moments_type == at::kFloat) compared_tensors.push_back({parameter.moments[0], mean});
    if (moments_type == at::kBFloat16)
      compared_tensors.push_back({parameter.moments[0].view(-1).narrow(0, 0, count), mean.to(moments_type)});
    // Codes may differ where a value lies on a rounding bound, so only the absmax is compared.
    if (moments_type == at::kByte)
      compared_tensors.push_back(
          {parameter.absmax[0].narrow(0, 0, 1), mean.narrow(0, 0, kMomentBlockSize).abs().amax(0, true)});
  }
  return compared_tensors;
}

struct KernelTestCase {
  Kernel kernel;
  KernelTestFunction test_function;
};

const std::vector<KernelTestCase>& list_kernel_test_cases() {
  static const std::vector<KernelTestCase> test_cases{{Kernel::kGatedActivation, test_gated_activation},
                                                      {Kernel::kActivation, test_activation},
                                                      {Kernel::kRope, test_rope},
                                                      {Kernel::kQkNormRope, test_qk_norm_rope},
                                                      {Kernel::kNorm, test_norm},
                                                      {Kernel::kCrossEntropy, test_cross_entropy},
                                                      {Kernel::kAdamW, test_adamw},
                                                      {Kernel::kNf4, test_nf4},
                                                      {Kernel::kInt8, test_int8},
                                                      {Kernel::kPatchify, test_patchify},
                                                      {Kernel::kDropout, test_dropout}};
  VLMTRAIN_CHECK(test_cases.size() == list_kernels().size(), "expected one test case per kernel, got {} for {} kernels",
                 test_cases.size(), list_kernels().size());
  return test_cases;
}

/// Returns the relative tolerance. 16-bit types: one unit in the last place, because values near a
/// midpoint round either way. fp32: rounding errors of intermediate results; chosen without
/// measurement.
double compute_tolerance(at::ScalarType dtype) {
  constexpr double kFp32Tolerance = 2e-5;
  return dtype == at::kBFloat16 ? 0x1p-7 : dtype == at::kHalf ? 0x1p-10 : kFp32Tolerance;
}

int64_t count_mismatches(const ComparedTensors& compared) {
  const at::Tensor actual = compared.actual.to(at::kCPU).to(at::kDouble);
  const at::Tensor expected = compared.expected.to(at::kCPU).to(at::kDouble);
  // Values below 0.1 are compared absolutely, because sums of larger terms can cancel.
  const at::Tensor tolerance = (expected.abs() + 0.1) * compute_tolerance(compared.expected.scalar_type());
  // Negated so that NaN counts as a mismatch.
  return ((actual - expected).abs() <= tolerance).logical_not().sum().item<int64_t>();
}

std::optional<std::string> find_kernel_failure(Kernel kernel, at::Device device, at::ScalarType dtype) {
  try {
    for (const ComparedTensors& compared : run_kernel_test(kernel, device, dtype)) {
      if (const int64_t count = count_mismatches(compared); count > 0)
        return fmt::format("{} of {} values differ from ATen's", count, compared.expected.numel());
    }
    return std::nullopt;
  } catch (const std::exception& error) {
    return get_first_line(error.what());
  }
}

std::vector<at::ScalarType> get_supported_dtypes(at::Device device) {
  constexpr int kMinBf16Architecture = 80;  // sm_80, Ampere
  const bool has_bf16 = device.is_cpu() || memory::get_architecture(device) >= kMinBf16Architecture;
  return {at::kFloat, has_bf16 ? at::kBFloat16 : at::kHalf};
}

}  // namespace

std::vector<ComparedTensors> run_kernel_test(Kernel kernel, at::Device device, at::ScalarType dtype,
                                             const KernelTestSizes& sizes) {
  RandomInputGenerator inputs(device, dtype);
  return std::ranges::find(list_kernel_test_cases(), kernel, &KernelTestCase::kernel)->test_function(inputs, sizes);
}

std::vector<FailedKernelTest> find_failed_kernel_tests(at::Device device) {
  std::vector<FailedKernelTest> failed_tests;
  for (const Kernel kernel : list_kernels()) {
    if (get_disabled_kernels().contains(kernel)) continue;
    for (const at::ScalarType dtype : get_supported_dtypes(device)) {
      auto failure = find_kernel_failure(kernel, device, dtype);
      if (!failure) continue;
      failed_tests.push_back({kernel, fmt::format("{} in {}: {}", to_string(kernel), toString(dtype), *failure)});
      break;
    }
  }
  if (!device.is_cpu()) memory::empty_cache(device);
  return failed_tests;
}

}  // namespace vlmtrain::kernels
