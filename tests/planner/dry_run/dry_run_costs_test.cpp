#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "planner/dry_run.h"
#include "vlmtrain/planner/dry_run.h"

namespace vlmtrain::planner {
namespace {

class CostTest : public DryRunTest {
 protected:
  static double matmul_flops(const DryRunResult& result) { return result.costs->total.matmul_flops; }
  static double attention_flops(const DryRunResult& result) { return result.costs->total.attention_flops; }

  nlohmann::json config() const {
    std::ifstream file(model_.path() / "config.json");
    return nlohmann::json::parse(file);
  }
};

TEST_F(CostTest, FlopsAreProportionalToTheSamples) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const DryRunResult one = process.dry_run(request(make_step_config(1), 1));
  for (const auto& [size, samples] : {std::pair{2, 2}, {1, 2}, {3, 3}, {2, 6}}) {
    const DryRunResult larger_result = process.dry_run(request(make_step_config(size), samples));
    EXPECT_EQ(matmul_flops(larger_result), samples * matmul_flops(one));
    EXPECT_EQ(attention_flops(larger_result), samples * attention_flops(one));
    EXPECT_GT(larger_result.costs->total.bytes_moved, one.costs->total.bytes_moved);
    EXPECT_GT(larger_result.costs->total.seconds, one.costs->total.seconds);
    EXPECT_EQ(larger_result.costs->optimizer.bytes_moved, one.costs->optimizer.bytes_moved)
        << "one step of the optimizer";
  }
}

/// Compared with the sizes in config.json: a matmul of [tokens, in] and [in, out] has 2 · tokens ·
/// in · out operations.
TEST_F(CostTest, FlopsOfTheLanguageModelMatchItsSizes) {
  const DryRunResult result = dry_run(model_.job(), make_step_config(1), 1);
  const auto text = config()["text_config"];
  const double hidden = text["hidden_size"];
  const double heads = text["num_attention_heads"];
  const double key_heads = text["num_key_value_heads"];
  const double head_size = text["head_dim"];
  const double layers = text["num_hidden_layers"];
  const double weights =
      hidden * head_size * (2 * heads + 2 * key_heads) + 3 * hidden * text["intermediate_size"].get<double>();
  const auto tokens = static_cast<double>(shape_.tokens);
  EXPECT_EQ(result.costs->language_blocks_forward.matmul_flops, 2 * tokens * layers * weights);
  // Scores and their product with the values, half of them with a causal mask.
  EXPECT_EQ(result.costs->language_blocks_forward.attention_flops,
            0.5 * 4 * tokens * tokens * heads * head_size * layers);
}

TEST_F(CostTest, FlopsOfTheVisionTowerMatchItsSizes) {
  const DryRunResult result = dry_run(model_.job(), make_step_config(1), 1);
  const auto vision = config()["vision_config"];
  const double hidden = vision["hidden_size"];
  const double layers = vision["num_hidden_layers"];
  const double patches_a_side = vision["image_size"].get<double>() / vision["patch_size"].get<double>();
  const double patches = patches_a_side * patches_a_side;
  const auto tiles = static_cast<double>(shape_.pixel_rows);
  const double weights = 4 * hidden * hidden + 2 * hidden * vision["intermediate_size"].get<double>();
  EXPECT_EQ(result.costs->vision_blocks_forward.matmul_flops, 2 * tiles * patches * layers * weights);
  EXPECT_EQ(result.costs->vision_blocks_forward.attention_flops, 4 * tiles * patches * patches * hidden * layers);
}

TEST_F(CostTest, AreConsistent) {
  const DryRunResult result = dry_run(model_.job(), make_step_config(1), 1);
  const StepCosts& costs = *result.costs;
  for (const OperationCost* part : {&costs.vision_blocks_forward, &costs.language_blocks_forward, &costs.optimizer}) {
    EXPECT_GT(part->num_kernel_launches, 0);
    EXPECT_GT(part->bytes_moved, 0);
    EXPECT_GT(part->seconds, 0);
    EXPECT_LT(part->seconds, costs.total.seconds);
    EXPECT_LT(part->num_kernel_launches, costs.total.num_kernel_launches);
  }
  EXPECT_EQ(costs.optimizer.matmul_flops, 0);
  // Forward and backward pass: about three times the forward pass, plus the loss and the projector.
  const double forward = costs.vision_blocks_forward.matmul_flops + costs.language_blocks_forward.matmul_flops;
  EXPECT_GT(costs.total.matmul_flops, 2.9 * forward);
  EXPECT_LT(costs.total.matmul_flops, 3.5 * forward);
}

TEST_F(CostTest, FewerBitsAreFasterOnTheSameGpu) {
  const auto seconds = [&](engine::Precision precision) {
    Job job = model_.job();
    job = make_job_with_precision(job, precision);
    return dry_run(job, make_step_config(2), 2).costs->language_blocks_forward.seconds;
  };
  const double bf16 = seconds(engine::Precision::kBf16);
  EXPECT_NEAR(seconds(engine::Precision::kFp16) / bf16, 1, 0.01) << "an H100 does as many operations in both";
  EXPECT_GT(seconds(engine::Precision::kFp32), 2 * bf16);
}

TEST_F(CostTest, ASlowerGpuTakesLonger) {
  const DryRunResult fast = dry_run(model_.job(), make_step_config(2), 2, "h100");
  const DryRunResult slow = dry_run(model_.job(), make_step_config(2), 2, "l4");
  EXPECT_EQ(matmul_flops(fast), matmul_flops(slow));
  EXPECT_GT(slow.costs->total.seconds, fast.costs->total.seconds);
}

}  // namespace
}  // namespace vlmtrain::planner
