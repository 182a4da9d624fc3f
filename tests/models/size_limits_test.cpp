#include "models/checkpoints/size_limits.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "io/temporary_folder.h"
#include "models/llava/image_processor.h"
#include "models/presets.h"
#include "models/processing/conversation_processor.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/hypothetical_sample.h"

namespace vlmtrain::models {
namespace {

using io::message_of;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Sizes of every family that no model has, under the places where its config.json keeps them.
class AbsurdSizes : public testing::TestWithParam<std::pair<std::string, std::string>> {
 protected:
  /// Why the preset's checkpoint with `value` at `place` is refused.
  std::string refusal(const std::string& preset, const std::string& place, const json& value) const {
    write_preset_config(preset, folder_.path());
    const auto file = folder_.path() / "config.json";
    json config = io::read_json(file);
    config[json::json_pointer(place)] = value;
    io::write_file(file, config.dump());
    const std::string of_building = message_of([&] { build_model(folder_.path(), at::kCPU, at::kFloat); });
    // Planning from sizes alone reads the same config.
    EXPECT_THAT(message_of([&] { shape_of(folder_.path(), {}); }), Not(IsEmpty()));
    return of_building;
  }

  const parity::TemporaryFolder folder_;
};

TEST_P(AbsurdSizes, AreRefusedBeforeAnythingIsBuilt) {
  const auto& [preset, place] = GetParam();
  // nanoVLM's sizes are read under the other families' names.
  const bool renamed = preset.starts_with("nanovlm");
  const std::string key = renamed ? "config.json" : place.substr(place.rfind('/') + 1);
  for (const json& value : {json(0), json(-1), json(int64_t{1} << 31), json(int64_t{1} << 62), json(1e300), json(1.5),
                            json("many"), json::array({1}), json(UINT64_MAX), json(INT64_MIN)}) {
    SCOPED_TRACE(place + " = " + value.dump());
    EXPECT_THAT(refusal(preset, place, value), AllOf(HasSubstr("config.json"), HasSubstr(key)));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, AbsurdSizes,
                         testing::ValuesIn(std::vector<std::pair<std::string, std::string>>{
                             {"smolvlm-256m", "/text_config/num_hidden_layers"},
                             {"smolvlm-256m", "/text_config/hidden_size"},
                             {"smolvlm-256m", "/text_config/intermediate_size"},
                             {"smolvlm-256m", "/text_config/vocab_size"},
                             {"smolvlm-256m", "/text_config/head_dim"},
                             {"smolvlm-256m", "/text_config/num_attention_heads"},
                             {"smolvlm-256m", "/text_config/num_key_value_heads"},
                             {"smolvlm-256m", "/vision_config/hidden_size"},
                             {"smolvlm-256m", "/vision_config/image_size"},
                             {"smolvlm-256m", "/vision_config/patch_size"},
                             {"smolvlm-256m", "/vision_config/num_hidden_layers"},
                             {"smolvlm-256m", "/scale_factor"},
                             {"llava-tiny", "/vision_config/num_hidden_layers"},
                             {"llava-tiny", "/text_config/num_hidden_layers"},
                             {"nanovlm-tiny", "/lm_n_blocks"},
                             {"nanovlm-tiny", "/vit_n_blocks"},
                             {"nanovlm-tiny", "/lm_vocab_size"},
                             {"qwen2.5-vl-tiny", "/text_config/num_hidden_layers"},
                             {"qwen2.5-vl-tiny", "/vision_config/depth"},
                             {"qwen2.5-vl-tiny", "/vision_config/patch_size"},
                             {"qwen2.5-vl-tiny", "/vision_config/spatial_merge_size"},
                             {"qwen2-vl-2b", "/vision_config/embed_dim"},
                             {"internvl3-tiny", "/text_config/num_hidden_layers"},
                             {"internvl3-tiny", "/vision_config/num_hidden_layers"},
                             {"internvl3-tiny", "/vision_config/num_attention_heads"},
                             {"internvl3-tiny", "/vision_config/image_size"},
                             {"internvl3-tiny", "/vision_config/intermediate_size"},
                             {"qwen3-vl-tiny", "/text_config/num_hidden_layers"},
                             {"qwen3-vl-tiny", "/text_config/head_dim"},
                             {"qwen3-vl-tiny", "/vision_config/depth"},
                             {"qwen3-vl-tiny", "/vision_config/num_position_embeddings"},
                             {"gemma-3-tiny", "/text_config/num_hidden_layers"},
                             {"gemma-3-tiny", "/text_config/head_dim"},
                             {"gemma-3-tiny", "/text_config/vocab_size"},
                             {"gemma-3-tiny", "/text_config/num_key_value_heads"},
                             {"gemma-3-tiny", "/vision_config/num_hidden_layers"},
                             {"gemma-3-tiny", "/mm_tokens_per_image"},
                         }));

struct Nonsense {
  std::string preset;
  std::string place;
  std::vector<json> values;
};

/// Numbers that no model computes with, and values where settings with keys belong.
class AbsurdNumbers : public testing::TestWithParam<Nonsense> {};

TEST_P(AbsurdNumbers, AreNamedWithFileAndKey) {
  const auto& [preset, place, values] = GetParam();
  for (const json& value : values) {
    SCOPED_TRACE(place + " = " + value.dump());
    const parity::TemporaryFolder folder;
    write_preset_config(preset, folder.path());
    const auto file = folder.path() / "config.json";
    json config = io::read_json(file);
    config[json::json_pointer(place)] = value;
    io::write_file(file, config.dump());
    EXPECT_THAT(message_of([&] { build_model(folder.path(), at::kMeta, at::kFloat); }),
                AllOf(HasSubstr("config.json"), HasSubstr(place.substr(place.rfind('/') + 1)),
                      Not(HasSubstr("json.exception"))));
  }
}

const std::vector<json> kNoEpsilons{0, -1, -1e-6, 2.0, 1e300, "small"};
const std::vector<json> kNoThetas{0, -5, 1, 1e30, "large"};
const std::vector<json> kNoTokens{0, -1, 1.5, INT64_MAX};
const std::vector<json> kNoSections{json::array(), json::array({1}), 5, "yarn", false};

INSTANTIATE_TEST_SUITE_P(Families, AbsurdNumbers,
                         testing::Values(Nonsense{"smolvlm-tiny", "/text_config/rms_norm_eps", kNoEpsilons},
                                         Nonsense{"smolvlm-tiny", "/vision_config/layer_norm_eps", kNoEpsilons},
                                         Nonsense{"smolvlm-tiny", "/text_config/rope_theta", kNoThetas},
                                         Nonsense{"smolvlm-tiny", "/text_config/rope_parameters", kNoSections},
                                         Nonsense{"smolvlm-tiny", "/text_config/rope_scaling", kNoSections},
                                         Nonsense{"smolvlm-tiny", "/text_config/max_position_embeddings", kNoTokens},
                                         Nonsense{"smolvlm-tiny", "/text_config/sliding_window", kNoTokens},
                                         Nonsense{"llava-tiny", "/vision_config/layer_norm_eps", kNoEpsilons},
                                         Nonsense{"llava-tiny", "/text_config/rms_norm_eps", kNoEpsilons},
                                         Nonsense{"llava-med-7b", "/sliding_window", kNoTokens},
                                         Nonsense{"nanovlm-tiny", "/vit_ln_eps", kNoEpsilons},
                                         Nonsense{"nanovlm-tiny", "/lm_rms_eps", kNoEpsilons},
                                         Nonsense{"nanovlm-tiny", "/lm_re_base", kNoThetas},
                                         Nonsense{"nanovlm-tiny", "/lm_attn_scaling", {0, -1, 1e300}},
                                         Nonsense{"nanovlm-tiny", "/lm_max_position_embeddings", kNoTokens},
                                         Nonsense{"qwen2.5-vl-tiny", "/text_config/rms_norm_eps", kNoEpsilons},
                                         Nonsense{"qwen2.5-vl-tiny", "/text_config/sliding_window", kNoTokens},
                                         Nonsense{"qwen2.5-vl-tiny", "/vision_config/rope_parameters", kNoSections},
                                         Nonsense{"qwen2.5-vl-tiny", "/vision_config/tokens_per_second", kNoTokens},
                                         Nonsense{"internvl3.5-tiny", "/text_config/rms_norm_eps", kNoEpsilons},
                                         Nonsense{"internvl3.5-tiny", "/vision_config/layer_norm_eps", kNoEpsilons},
                                         Nonsense{"internvl3.5-tiny", "/vision_config", kNoSections},
                                         Nonsense{"internvl3.5-tiny", "/downsample_ratio", {0, -0.5, 0.3, 2, "half"}},
                                         Nonsense{"qwen3-vl-tiny", "/text_config/rms_norm_eps", kNoEpsilons},
                                         Nonsense{"qwen3-vl-tiny", "/text_config/rope_theta", kNoThetas},
                                         Nonsense{"qwen3-vl-tiny", "/text_config/rope_scaling", kNoSections},
                                         Nonsense{"qwen3-vl-tiny", "/vision_config/num_position_embeddings", kNoTokens},
                                         Nonsense{"qwen3-vl-tiny", "/vision_config", {5, "yarn", false}},
                                         Nonsense{"gemma-3-tiny", "/text_config/rms_norm_eps", kNoEpsilons},
                                         Nonsense{"gemma-3-tiny", "/text_config/rope_theta", kNoThetas},
                                         Nonsense{"gemma-3-tiny", "/text_config/rope_local_base_freq", kNoThetas},
                                         Nonsense{"gemma-3-tiny", "/text_config/rope_scaling", kNoSections},
                                         Nonsense{"gemma-3-tiny", "/text_config/rope_parameters", kNoSections},
                                         Nonsense{"gemma-3-tiny", "/text_config/query_pre_attn_scalar", {0, -1, "x"}},
                                         Nonsense{"gemma-3-tiny", "/text_config/sliding_window", kNoTokens},
                                         Nonsense{"gemma-3-tiny", "/text_config/sliding_window_pattern", kNoTokens},
                                         Nonsense{"gemma-3-tiny", "/mm_tokens_per_image", {0, -1, 15, 36, "x"}},
                                         Nonsense{"gemma-3-tiny", "/image_token_index", {-1, 608, 1.5}},
                                         Nonsense{"gemma-3-tiny", "/text_config/final_logit_softcapping", {30.0}},
                                         Nonsense{"gemma-3-tiny", "/text_config/layer_types", {{"full_attention"}}}));

TEST(SizeLimits, TheWeightsBesideTheConfigCount) {
  const parity::TemporaryFolder folder;
  write_preset_config("smolvlm-256m", folder.path());
  io::write_safetensors(folder.path() / "model.safetensors", {{"model.a", at::zeros({1000})}});
  EXPECT_THAT(message_of([&] { build_model(folder.path(), at::kCPU, at::kFloat); }),
              AllOf(HasSubstr("config.json: describes a model of"), HasSubstr("the weights beside it have 1e+03")));
  // Weights that cannot be read are the loader's to report.
  io::write_file(folder.path() / "model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_NO_THROW(build_model(folder.path(), at::kMeta, at::kFloat));
}

TEST(SizeLimits, AModelOfTrillionsIsRefused) {
  const parity::TemporaryFolder folder;
  EXPECT_NO_THROW(check_elements(5e11, folder.path()));
  EXPECT_THAT(message_of([&] { check_elements(1e14, folder.path()); }), HasSubstr("more than any has"));
}

TEST(SizeLimits, WhatIsNoCheckpointsJsonIsADataError) {
  for (const char* place : {"/text_config", "/vision_config", "/text_config/rope_scaling", "/layer_types"}) {
    for (const char* preset : {"smolvlm-tiny", "llava-tiny", "qwen2.5-vl-tiny", "internvl3-tiny", "gemma-3-tiny"}) {
      for (const json& value : {json(5), json("x"), json::array({1, 2})}) {
        SCOPED_TRACE(fmt::format("{} {} = {}", preset, place, value.dump()));
        const parity::TemporaryFolder folder;
        write_preset_config(preset, folder.path());
        json config = io::read_json(folder.path() / "config.json");
        try {
          config[json::json_pointer(place)] = value;
        } catch (const json::exception&) {
          continue;
        }
        io::write_file(folder.path() / "config.json", config.dump());
        try {
          build_model(folder.path(), at::kMeta, at::kFloat);
        } catch (const UserError& error) {
          EXPECT_EQ(error.code(), ExitCode::kBadData);
          EXPECT_THAT(error.what(), Not(HasSubstr("json.exception")));
        }
      }
    }
  }
}

TEST(SizeLimits, APictureTakesAQuarterOfTheHostAtMost) {
  constexpr int64_t kGb = 1'000'000'000;
  constexpr auto kPicture = data::MediumKind::kPicture, kVideo = data::MediumKind::kVideo;
  EXPECT_NO_THROW(check_decoding({4000, 6000}, kPicture, 2 * kGb));
  EXPECT_THAT(
      message_of([] {
        check_decoding({12'000, 14'000}, kPicture, 8 * kGb);
      }),
      AllOf(HasSubstr("14000 x 12000 pixels take 2.8 GiB"), HasSubstr("quarter"), HasSubstr("shrink the picture")));
  EXPECT_NO_THROW(check_decoding({12'000, 14'000}, kPicture, 24 * kGb));
  EXPECT_LT(check_decoding({1080, 1920}, kVideo, kGb), kGb / 10) << "however many frames";
  EXPECT_THAT(message_of([] {
                check_decoding({8192, 8192}, kVideo, 8 * kGb);
              }),
              AllOf(HasSubstr("frames of 8192 x 8192"), HasSubstr("shrink the video")));
}

TEST(SizeLimits, AStripIsNotBlownUp) {
  llava::ImageProcessorSettings settings;
  settings.shortest_edge = 336;
  EXPECT_NO_THROW(llava::check_image_size({100, 100'000}, settings));
  EXPECT_THAT(message_of([&] { llava::check_image_size({1, 100'000'000}, settings); }), HasSubstr("resized to"));
  settings.shortest_edge.reset();
  settings.pad_to_square = true;
  EXPECT_NO_THROW(llava::check_image_size({100, 10'000}, settings));
  EXPECT_THAT(message_of([&] { llava::check_image_size({1, 100'000'000}, settings); }), HasSubstr("padded to"));
}

}  // namespace
}  // namespace vlmtrain::models
