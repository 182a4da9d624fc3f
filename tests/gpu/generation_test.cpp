#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "gpu/gpu.h"
#include "parity/case.h"
#include "vlmtrain/engine/generation/generate.h"

namespace vlmtrain::gpu {
namespace {

class GpuGeneration : public GpuTest, public testing::WithParamInterface<std::string> {
 protected:
  std::vector<std::vector<int64_t>> generate_responses(at::Device device, at::ScalarType dtype, bool use_cache) const {
    const parity::Case reference(GetParam());
    auto model = models::build_model(reference.checkpoint(), device, dtype);
    models::load_weights(*model, reference.checkpoint());
    const auto processor = reference.load_processor();
    const auto records = reference.records();
    std::vector<data::Sample> prompts;
    for (size_t i = 0; i < records.size(); ++i) {
      prompts.push_back(processor->process_prompt(records[i], static_cast<int64_t>(i)));
    }
    return engine::generate(*model, prompts, {.device = device, .max_new_tokens = 32, .use_cache = use_cache});
  }

  std::vector<std::vector<int64_t>> generate_on_gpu(at::ScalarType dtype) const {
    auto responses = generate_responses(device_, dtype, /*use_cache=*/true);
    if (is_fault_planted()) {
      for (auto& response : responses) ++response.front();
    }
    return responses;
  }
};

TEST_P(GpuGeneration, Fp32ResponsesMatchCpu) {
  const auto expected = generate_responses(at::kCPU, at::kFloat, /*use_cache=*/true);
  EXPECT_EQ(generate_on_gpu(at::kFloat), expected);
}

TEST_P(GpuGeneration, Bf16ResponsesStartAsWithoutCache) {
  if (!has_bf16()) GTEST_SKIP() << "the GPU has no bf16";
  const auto with_cache = generate_on_gpu(at::kBFloat16);
  const auto without_cache = generate_responses(device_, at::kBFloat16, /*use_cache=*/false);
  // Rounding may change a near tie, but hardly within the first tokens of every answer.
  int64_t num_equal = 0;
  for (size_t i = 0; i < with_cache.size(); ++i) {
    num_equal += std::equal(with_cache[i].begin(), with_cache[i].begin() + 4, without_cache[i].begin()) ? 1 : 0;
  }
  EXPECT_GE(2 * num_equal, std::ssize(with_cache));
}

INSTANTIATE_TEST_SUITE_P(Of, GpuGeneration,
                         testing::Values("mixed_batch", "llava_clip_mistral", "nanovlm_tiles", "qwen2_5_vl_mixed",
                                         "internvl3_5_mixed"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace vlmtrain::gpu
