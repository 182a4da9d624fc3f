#include <gtest/gtest.h>

#include "models/family.h"

namespace vlmtrain::models {
namespace {

using nlohmann::json;

TEST(ExtendedContext, WithoutRopeScalingIsThatOfConfig) {
  EXPECT_EQ(compute_extended_context({{"max_position_embeddings", 2048}}, 2048), 2048);
  EXPECT_EQ(compute_extended_context({{"rope_scaling", nullptr}}, 2048), 2048);
  EXPECT_EQ(compute_extended_context({{"rope_scaling", {{"type", "mrope"}, {"mrope_section", {16, 24, 24}}}}}, 32768),
            32768);
  EXPECT_EQ(compute_extended_context({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}}, 4096),
            4096);
}

TEST(ExtendedContext, RopeScalingExtendsTheContext) {
  const json yarn{{"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}}}};
  EXPECT_EQ(compute_extended_context(yarn, 32768), 131072);
  EXPECT_EQ(compute_extended_context(yarn, 131072), 131072) << "the longer context is already set";
  EXPECT_EQ(compute_extended_context({{"text_config", yarn}}, 32768), 131072);
  EXPECT_EQ(compute_extended_context({{"llm_config", yarn}}, 32768), 131072);
  EXPECT_EQ(compute_extended_context({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}}}, 4096), 8192);
  const json llama3{
      {"text_config",
       {{"rope_parameters", {{"rope_type", "llama3"}, {"factor", 8.0}, {"original_max_position_embeddings", 8192}}}}}};
  EXPECT_EQ(compute_extended_context(llama3, 131072), 131072);
  const json per_layer_type{{"text_config",
                             {{"rope_parameters",
                               {{"sliding_attention", {{"rope_type", "default"}}},
                                {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}}}}}}}};
  EXPECT_EQ(compute_extended_context(per_layer_type, 32768), 262144) << "Gemma 3 as transformers 5 writes it";
}

TEST(ExtendedContext, InvalidFactorsAreIgnored) {
  EXPECT_EQ(compute_extended_context({{"rope_scaling", "yarn"}}, 100), 100);
  EXPECT_EQ(compute_extended_context({{"rope_scaling", {{"factor", "8"}}}}, 100), 100);
  EXPECT_EQ(compute_extended_context({{"rope_scaling", {{"factor", 1e300}}}}, 100), 100);
  EXPECT_EQ(compute_extended_context({{"text_config", 3}}, 100), 100);
}

}  // namespace
}  // namespace vlmtrain::models
