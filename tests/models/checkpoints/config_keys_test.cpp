#include "models/checkpoints/config_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ConfigKeys, SupportedCheckpointsHaveNoUnreadKeys) {
  int64_t num_configs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(parity::Case("text_only").checkpoint().parent_path().parent_path())) {
    const auto folder = entry.path() / "checkpoint";
    if (!std::filesystem::exists(folder / "config.json")) continue;
    EXPECT_THAT(list_checkpoint_warnings(folder), IsEmpty()) << folder;
    ++num_configs;
  }
  EXPECT_GT(num_configs, 20);
  for (const auto& preset : list_presets()) {
    const parity::TemporaryFolder folder;
    write_preset_config(preset, folder.path());
    EXPECT_THAT(list_checkpoint_warnings(folder.path()), IsEmpty()) << preset;
  }
}

TEST(ConfigKeys, UnreadKeysAreListedWithTheirSection) {
  const json config{
      {"model_type", "qwen3_vl"},
      {"num_nextn_predict_layers", 1},
      {"new_switch", false},
      {"nothing", nullptr},
      {"text_config", {{"model_type", "qwen3_vl_text"}, {"expert_bias", 2}, {"rope_scaling", {{"dim", 3}}}}},
      {"vision_config", {{"depth", 2}, {"register_tokens", 4}}}};
  EXPECT_THAT(list_unread_config_keys(config, "x/config.json"),
              ElementsAre(AllOf(HasSubstr("x/config.json: 4 keys are ignored: num_nextn_predict_layers, "),
                                HasSubstr("text_config.expert_bias"), HasSubstr("text_config.rope_scaling.dim"),
                                HasSubstr("vision_config.register_tokens"))));
}

TEST(ConfigKeys, UnsupportedKeysAreRefused) {
  const std::vector<std::pair<const char*, json>> keys{{"logit_scale", 0.0625},
                                                       {"final_logit_softcapping", 30.0},
                                                       {"residual_multiplier", 2},
                                                       {"partial_rotary_factor", 0.5},
                                                       {"use_qk_norm", true},
                                                       {"no_rope_layers", {1, 1, 0}},
                                                       {"transformers_weights", "other.safetensors"}};
  for (const char* name : {"text_only", "qwen3_vl_mixed", "llava_clip_llama"}) {
    for (const auto& [key, value] : keys) {
      const CheckpointCopy copy(name);
      copy.edit("config.json", [&](json& config) { config["text_config"][key] = value; });
      EXPECT_THAT(get_error_message([&] { build_model(copy.path(), at::kMeta, at::kFloat); }),
                  AllOf(HasSubstr("config.json (text_config): "), HasSubstr(key), HasSubstr("not supported")))
          << name;
    }
  }
  const CheckpointCopy copy("text_only");
  copy.edit("config.json", [&](json& config) {
    config["text_config"].update(
        {{"logit_scale", 1}, {"final_logit_softcapping", nullptr}, {"use_qk_norm", false}, {"no_rope_layers", {1, 1}}});
  });
  EXPECT_NO_THROW(build_model(copy.path(), at::kMeta, at::kFloat));
}

TEST(ConfigKeys, SlidingWindowLayersAreRefused) {
  for (const char* name : {"qwen2_vl_images", "qwen3_vl_mixed", "llava_siglip_qwen2", "internvl3_tiles"}) {
    const CheckpointCopy copy(name);
    copy.edit("config.json", [](json& config) {
      json& text = config.contains("text_config") ? config["text_config"] : config;
      text["layer_types"] = {"full_attention", "sliding_attention"};
    });
    EXPECT_THAT(get_error_message([&] { build_model(copy.path(), at::kMeta, at::kFloat); }), HasSubstr("layer_types"))
        << name;
  }
}

}  // namespace
}  // namespace vlmtrain::models
