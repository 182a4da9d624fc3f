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
#include "gpu/card.h"
#include "parity/case.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::gpu {
namespace {

/// How the card does what the CPU does in fp32, with micro-batches of two and nothing recomputed.
struct Way {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  int64_t micro_batch_size = 2;
  bool recompute = false;
  int64_t tiles_per_pass = 0;
  nn::Quantization quantization = nn::Quantization::kNone;  ///< with LoRA
};

void PrintTo(const Way& way, std::ostream* out) {
  *out << way.name;
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

Result result_on(at::Device device, const parity::Case& reference, const Way& way) {
  std::optional<nn::LoraSettings> lora;
  if (way.quantization != nn::Quantization::kNone) lora = nn::LoraSettings{.rank = 4, .dropout = 0};
  auto model = models::build_model(reference.checkpoint(), device, way.dtype, lora, way.quantization);
  models::load_weights(*model, reference.checkpoint());
  models::initialize_adapter(*model, /*seed=*/0);
  if (way.recompute) model->set_recompute({model->vision_blocks(), model->language_blocks()});
  model->set_vision_tiles_per_pass(way.tiles_per_pass);
  // The scale of fp16's loss is a power of two, so that it takes nothing away.
  const double scale = way.dtype == at::kHalf ? 1024 : 1;
  const at::Tensor loss_scale = at::full({}, scale, at::TensorOptions(at::kFloat).device(device));
  const auto samples = reference.samples();
  const auto step =
      engine::accumulate_gradients(*model, samples, {.micro_batch_size = way.micro_batch_size}, loss_scale);
  Result result{.loss = step.loss.item<double>()};
  for (const auto& parameter : model->parameters().all()) {
    if (!parameter.tensor.grad().defined() || parity::has_zero_true_gradient(parameter.name)) continue;
    const at::Tensor gradient = device == at::kCPU ? parameter.tensor.grad() : parameter.tensor.grad().cpu();
    result.gradients[parameter.name] = parity::with_true_gradient(parameter.name, gradient.to(at::kFloat) / scale);
  }
  return result;
}

/// Tensors with less than a hundredth of the whole norm count as if they had as much.
double apart(const at::Tensor& found, const at::Tensor& wanted, double whole_norm) {
  return found.sub(wanted).norm().item<double>() / std::max(wanted.norm().item<double>(), whole_norm / 100);
}

class GpuGradients : public CardTest, public testing::WithParamInterface<std::tuple<std::string, Way>> {};

TEST_P(GpuGradients, AreTheCpus) {
  const auto& [name, way] = GetParam();
  if (way.dtype == at::kBFloat16 && !has_bf16()) GTEST_SKIP() << "the card has no bf16";
  const parity::Case reference(name);
  Way exact = way;
  exact.dtype = at::kFloat;
  exact.micro_batch_size = 2;
  exact.recompute = false;
  exact.tiles_per_pass = 0;
  const Result wanted = result_on(at::kCPU, reference, exact);
  Result found = result_on(device_, reference, way);
  for (auto& [parameter, gradient] : found.gradients) gradient = from_card(gradient);

  // In 16 bits the CPU shows how far the less exact arithmetic is from the exact one.
  const Result rounded = way.dtype == at::kFloat ? Result{} : result_on(at::kCPU, reference, way);
  const double norm = wanted.norm();
  ASSERT_GT(norm, 0);
  const double loss_bound = way.dtype == at::kFloat
                                ? kFp32Bound / 8
                                : std::max(4 * std::abs(rounded.loss / wanted.loss - 1), unit_of(way.dtype));
  deviations_.expect_at_most(loss_bound, std::abs(found.loss / wanted.loss - 1), "loss", name);
  ASSERT_EQ(found.gradients.size(), wanted.gradients.size());
  for (const auto& [parameter, gradient] : wanted.gradients) {
    ASSERT_TRUE(found.gradients.contains(parameter)) << parameter;
    double bound = kFp32Bound;
    if (way.dtype != at::kFloat) {
      bound = 4 * std::max(apart(rounded.gradients.at(parameter), gradient, norm), unit_of(way.dtype));
    }
    deviations_.expect_at_most(bound, apart(found.gradients.at(parameter), gradient, norm), "gradient", parameter);
  }
}

const auto kCases =
    testing::Values("mixed_batch", "full_heads_untied_tiles", "llava_clip_mistral", "llava_siglip_qwen2",
                    "nanovlm_tiles", "qwen2_5_vl_windows", "qwen2_5_vl_mixed", "qwen2_vl_images", "internvl3_tiles",
                    "internvl3_5_mixed", "internvl_rms_norm_video");

std::string name_of(const testing::TestParamInfo<std::tuple<std::string, Way>>& instance) {
  return std::get<0>(instance.param) + "_" + std::get<1>(instance.param).name;
}

INSTANTIATE_TEST_SUITE_P(Of, GpuGradients,
                         testing::Combine(kCases, testing::Values(Way{"fp32"}, Way{"bf16", at::kBFloat16},
                                                                  Way{"fp16", at::kHalf})),
                         name_of);

// No layout of a step changes its result.
INSTANTIATE_TEST_SUITE_P(Layouts, GpuGradients,
                         testing::Combine(testing::Values("mixed_batch", "qwen2_5_vl_windows"),
                                          testing::Values(Way{"recomputed", at::kFloat, 2, true},
                                                          Way{"single_samples", at::kFloat, 1},
                                                          Way{"single_tiles", at::kFloat, 2, false, 1},
                                                          Way{"recomputed_in_bf16", at::kBFloat16, 1, true, 1})),
                         name_of);

INSTANTIATE_TEST_SUITE_P(
    Quantized, GpuGradients,
    testing::Combine(
        testing::Values("mixed_batch", "qwen2_5_vl_windows"),
        testing::Values(Way{.name = "nf4", .quantization = nn::Quantization::kNf4},
                        Way{.name = "int8", .quantization = nn::Quantization::kInt8},
                        Way{.name = "nf4_in_bf16", .dtype = at::kBFloat16, .quantization = nn::Quantization::kNf4},
                        Way{.name = "nf4_in_fp16", .dtype = at::kHalf, .quantization = nn::Quantization::kNf4})),
    name_of);

}  // namespace
}  // namespace vlmtrain::gpu
