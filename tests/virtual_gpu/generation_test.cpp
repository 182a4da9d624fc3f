#include <gtest/gtest.h>

#include <map>
#include <string>

#include "parity/case.h"
#include "virtual_gpu/virtual_gpu.h"
#include "vlmtrain/engine/generation/generate.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain {
namespace {

struct GenerationCase {
  std::string parity_case;
  at::ScalarType dtype;
  engine::SamplingSettings sampling;
};

void PrintTo(const GenerationCase& generation_case, std::ostream* out) {
  *out << generation_case.parity_case;
}

/// The virtual GPU computes no values: all tokens are 0, and only its calls are checked.
class GenerationTest : public testing::TestWithParam<GenerationCase> {
 protected:
  std::vector<std::vector<int64_t>> generate(int64_t max_new_tokens) const {
    const auto processor = case_.load_processor();
    const auto records = case_.records();
    std::vector<data::Sample> prompts;
    for (size_t i = 0; i < records.size(); ++i) {
      prompts.push_back(processor->process_prompt(records[i], static_cast<int64_t>(i)));
    }
    return engine::generate(*model_, prompts,
                            {.device = device_, .max_new_tokens = max_new_tokens, .sampling = GetParam().sampling});
  }

  void SetUp() override {
    model_ = models::build_model(case_.checkpoint(), device_, GetParam().dtype);
    models::load_weights(*model_, case_.checkpoint());
  }

  const parity::Case case_{GetParam().parity_case};
  const at::Device device_ = memory::open_device("cuda");
  std::unique_ptr<models::VisionLanguageModel> model_;
};

TEST_P(GenerationTest, LaunchesAreAccepted) {
  virtual_gpu().reset();
  const auto answers = generate(/*max_new_tokens=*/40);
  for (const auto& tokens : answers) EXPECT_EQ(tokens.size(), 40U);
  const auto result = counters();
  EXPECT_GT(result.num_launches, 0U);
  EXPECT_EQ(result.num_rejected_launches, 0U);
  EXPECT_EQ(unmodeled_calls(), (std::map<std::string, uint64_t>{}));
}

TEST_P(GenerationTest, EveryStepLaunchesEquallyAndReadsOnlyTokens) {
  const auto run_tokens = [this](int64_t tokens) {
    virtual_gpu().reset();
    generate(tokens);
    return counters();
  };
  run_tokens(2);
  const auto two = run_tokens(2), three = run_tokens(3), ten = run_tokens(10);
  const uint64_t launches_per_step = three.num_launches - two.num_launches;
  EXPECT_EQ(ten.num_launches - three.num_launches, 7 * launches_per_step);
  RecordProperty("launches_of_a_step", static_cast<int>(launches_per_step));
  const auto read_back = [](const vgpu::GpuCounters& result) {
    return result.device_to_host_pinned.num_calls + result.device_to_host_pageable.num_calls;
  };
  EXPECT_EQ(read_back(ten), 10U);
  // Keys and values are not copied, so a step does not depend on the cached length.
  EXPECT_EQ((ten.device_to_device.bytes - three.device_to_device.bytes) % 7, 0U);
}

std::string get_test_name(const testing::TestParamInfo<GenerationCase>& instance) {
  const GenerationCase& generation_case = instance.param;
  return generation_case.parity_case + (generation_case.dtype == at::kFloat ? "_fp32" : "_bf16") +
         (generation_case.sampling.temperature > 0 ? "_sampled" : "");
}

const engine::SamplingSettings kSampled{.temperature = 1, .top_k = 20, .top_p = 0.9, .repetition_penalty = 1.1};

INSTANTIATE_TEST_SUITE_P(, GenerationTest,
                         testing::Values(GenerationCase{"mixed_batch", at::kBFloat16, {}},
                                         GenerationCase{"mixed_batch", at::kFloat, {}},
                                         GenerationCase{"llava_clip_mistral", at::kBFloat16, {}},
                                         GenerationCase{"llava_clip_mistral", at::kFloat, {}},
                                         GenerationCase{"llava_siglip_qwen2", at::kBFloat16, kSampled},
                                         GenerationCase{"internvl3_5_mixed", at::kBFloat16, {}},
                                         GenerationCase{"qwen3_5_images", at::kBFloat16, {}},
                                         GenerationCase{"gemma3_published", at::kBFloat16, {}},
                                         GenerationCase{"gemma3_published", at::kFloat, {}},
                                         GenerationCase{"gemma4_tower", at::kBFloat16, {}},
                                         GenerationCase{"gemma4_per_layer", at::kBFloat16, {}}),
                         get_test_name);

}  // namespace
}  // namespace vlmtrain
