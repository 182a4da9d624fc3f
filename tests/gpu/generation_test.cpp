#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "gpu/card.h"
#include "parity/case.h"
#include "vlmtrain/engine/generate.h"

namespace vlmtrain::gpu {
namespace {

class GpuGeneration : public CardTest, public testing::WithParamInterface<std::string> {
 protected:
  std::vector<std::vector<int64_t>> answers(at::Device device, at::ScalarType dtype, bool use_cache) const {
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

  std::vector<std::vector<int64_t>> answers_of_card(at::ScalarType dtype) const {
    auto given = answers(device_, dtype, /*use_cache=*/true);
    if (fault_is_planted()) {
      for (auto& answer : given) ++answer.front();
    }
    return given;
  }
};

TEST_P(GpuGeneration, Fp32AnswersAreTheCpus) {
  const auto wanted = answers(at::kCPU, at::kFloat, /*use_cache=*/true);
  EXPECT_EQ(answers_of_card(at::kFloat), wanted);
}

TEST_P(GpuGeneration, Bf16AnswersBeginAsWithoutTheCache) {
  if (!has_bf16()) GTEST_SKIP() << "the card has no bf16";
  const auto cached = answers_of_card(at::kBFloat16);
  const auto whole = answers(device_, at::kBFloat16, /*use_cache=*/false);
  // Rounding may part them at a near tie, but hardly within the first tokens of every answer.
  int64_t equal = 0;
  for (size_t i = 0; i < cached.size(); ++i) {
    equal += std::equal(cached[i].begin(), cached[i].begin() + 4, whole[i].begin()) ? 1 : 0;
  }
  EXPECT_GE(2 * equal, std::ssize(cached));
}

INSTANTIATE_TEST_SUITE_P(Of, GpuGeneration,
                         testing::Values("mixed_batch", "llava_clip_mistral", "nanovlm_tiles", "qwen2_5_vl_mixed",
                                         "internvl3_5_mixed"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace vlmtrain::gpu
