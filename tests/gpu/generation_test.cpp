#include <gtest/gtest.h>

#include "parity/case.h"
#include "vlmtrain/engine/generate.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain {
namespace {

/// Needs a real GPU; a virtual one computes nothing.
class GpuGeneration : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (memory::open_device("auto").is_cpu()) GTEST_SKIP() << "there is no GPU";
    if (vgpu::attached() != nullptr) GTEST_SKIP() << "the GPU is a virtual one";
  }

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
};

TEST_P(GpuGeneration, Fp32AnswersAreTheCpus) {
  const auto wanted = answers(at::kCPU, at::kFloat, /*use_cache=*/true);
  EXPECT_EQ(answers(memory::open_device("cuda:0"), at::kFloat, /*use_cache=*/true), wanted);
}

TEST_P(GpuGeneration, Bf16AnswersBeginAsWithoutTheCache) {
  const at::Device device = memory::open_device("cuda:0");
  const auto cached = answers(device, at::kBFloat16, /*use_cache=*/true);
  const auto whole = answers(device, at::kBFloat16, /*use_cache=*/false);
  // Rounding may part them at a near tie, but hardly within the first tokens of every answer.
  int64_t equal = 0;
  for (size_t i = 0; i < cached.size(); ++i) {
    equal += std::equal(cached[i].begin(), cached[i].begin() + 4, whole[i].begin()) ? 1 : 0;
  }
  EXPECT_GE(2 * equal, std::ssize(cached));
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuGeneration, testing::Values("mixed_batch", "llava_clip_mistral"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace vlmtrain
