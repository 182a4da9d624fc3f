#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "planner/dry_run.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/weights/parameters.h"
#include "vlmtrain/planner/dry_run.h"

namespace vlmtrain::planner {
namespace {

using memory::Component;
using testing::Each;

struct ComponentCase {
  const char* name;
  engine::Precision precision;
  models::FrozenParts frozen_parts;
  engine::OptimizerStateDtype states = engine::OptimizerStateDtype::kFp32;

  friend std::ostream& operator<<(std::ostream& out, const ComponentCase& trained) { return out << trained.name; }
};

/// Both moments of a parameter.
int64_t compute_moment_bytes(const nn::Parameter& parameter, engine::OptimizerStateDtype states) {
  const int64_t elements = parameter.elements();
  const int64_t blocks = (elements + 255) / 256;
  if (states == engine::OptimizerStateDtype::kBf16 && elements >= 4096) return 2 * blocks * 256 * 2;
  if (states == engine::OptimizerStateDtype::k8Bit && elements >= 4096 && !parameter.is_embedding) {
    return 2 * blocks * (256 + 4);
  }
  return 2 * elements * 4;
}

/// Masters of bf16 weights are split unless they are small.
int64_t compute_master_bytes(const nn::Parameter& parameter, engine::Precision precision) {
  if (precision == engine::Precision::kFp32) return 0;
  return parameter.elements() * (precision == engine::Precision::kBf16 && parameter.elements() >= 4096 ? 2 : 4);
}

/// Of 16.8 million elements: per moment, values in fp32 and integers; masters, and integers without
/// moments. With 8 bits two numbers per block, and a table of all pairs of codes.
int64_t compute_chunk_bytes(engine::OptimizerStateDtype states, engine::Precision precision) {
  constexpr int64_t kElements = int64_t{16} << 20;
  const int64_t masters = precision == engine::Precision::kBf16 ? 4 * kElements : 0;
  if (states == engine::OptimizerStateDtype::kFp32) return 2 * masters;
  const int64_t buffers = 2 * kElements * (4 + 4) + masters;
  if (states == engine::OptimizerStateDtype::kBf16) return buffers;
  return buffers + 2 * kElements / 256 * (4 + 4) + 2 * 65536 * 8;
}

kernels::KernelSet list_all_kernels() {
  const auto all = kernels::list_kernels();
  return {all.begin(), all.end()};
}

/// The memory of weights, gradients and optimizer state is known without a dry run.
class ComponentsTest : public DryRunTest, public testing::WithParamInterface<ComponentCase> {};

TEST_P(ComponentsTest, MatchTheNumberOfElements) {
  Job job = model_.job();
  job = make_job_with_precision(job, GetParam().precision);
  job.frozen_parts = GetParam().frozen_parts;
  job.optimizer.state_dtype = GetParam().states;
  job.disabled_kernels = list_all_kernels();
  const DryRunResult result = dry_run(job, make_step_config(1), 1);
  const DryRunDetail& detail = *result.detail;

  const auto built = models::build_model(model_.path(), at::kMeta, engine::to_dtype(job.precision));
  models::freeze_parts(*built, job.frozen_parts);
  int64_t total = 0;
  int64_t trained = 0;
  int64_t tensors = 0;
  int64_t moments = 0;
  int64_t masters = 0;
  for (const auto& parameter : built->parameters().all()) {
    total += parameter.tensor.numel();
    ++tensors;
    if (!parameter.tensor.requires_grad()) continue;
    trained += parameter.tensor.numel();
    moments += compute_moment_bytes(parameter, job.optimizer.state_dtype);
    masters += compute_master_bytes(parameter, job.precision);
  }
  EXPECT_EQ(detail.num_parameters, total);
  EXPECT_EQ(detail.num_trainable_parameters, trained);

  // Each tensor is rounded up to 512 bytes. Up to 1 MiB of a block for large tensors may stay
  // unused, except in expandable segments.
  const auto expect_close = [&](Component component, int64_t bytes, int64_t tensors_of_it) {
    const int64_t used_bytes = find_max_bytes(detail, component);
    EXPECT_GE(used_bytes, bytes) << memory::to_string(component);
    EXPECT_LE(used_bytes, bytes + 512 * tensors_of_it + kMiB) << memory::to_string(component);
  };
  expect_close(Component::kWeights, total * (job.precision == engine::Precision::kFp32 ? 4 : 2), tensors);
  expect_close(Component::kGradients, trained * 4, tensors);
  // The step needs a little more for the norm.
  expect_close(Component::kOptimizer, masters + moments + compute_chunk_bytes(job.optimizer.state_dtype, job.precision),
               4 * tensors);
}

/// The fused kernel updates compressed states in place, while ATen decompresses chunks of them.
TEST_P(ComponentsTest, FusedKernelsNeedNoChunks) {
  if (GetParam().states == engine::OptimizerStateDtype::kFp32) GTEST_SKIP() << "fp32 states need no chunks";
  if (!std::filesystem::exists(std::filesystem::path(VLMTRAIN_BINARY).parent_path() / "libvlmtrain_kernels.so")) {
    GTEST_SKIP() << "custom kernels are not built";
  }
  Job job = make_job_with_precision(model_.job(), GetParam().precision);
  job.frozen_parts = GetParam().frozen_parts;
  job.optimizer.state_dtype = GetParam().states;
  const int64_t fused_bytes = find_max_bytes(*dry_run(job, make_step_config(1), 1).detail, Component::kOptimizer);
  job.disabled_kernels = list_all_kernels();
  const int64_t aten_bytes = find_max_bytes(*dry_run(job, make_step_config(1), 1).detail, Component::kOptimizer);
  constexpr int64_t kTables = kMiB;  // of 8 bits: of all pairs of codes
  EXPECT_NEAR(fused_bytes + compute_chunk_bytes(job.optimizer.state_dtype, job.precision), aten_bytes, 2 * kTables);
}

INSTANTIATE_TEST_SUITE_P(
    Of, ComponentsTest,
    testing::Values(
        ComponentCase{"Bf16", engine::Precision::kBf16, {}}, ComponentCase{"Fp32", engine::Precision::kFp32, {}},
        ComponentCase{"Fp16", engine::Precision::kFp16, {}},
        ComponentCase{"Bf16States", engine::Precision::kBf16, {}, engine::OptimizerStateDtype::kBf16},
        ComponentCase{"EightBitStates", engine::Precision::kBf16, {}, engine::OptimizerStateDtype::k8Bit},
        ComponentCase{
            "Fp16EightBitStates", engine::Precision::kFp16, {.vision_tower = true}, engine::OptimizerStateDtype::k8Bit},
        ComponentCase{"FrozenTower", engine::Precision::kBf16, {.vision_tower = true}},
        ComponentCase{"FrozenLanguageModel", engine::Precision::kBf16, {.language_model = true}},
        ComponentCase{"ProjectorOnly", engine::Precision::kFp32, {.vision_tower = true, .language_model = true}}),
    [](const auto& instance) { return instance.param.name; });

class QuantizedWeightsTest : public DryRunTest, public testing::WithParamInterface<nn::Quantization> {};

TEST_P(QuantizedWeightsTest, MatchTheBytesOfTheirTensors) {
  Job job = model_.job();
  job.lora = nn::LoraSettings{.rank = 8};  // a multiple of 16 bytes: A has no rows of zeros
  job.quantization = GetParam();
  const DryRunResult result = dry_run(job, make_step_config(1), 1);
  const auto built =
      models::build_model(model_.path(), at::kMeta, engine::to_dtype(job.precision), job.lora, job.quantization);
  int64_t bytes = 0;
  int64_t b_bytes = 0;  // of the adapters' B
  int64_t tensors = 2;  // the tables
  std::set<const void*> storages;
  for (const auto& parameter : built->parameters().all()) {
    std::vector<at::Tensor> tensors_of_parameter{parameter.tensor};
    if (parameter.quantized_weight) {
      tensors_of_parameter.clear();
      for (const auto& [name, tensor] : parameter.quantized_weight->state()) tensors_of_parameter.push_back(tensor);
    }
    for (const auto& tensor : tensors_of_parameter) {
      const bool is_new = storages.insert(tensor.storage().unsafeGetStorageImpl()).second;
      if (is_new) bytes += static_cast<int64_t>(tensor.storage().nbytes());
    }
    if (parameter.name.ends_with("lora_B.weight")) b_bytes += static_cast<int64_t>(parameter.tensor.nbytes());
    tensors += std::ssize(tensors_of_parameter);
  }
  const int64_t used_bytes = find_max_bytes(*result.detail, Component::kWeights);
  EXPECT_GE(used_bytes, bytes);
  // NF4 has a table of the four values of each pair of bytes.
  const int64_t table_bytes = GetParam() == nn::Quantization::kNf4 ? 65536 * 4 * int64_t{sizeof(float)} : 0;
  // The B of a group share one matrix with zeros outside its diagonal blocks. At most three are in a
  // group: those of queries, keys and values.
  EXPECT_LE(used_bytes, bytes + table_bytes + 2 * b_bytes + 512 * tensors + 4096);

  Job unquantized = job;
  unquantized.quantization = nn::Quantization::kNone;
  const DryRunResult unquantized_result = dry_run(unquantized, make_step_config(1), 1);
  EXPECT_LT(used_bytes, find_max_bytes(*unquantized_result.detail, Component::kWeights));
  EXPECT_EQ(result.detail->num_parameters, unquantized_result.detail->num_parameters);
  EXPECT_EQ(result.detail->num_trainable_parameters, unquantized_result.detail->num_trainable_parameters);
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedWeightsTest,
                         testing::Values(nn::Quantization::kNf4, nn::Quantization::kInt8),
                         [](const auto& instance) { return nn::to_string(instance.param); });

}  // namespace
}  // namespace vlmtrain::planner
