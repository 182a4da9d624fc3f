#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <string>
#include <vector>

#include "models/gemma4/family.h"
#include "models/gemma4/text_config.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::gemma4 {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json make_text(const json& changes = json::object()) {
  json text{{"hidden_size_per_layer_input", 0}, {"num_hidden_layers", 7}, {"attention_k_eq_v", true}};
  text.update(changes);
  return text;
}

std::string get_error(const json& changes) {
  try {
    read_text_config(make_text(changes), GemmaVersion::k4, "config.json");
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    return error.what();
  }
  return "no error";
}

TEST(Gemma4Config, HasTheDefaultsOfTransformers) {
  const GemmaConfig config = read_text_config(make_text(), GemmaVersion::k4, "config.json");
  constexpr auto kSlides = GemmaLayerType::kSliding, kFull = GemmaLayerType::kFull;
  EXPECT_THAT(config.layer_types, ElementsAre(kSlides, kSlides, kSlides, kSlides, kSlides, kFull, kFull));
  EXPECT_EQ(config.full.heads.head_dim, 512);
  EXPECT_EQ(config.sliding.heads.head_dim, 256);
  EXPECT_FALSE(config.full.heads.has_value_projection);
  EXPECT_TRUE(config.sliding.heads.has_value_projection);
  EXPECT_EQ(config.sliding.window, 512);
  EXPECT_EQ(config.logit_soft_cap, 0);
  EXPECT_FALSE(config.sliding.is_bidirectional_in_images);
  EXPECT_EQ(config.full.rope.type, RopeType::kProportional);
  // A quarter of the pairs rotates.
  const auto frequencies = config.full.rope.compute_frequencies(config.full.heads.head_dim);
  ASSERT_EQ(frequencies.numel(), 256);
  EXPECT_EQ(frequencies.count_nonzero().item<int64_t>(), 64);
  EXPECT_NEAR(frequencies[1].item<double>(), std::pow(1e6, -2.0 / 512), 1e-6);
}

TEST(Gemma4Config, OnlyTheModelWithoutATowerSeesImagesInFullAttention) {
  const json text = make_text({{"use_bidirectional_attention", "vision"}});
  const GemmaConfig with_tower = read_text_config(text, GemmaVersion::k4, "config.json");
  EXPECT_TRUE(with_tower.sliding.is_bidirectional_in_images);
  EXPECT_FALSE(with_tower.full.is_bidirectional_in_images);
  const GemmaConfig unified = read_text_config(json::object(), GemmaVersion::k4Unified, "config.json");
  EXPECT_TRUE(unified.full.is_bidirectional_in_images);
  EXPECT_EQ(unified.sliding.window, 1024);
}

TEST(Gemma4Config, PublishedAndSavedFilesHaveTheSameHeads) {
  const json published{{"num_hidden_layers", 2},
                       {"layer_types", {"sliding_attention", "full_attention"}},
                       {"global_head_dim", 48},
                       {"num_global_key_value_heads", 1}};
  const json saved{{"num_hidden_layers", 2},
                   {"layer_types", {"sliding_attention", "full_attention"}},
                   {"per_layer_config", {{"1", {{"head_dim", 48}, {"num_key_value_heads", 1}}}}}};
  // transformers pads the numbers of blocks with zeros if there are more than ten.
  json padded{{"layer_types", json(std::vector<std::string>(11, "sliding_attention"))},
              {"num_hidden_layers", 11},
              {"per_layer_config", {{"05", {{"head_dim", 48}, {"num_key_value_heads", 1}}}}}};
  padded["layer_types"][5] = "full_attention";
  padded["layer_types"][10] = "full_attention";
  padded["per_layer_config"]["10"] = padded["per_layer_config"]["05"];
  for (const json& changes : {published, saved, padded}) {
    const GemmaConfig config = read_text_config(make_text(changes), GemmaVersion::k4, "config.json");
    EXPECT_EQ(config.full.heads.head_dim, 48);
    EXPECT_EQ(config.full.heads.num_key_value_heads, 1);
    EXPECT_EQ(config.sliding.heads.head_dim, 256);
    EXPECT_EQ(config.sliding.heads.num_key_value_heads, 4);
  }
}

