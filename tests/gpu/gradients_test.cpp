#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>

#include "engine/small_step.h"
#include "gpu/gpu.h"
#include "parity/case.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::gpu {
namespace {

/// A GPU configuration that is compared with fp32 on the CPU: micro-batches of two, no
/// recomputation.
struct RunConfig {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  int64_t micro_batch_size = 2;
  bool recompute = false;
  int64_t tiles_per_pass = 0;
  nn::Quantization quantization = nn::Quantization::kNone;  ///< with LoRA
};

void PrintTo(const RunConfig& config, std::ostream* out) {
  *out << config.name;
}

struct Result {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients = {};  ///< on the CPU, fp32

  double norm() const {
    double squares = 0;
    for (const auto& [name, gradient] : gradients) squares += std::pow(gradient.norm().item<double>(), 2);
    return std::sqrt(squares);
  }
};

Result compute_result(at::Device device, const parity::Case& reference, const RunConfig& config) {
  std::optional<nn::LoraSettings> lora;
  if (config.quantization != nn::Quantization::kNone) lora = nn::LoraSettings{.rank = 4, .dropout = 0};
  auto model = models::build_model(reference.checkpoint(), device, config.dtype, lora, config.quantization);
  models::load_weights(*model, reference.checkpoint());
  models::initialize_adapter(*model, /*seed=*/0);
  if (config.recompute) model->set_recompute_block_counts({model->num_vision_blocks(), model->num_language_blocks()});
  model->set_vision_tiles_per_pass(config.tiles_per_pass);
  // The loss scale of fp16 is a power of two, so it does not round.
  const double scale = config.dtype == at::kHalf ? 1024 : 1;
  const at::Tensor loss_scale = at::full({}, scale, at::TensorOptions(at::kFloat).device(device));
  const auto samples = reference.samples();
  const auto step =
      engine::accumulate_gradients(*model, samples, {.micro_batch_size = config.micro_batch_size}, loss_scale);
  Result result{.loss = step.loss.item<double>()};
  for (const auto& parameter : model->parameters().all()) {
    if (!parameter.tensor.grad().defined() || parity::has_zero_true_gradient(parameter.name)) continue;
    const at::Tensor gradient = device == at::kCPU ? parameter.tensor.grad() : parameter.tensor.grad().cpu();
    result.gradients[parameter.name] = parity::drop_key_bias(parameter.name, gradient.to(at::kFloat) / scale);
  }
  return result;
}

/// Tensors with less than a hundredth of the total norm are compared as if they had that much.
double relative_error(const at::Tensor& actual, const at::Tensor& expected, double whole_norm) {
  return actual.sub(expected).norm().item<double>() / std::max(expected.norm().item<double>(), whole_norm / 100);
}

class GpuGradients : public GpuTest, public testing::WithParamInterface<std::tuple<std::string, RunConfig>> {};

TEST_P(GpuGradients, MatchCpu) {
  const auto& [name, config] = GetParam();
  if (config.dtype == at::kBFloat16 && !has_bf16()) GTEST_SKIP() << "the GPU has no bf16";
  const parity::Case reference(name);
  RunConfig reference_config = config;
  reference_config.dtype = at::kFloat;
  reference_config.micro_batch_size = 2;
  reference_config.recompute = false;
  reference_config.tiles_per_pass = 0;
  const Result expected = compute_result(at::kCPU, reference, reference_config);
  Result actual = compute_result(device_, reference, config);
  for (auto& [parameter, gradient] : actual.gradients) gradient = fetch_result(gradient);

  // The CPU in 16 bits shows how far that arithmetic is from the exact one.
  const Result cpu_rounded = config.dtype == at::kFloat ? Result{} : compute_result(at::kCPU, reference, config);
  const double norm = expected.norm();
  ASSERT_GT(norm, 0);
  const double loss_bound = config.dtype == at::kFloat ? kFp32Bound / 8
                                                       : std::max(4 * std::abs(cpu_rounded.loss / expected.loss - 1),
                                                                  unit_roundoff(config.dtype));
  deviations_.expect_at_most(loss_bound, std::abs(actual.loss / expected.loss - 1), "loss", name);
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (const auto& [parameter, gradient] : expected.gradients) {
    ASSERT_TRUE(actual.gradients.contains(parameter)) << parameter;
    double bound = kFp32Bound;
    if (config.dtype != at::kFloat) {
      bound = 4 * std::max(relative_error(cpu_rounded.gradients.at(parameter), gradient, norm),
                           unit_roundoff(config.dtype));
    }
    deviations_.expect_at_most(bound, relative_error(actual.gradients.at(parameter), gradient, norm), "gradient",
                               parameter);
  }
}

const auto kCases =
    testing::Values("mixed_batch", "full_heads_untied_tiles", "llava_clip_mistral", "llava_siglip_qwen2",
                    "nanovlm_tiles", "qwen2_5_vl_windows", "qwen2_5_vl_mixed", "qwen2_vl_images", "internvl3_tiles",
                    "internvl3_5_mixed", "internvl_rms_norm_video");

std::string get_test_name(const testing::TestParamInfo<std::tuple<std::string, RunConfig>>& instance) {
  return std::get<0>(instance.param) + "_" + std::get<1>(instance.param).name;
}

INSTANTIATE_TEST_SUITE_P(Of, GpuGradients,
                         testing::Combine(kCases, testing::Values(RunConfig{"fp32"}, RunConfig{"bf16", at::kBFloat16},
                                                                  RunConfig{"fp16", at::kHalf})),
                         get_test_name);

// The layout of a step does not change its result.
INSTANTIATE_TEST_SUITE_P(Layouts, GpuGradients,
                         testing::Combine(testing::Values("mixed_batch", "qwen2_5_vl_windows"),
                                          testing::Values(RunConfig{"recomputed", at::kFloat, 2, true},
                                                          RunConfig{"single_samples", at::kFloat, 1},
                                                          RunConfig{"single_tiles", at::kFloat, 2, false, 1},
                                                          RunConfig{"recomputed_in_bf16", at::kBFloat16, 1, true, 1})),
                         get_test_name);

INSTANTIATE_TEST_SUITE_P(
    Quantized, GpuGradients,
    testing::Combine(
        testing::Values("mixed_batch", "qwen2_5_vl_windows"),
        testing::Values(RunConfig{.name = "nf4", .quantization = nn::Quantization::kNf4},
                        RunConfig{.name = "int8", .quantization = nn::Quantization::kInt8},
                        RunConfig{
                            .name = "nf4_in_bf16", .dtype = at::kBFloat16, .quantization = nn::Quantization::kNf4},
                        RunConfig{.name = "nf4_in_fp16", .dtype = at::kHalf, .quantization = nn::Quantization::kNf4})),
    get_test_name);

}  // namespace
}  // namespace vlmtrain::gpu
