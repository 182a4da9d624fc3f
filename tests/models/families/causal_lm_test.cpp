#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/causal_lm/family.h"
#include "models/checkpoint_copy.h"
#include "parity/case.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/models/synthetic_sample.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::causal_lm {
namespace {

using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

LlamaConfig parse_llama_config(const json& config) {
  return std::get<LlamaConfig>(Config::from_json(config, "config.json").text);
}

std::string get_config_error(const json& config) {
  return get_error_message([&] { Config::from_json(config, "config.json"); });
}

TEST(CausalLmConfig, HasDefaultsOfTransformers) {
  EXPECT_FALSE(Config::from_json({{"model_type", "llama"}}, "config.json").tie_word_embeddings);
  EXPECT_FALSE(Config::from_json({{"model_type", "qwen3"}}, "config.json").tie_word_embeddings);
  const auto gemma = Config::from_json({{"model_type", "gemma3_text"}}, "config.json");
  EXPECT_TRUE(gemma.tie_word_embeddings);
  EXPECT_EQ(gemma.vocab_size(), 262'208);
  EXPECT_EQ(gemma.max_positions(), 131'072);
  const auto smollm3 = Config::from_json({{"model_type", "smollm3"}}, "config.json");
  EXPECT_TRUE(smollm3.tie_word_embeddings);
  EXPECT_EQ(smollm3.max_positions(), 32'768);
  EXPECT_EQ(std::get<LlamaConfig>(smollm3.text).rope.theta, 2e6);
}

TEST(CausalLmConfig, BlocksOfSmolLm3WithoutRope) {
  EXPECT_THAT(parse_llama_config({{"model_type", "smollm3"}, {"num_hidden_layers", 5}}).uses_rope,
              ElementsAre(true, true, true, false, true));
  EXPECT_THAT(parse_llama_config({{"model_type", "smollm3"}, {"num_hidden_layers", 2}, {"no_rope_layer_interval", 2}})
                  .uses_rope,
              ElementsAre(true, false));
  EXPECT_THAT(
      parse_llama_config({{"model_type", "smollm3"}, {"num_hidden_layers", 2}, {"no_rope_layers", {0, 1}}}).uses_rope,
      ElementsAre(false, true));
  EXPECT_THAT(get_config_error({{"model_type", "smollm3"}, {"num_hidden_layers", 3}, {"no_rope_layers", {0, 1}}}),
              HasSubstr("no_rope_layers has 2 entries"));
  EXPECT_THAT(get_config_error({{"model_type", "smollm3"}, {"use_sliding_window", true}}),
              HasSubstr("use_sliding_window is not supported"));
}

TEST(CausalLmConfig, RefusesUnsupportedModels) {
  EXPECT_THAT(get_config_error({{"model_type", "qwen3"}, {"num_experts", 8}}), HasSubstr("mixture of experts"));
  EXPECT_THAT(get_config_error({{"model_type", "gemma3_text"}, {"use_bidirectional_attention", true}}),
              HasSubstr("use_bidirectional_attention"));
  const CheckpointCopy copy("llama_text");
  for (const char* type : {"gemma2", "phi3"}) {
    copy.edit("config.json", [&](json& config) { config["model_type"] = type; });
    EXPECT_THAT(get_error_message([&] { build_model(copy.path(), at::kMeta, at::kFloat); }),
                HasSubstr(std::string("model_type ") + type + " is not supported"));
  }
}

TEST(CausalLmConfig, BlocksWithoutRopeAreRefusedInLlama) {
  const CheckpointCopy copy("llama_text");
  copy.edit("config.json", [](json& config) { config["no_rope_layers"] = {1, 0}; });
  EXPECT_THAT(get_error_message([&] { build_model(copy.path(), at::kMeta, at::kFloat); }),
              AllOf(HasSubstr("no_rope_layers"), HasSubstr("not supported")));
}

TEST(CausalLmTemplate, FollowsModelTypeAndTokenizer) {
  const auto choose = [](const json& config, const std::string& parity_case) {
    return choose_fallback_template(Config::from_json(config, "config.json"),
                                    text::read_tokenizer(parity::Case(parity_case).checkpoint()));
  };
  EXPECT_EQ(choose({{"model_type", "llama"}}, "llama_text"), "chatml");
  EXPECT_EQ(choose({{"model_type", "llama"}}, "llava_clip_llama"), "llava_v1");
  EXPECT_EQ(choose({{"model_type", "mistral"}}, "llava_clip_mistral"), "mistral_instruct");
  EXPECT_EQ(choose({{"model_type", "qwen2"}}, "llama_text"), "chatml");
  EXPECT_EQ(choose({{"model_type", "gemma3_text"}}, "gemma3_text"), "gemma3");
}

TEST(CausalLmSamples, MediaAreRejected) {
  const auto processor = load_processor(parity::Case("qwen3_text").checkpoint(), {});
  const auto get_error = [&](const std::string& placeholder, const std::string& file) {
    io::Record record;
    record.id = "seven";
    record.turns = {{io::Role::kUser, placeholder + "What is shown?"}, {io::Role::kAssistant, "A cat."}};
    auto& media = placeholder == io::kVideoPlaceholder ? record.videos : record.images;
    media.emplace_back(file).is_volume = file.ends_with(".nii.gz");
    return get_error_message([&] { processor->process_headers(record, 0); });
  };
  EXPECT_THAT(get_error(std::string(io::kImagePlaceholder), "cat.png"),
              AllOf(HasSubstr("sample seven has media (image cat.png)"), HasSubstr("this model has no vision tower")));
  EXPECT_THAT(get_error(std::string(io::kImagePlaceholder), "scan.nii.gz"), HasSubstr("(volume scan.nii.gz)"));
  EXPECT_THAT(get_error(std::string(io::kVideoPlaceholder), "cat.mp4"), HasSubstr("(video cat.mp4)"));
}

TEST(CausalLmSamples, SyntheticSampleHasNoMedia) {
  const auto folder = parity::Case("qwen3_text").checkpoint();
  EXPECT_EQ(compute_sample_shape(folder, {}).num_media(), 0);
  EXPECT_EQ(compute_sample_shape(folder, {.images = 0, .text_tokens = 2000}).tokens, 2000);
  EXPECT_THAT(get_error_message([&] { compute_sample_shape(folder, {.images = 2}); }, ExitCode::kUsage),
              AllOf(HasSubstr("--images: 2 images in a sample"), HasSubstr("no vision tower")));
}

TEST(CausalLmModel, HasNoVisionTower) {
  const auto model = parity::Case("gemma3_text").load_model();
  EXPECT_EQ(model->num_vision_blocks(), 0);
  EXPECT_EQ(model->num_language_blocks(), 3);
  EXPECT_THROW(model->get_image_features({}, /*with_patch_features=*/false), InternalError);
}

}  // namespace
}  // namespace vlmtrain::models::causal_lm