TEST(Gemma4Config, LastBlocksReadTheKeysOfTheLastEarlierBlockOfTheirType) {
  const char *const slides = "sliding_attention", *const full = "full_attention";
  const GemmaConfig config =
      read_text_config(make_text({{"layer_types", {slides, full, slides, full, slides, full, full}},
                                  {"num_kv_shared_layers", 3},
                                  {"use_double_wide_mlp", true},
                                  {"intermediate_size", 10}}),
                       GemmaVersion::k4, "config.json");
  std::vector<int64_t> key_value_blocks, intermediate_sizes;
  std::vector<bool> shares_key_value;
  for (int64_t block = 0; block < config.num_layers(); ++block) {
    key_value_blocks.push_back(config.get_key_value_block(block));
    shares_key_value.push_back(config.shares_key_value(block));
    intermediate_sizes.push_back(config.get_intermediate_size(block));
  }
  EXPECT_THAT(key_value_blocks, ElementsAre(0, 1, 2, 3, 2, 3, 3));
  EXPECT_THAT(shares_key_value, ElementsAre(false, false, true, true, false, false, false));
  EXPECT_THAT(intermediate_sizes, ElementsAre(10, 10, 10, 10, 20, 20, 20));
}

TEST(Gemma4Config, PerLayerEmbeddingsAreTheDefaultOfTransformers) {
  EXPECT_EQ(read_text_config({{"num_hidden_layers", 6}}, GemmaVersion::k4, "config.json").per_layer.features, 256);
  EXPECT_EQ(read_text_config(json::object(), GemmaVersion::k4Unified, "config.json").per_layer.features, 0);
}

TEST(Gemma4Config, EmptyPerLayerConfigMeansEqualHeads) {
  // As transformers saves models whose global_head_dim is head_dim; it then ignores global_head_dim.
  const json changes{{"per_layer_config", json::object()}, {"head_dim", 64}, {"global_head_dim", 32}};
  EXPECT_EQ(read_text_config(make_text(changes), GemmaVersion::k4, "config.json").full.heads.head_dim, 64);
}

TEST(Gemma4Config, RefusesWhatItDoesNotSupport) {
  EXPECT_THAT(get_error({{"hidden_size_per_layer_input", 8}, {"vocab_size_per_layer_input", 100}}),
              HasSubstr("vocab_size_per_layer_input 100 is below vocab_size 262144"));
  EXPECT_THAT(get_error({{"num_kv_shared_layers", 2}}),
              HasSubstr("num_kv_shared_layers 2 leaves no block with keys and values for block 5 (full_attention)"));
  EXPECT_THAT(get_error({{"num_kv_shared_layers", 7}}), HasSubstr("num_kv_shared_layers is 7; it must be from 0 to 6"));
  EXPECT_THAT(get_error({{"num_kv_shared_layers", -1}}), HasSubstr("num_kv_shared_layers is -1"));
  EXPECT_THAT(get_error({{"model_type", "gemma3_text"}}), HasSubstr("model_type gemma3_text does not match"));
  EXPECT_THAT(get_error({{"enable_moe_block", true}}), HasSubstr("26B-A4B"));
  EXPECT_THAT(get_error({{"use_bidirectional_attention", "all"}}), HasSubstr("supported: null, vision"));
  EXPECT_THAT(get_error({{"final_logit_softcapping", -1}}), HasSubstr("final_logit_softcapping"));
  EXPECT_THAT(get_error({{"layer_types", {"full_attention"}}}), HasSubstr("num_hidden_layers is 7"));
  EXPECT_THAT(get_error({{"per_layer_config", {{"0", {{"head_dim", 8}}}}}}), HasSubstr("block 0 has other heads"));
  EXPECT_THAT(get_error({{"per_layer_config", {{"7", {{"head_dim", 8}}}}}}), HasSubstr("not the number of one of 7"));
  EXPECT_THAT(get_error({{"per_layer_config", {{"6", {{"intermediate_size", 8}}}}}}),
              HasSubstr("(per_layer_config).6: intermediate_size is not supported"));
}

}  // namespace
}  // namespace vlmtrain::models::gemma4
