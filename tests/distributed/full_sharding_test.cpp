#include <ATen/TensorOperators.h>

#include "distributed/trained_ranks.h"

namespace vlmtrain::distributed {
namespace {

Parts in_groups_of(int64_t ranks) {
  return {.sharding = engine::Sharding::kHybrid, .group = ranks};
}

class FullSharding : public testing::TestWithParam<How> {};

TEST_P(FullSharding, TrainsAsOneProcessDoes) {
  const Trained alone = train(1, kWhole, GetParam(), 3);
  for (const int64_t ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    expect_same(train(ranks, kSharedWeights, GetParam(), 3), alone, GetParam().tolerance);
  }
  SCOPED_TRACE("two groups of two");
  expect_same(train(4, in_groups_of(2), GetParam(), 3), alone, GetParam().tolerance);
}

TEST_P(FullSharding, GoesOnInAnotherNumberOfRanks) {
  const Trained undisturbed = train(2, kSharedWeights, GetParam(), 4), begun = train(3, kSharedWeights, GetParam(), 2);
  for (const int64_t ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    Trained on = train(ranks, ranks > 1 ? kSharedWeights : kWhole, GetParam(), 2, begun);
    on.losses.insert(on.losses.begin(), begun.losses.begin(), begun.losses.end());
    on.norms.insert(on.norms.begin(), begun.norms.begin(), begun.norms.end());
    expect_same(on, undisturbed, GetParam().tolerance);
  }
  const Trained again = train(3, kSharedWeights, GetParam(), 2);
  EXPECT_EQ(again.losses, begun.losses) << "to the bit";
  for (const auto& [name, tensor] : begun.state) EXPECT_TRUE(at::equal(tensor, again.state.at(name))) << name;
}

/// The rank that it runs out on goes along with the others to the end of their passes.
TEST(FullShardingTest, AStepIsDoneAgainWhereMemoryRunsOutOnOneRank) {
  for (How how : {How{.name = "whole"}, How{.name = "recomputed", .recompute = {.vision = 1, .language = 2}},
                  How{.name = "in passes", .vision_tiles_per_pass = 1}}) {
    SCOPED_TRACE(how.name);
    const Trained undisturbed = train(3, kSharedWeights, how, 4);
    how.runs_out_of_memory = true;
    const Trained disturbed = train(3, kSharedWeights, how, 4);
    EXPECT_EQ(disturbed.done_again, 3);
    EXPECT_EQ(disturbed.losses, undisturbed.losses);
    EXPECT_EQ(disturbed.norms, undisturbed.norms);
    for (const auto& [name, weight] : undisturbed.weights) {
      EXPECT_TRUE(at::equal(disturbed.weights.at(name), weight)) << name;
    }
  }
}

/// Of what is in blocks, (n − 1) / n of the weights is sent twice for each pass and that of the gradients once.
TEST(FullShardingTest, BytesAreThoseOfTwoGathersAndASumOfParts) {
  constexpr int64_t kSteps = 2;
  const Trained shared = train(2, kSharedWeights, How{.name = "whole"}, kSteps);
  int64_t in_blocks = 0, others = 0;
  for (const auto& [name, weight] : shared.weights) {
    (name.find(".layers.") != std::string::npos ? in_blocks : others) += static_cast<int64_t>(weight.nbytes());
  }
  constexpr int64_t kPasses = kSteps * 4;  // micro-batches of one sample
  const auto close_to = [](int64_t bytes, int64_t least) {
    EXPECT_GE(bytes, least);
    EXPECT_LT(static_cast<double>(bytes), 1.1 * static_cast<double>(least)) << "what aligns tensors";
  };
  close_to(shared.summed_in_parts.bytes, kPasses * in_blocks + kSteps * others);
  EXPECT_LT(shared.gathered.bytes, 2 * kPasses * in_blocks * 11 / 10 + kSteps * others * 11 / 10);
  EXPECT_GE(shared.gathered.bytes, kPasses * in_blocks) << "passes without pictures leave the tower out";
}

// Products of 16 bits differ by the shapes in which they are made.
constexpr double kBf16Tolerance = 3e-2;

INSTANTIATE_TEST_SUITE_P(
    Of, FullSharding,
    testing::Values(
        How{.name = "Fp32"}, How{.name = "Bf16", .dtype = at::kBFloat16, .tolerance = kBf16Tolerance},
        How{.name = "Recomputed", .recompute = {.vision = 1, .language = 2}},
        How{.name = "TilesInPasses", .recompute = {.vision = 1}, .vision_tiles_per_pass = 1},
        How{.name = "FrozenTower", .frozen = {.vision_tower = true}},
        How{.name = "FrozenLanguageModel", .frozen = {.language_model = true}},
        How{.name = "Lora", .lora = nn::LoraSettings{.rank = 4}},
        How{.name = "LoraWithDropout",
            .lora = nn::LoraSettings{.rank = 4, .dropout = 0.2},
            .recompute = {.language = 1}},
        How{.name = "LoraOnNf4",
            .lora = nn::LoraSettings{.rank = 4, .left_out = {nn::Component::kVisionTower}},
            .quantization = nn::Quantization::kNf4},
        How{.name = "LoraOnInt8", .lora = nn::LoraSettings{.rank = 4}, .quantization = nn::Quantization::kInt8},
        How{.name = "LoraBesideSavedModules", .lora = nn::LoraSettings{.rank = 4, .modules_to_save = {"layers.1.mlp"}}},
        How{.name = "Windows", .model = "qwen2_5_vl_mixed"}, How{.name = "DeepStack", .model = "qwen3_vl_mixed"},
        How{.name = "LayerScaleAndHeadNorms", .recompute = {.vision = 1, .language = 1}, .model = "internvl3_5_mixed"},
        How{.name = "DeepStackRecomputed", .recompute = {.vision = 3, .language = 2}, .model = "qwen3_vl_images"},
        How{.name = "ImagesBothWays",
            .recompute = {.language = 2, .language_attention_kept = 1},
            .model = "gemma3_published"}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain::distributed
