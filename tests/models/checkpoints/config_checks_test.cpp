#include "models/checkpoints/config_checks.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "io/temporary_folder.h"
#include "models/llava/processor.h"
#include "models/media/media_opener.h"
#include "models/presets.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Impossible sizes of every family, with their places in config.json.
class InvalidSizes : public testing::TestWithParam<std::pair<std::string, std::string>> {
 protected:
  /// Returns the error for the preset's checkpoint with `value` at `key_path`.
  std::string get_error(const std::string& preset, const std::string& key_path, const json& value) const {
    write_preset_config(preset, folder_.path());
    const auto file = folder_.path() / "config.json";
    json config = io::read_json(file);
    config[json::json_pointer(key_path)] = value;
    io::write_file(file, config.dump());
    const std::string message = get_error_message([&] { build_model(folder_.path(), at::kCPU, at::kFloat); });
    // Planning from sizes alone reads the same config.
    EXPECT_THAT(get_error_message([&] { compute_sample_shape(folder_.path(), {}); }), Not(IsEmpty()));
    return message;
  }

  const parity::TemporaryFolder folder_;
};

TEST_P(InvalidSizes, AreRefusedBeforeModelIsBuilt) {
  const auto& [preset, key_path] = GetParam();
  // nanoVLM's sizes are read under the other families' names.
  const bool is_renamed = preset.starts_with("nanovlm");
  const std::string key = is_renamed ? "config.json" : key_path.substr(key_path.rfind('/') + 1);
  for (const json& value : {json(0), json(-1), json(int64_t{1} << 31), json(int64_t{1} << 62), json(1e300), json(1.5),
                            json("many"), json::array({1}), json(UINT64_MAX), json(INT64_MIN)}) {
    SCOPED_TRACE(key_path + " = " + value.dump());
    EXPECT_THAT(get_error(preset, key_path, value), AllOf(HasSubstr("config.json"), HasSubstr(key)));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, InvalidSizes,
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
                             {"qwen3.5-tiny", "/text_config/full_attention_interval"},
                             {"qwen3.5-tiny", "/text_config/linear_conv_kernel_dim"},
                             {"qwen3.5-tiny", "/text_config/linear_key_head_dim"},
                             {"qwen3.5-tiny", "/text_config/linear_num_key_heads"},
                             {"qwen3.5-tiny", "/text_config/linear_num_value_heads"},
                             {"qwen3.5-tiny", "/text_config/linear_value_head_dim"},
                             {"gemma-3-tiny", "/text_config/num_hidden_layers"},
                             {"gemma-3-tiny", "/text_config/head_dim"},
                             {"gemma-3-tiny", "/text_config/vocab_size"},
                             {"gemma-3-tiny", "/text_config/num_key_value_heads"},
                             {"gemma-3-tiny", "/vision_config/num_hidden_layers"},
                             {"gemma-3-tiny", "/mm_tokens_per_image"},
                             {"qwen3-tiny", "/num_hidden_layers"},
                             {"qwen3-tiny", "/head_dim"},
                             {"qwen3-tiny", "/vocab_size"},
                             {"gemma-3-text-tiny", "/num_hidden_layers"},
                             {"gemma-3-text-tiny", "/hidden_size"},
                         }));

struct InvalidValues {
  std::string preset;
  std::string key_path;
  std::vector<json> values;
};

/// Numbers that no model supports, and values in place of objects.
class InvalidNumbers : public testing::TestWithParam<InvalidValues> {};

TEST_P(InvalidNumbers, AreRefusedWithFileAndKey) {
  const auto& [preset, key_path, values] = GetParam();
  for (const json& value : values) {
    SCOPED_TRACE(key_path + " = " + value.dump());
    const parity::TemporaryFolder folder;
    write_preset_config(preset, folder.path());
    const auto file = folder.path() / "config.json";
    json config = io::read_json(file);
    config[json::json_pointer(key_path)] = value;
    io::write_file(file, config.dump());
    EXPECT_THAT(get_error_message([&] { build_model(folder.path(), at::kMeta, at::kFloat); }),
                AllOf(HasSubstr("config.json"), HasSubstr(key_path.substr(key_path.rfind('/') + 1)),
                      Not(HasSubstr("json.exception"))));
  }
}

const std::vector<json> kInvalidEpsilons{0, -1, -1e-6, 2.0, 1e300, "small"};
const std::vector<json> kInvalidThetas{0, -5, 1, 1e30, "large"};
const std::vector<json> kInvalidTokenCounts{0, -1, 1.5, INT64_MAX};
const std::vector<json> kInvalidLayerTypes{
    json::array({"linear_attention"}),
    json::array({"linear_attention", "linear_attention", "linear_attention", "sliding_attention"}), 5, "all"};
const std::vector<json> kInvalidSections{json::array(), json::array({1}), 5, "yarn", false};

INSTANTIATE_TEST_SUITE_P(
    Families, InvalidNumbers,
    testing::Values(InvalidValues{"smolvlm-tiny", "/text_config/rms_norm_eps", kInvalidEpsilons},
                    InvalidValues{"smolvlm-tiny", "/vision_config/layer_norm_eps", kInvalidEpsilons},
                    InvalidValues{"smolvlm-tiny", "/text_config/rope_theta", kInvalidThetas},
                    InvalidValues{"smolvlm-tiny", "/text_config/rope_parameters", kInvalidSections},
                    InvalidValues{"smolvlm-tiny", "/text_config/rope_scaling", kInvalidSections},
                    InvalidValues{"smolvlm-tiny", "/text_config/max_position_embeddings", kInvalidTokenCounts},
                    InvalidValues{"smolvlm-tiny", "/text_config/sliding_window", kInvalidTokenCounts},
                    InvalidValues{"llava-tiny", "/vision_config/layer_norm_eps", kInvalidEpsilons},
                    InvalidValues{"llava-tiny", "/text_config/rms_norm_eps", kInvalidEpsilons},
                    InvalidValues{"llava-med-7b", "/sliding_window", kInvalidTokenCounts},
                    InvalidValues{"nanovlm-tiny", "/vit_ln_eps", kInvalidEpsilons},
                    InvalidValues{"nanovlm-tiny", "/lm_rms_eps", kInvalidEpsilons},
                    InvalidValues{"nanovlm-tiny", "/lm_re_base", kInvalidThetas},
                    InvalidValues{"nanovlm-tiny", "/lm_attn_scaling", {0, -1, 1e300}},
                    InvalidValues{"nanovlm-tiny", "/lm_max_position_embeddings", kInvalidTokenCounts},
                    InvalidValues{"qwen2.5-vl-tiny", "/text_config/rms_norm_eps", kInvalidEpsilons},
                    InvalidValues{"qwen2.5-vl-tiny", "/text_config/sliding_window", kInvalidTokenCounts},
                    InvalidValues{"qwen2.5-vl-tiny", "/vision_config/rope_parameters", kInvalidSections},
                    InvalidValues{"qwen2.5-vl-tiny", "/vision_config/tokens_per_second", kInvalidTokenCounts},
                    InvalidValues{"internvl3.5-tiny", "/text_config/rms_norm_eps", kInvalidEpsilons},
                    InvalidValues{"internvl3.5-tiny", "/vision_config/layer_norm_eps", kInvalidEpsilons},
                    InvalidValues{"internvl3.5-tiny", "/vision_config", kInvalidSections},
                    InvalidValues{"internvl3.5-tiny", "/downsample_ratio", {0, -0.5, 0.3, 2, "half"}},
                    InvalidValues{"qwen3-vl-tiny", "/text_config/rms_norm_eps", kInvalidEpsilons},
                    InvalidValues{"qwen3-vl-tiny", "/text_config/rope_theta", kInvalidThetas},
                    InvalidValues{"qwen3-vl-tiny", "/text_config/rope_scaling", kInvalidSections},
                    InvalidValues{"qwen3-vl-tiny", "/vision_config/num_position_embeddings", kInvalidTokenCounts},
                    InvalidValues{"qwen3-vl-tiny", "/vision_config", {5, "yarn", false}},
                    InvalidValues{"qwen3.5-tiny", "/text_config/rope_parameters", kInvalidSections},
                    InvalidValues{"qwen3.5-tiny", "/text_config/partial_rotary_factor", {0, -0.5, 2, "half"}},
                    InvalidValues{"qwen3.5-tiny", "/text_config/layer_types", kInvalidLayerTypes},
                    InvalidValues{"qwen3.5-tiny", "/text_config/output_gate_type", {"sigmoid", 3}},
                    InvalidValues{"qwen3.5-tiny", "/text_config/attn_output_gate", {false, "no"}},
                    InvalidValues{"qwen3.5-tiny", "/text_config/mlp_only_layers", {{1}}},
                    InvalidValues{"qwen3.5-tiny", "/vision_config/deepstack_visual_indexes", {{0}}},
                    InvalidValues{"gemma-3-tiny", "/text_config/rms_norm_eps", kInvalidEpsilons},
                    InvalidValues{"gemma-3-tiny", "/text_config/rope_theta", kInvalidThetas},
                    InvalidValues{"gemma-3-tiny", "/text_config/rope_local_base_freq", kInvalidThetas},
                    InvalidValues{"gemma-3-tiny", "/text_config/rope_scaling", kInvalidSections},
                    InvalidValues{"gemma-3-tiny", "/text_config/rope_parameters", kInvalidSections},
                    InvalidValues{"gemma-3-tiny", "/text_config/query_pre_attn_scalar", {0, -1, "x"}},
                    InvalidValues{"gemma-3-tiny", "/text_config/sliding_window", kInvalidTokenCounts},
                    InvalidValues{"gemma-3-tiny", "/text_config/sliding_window_pattern", kInvalidTokenCounts},
                    InvalidValues{"gemma-3-tiny", "/mm_tokens_per_image", {0, -1, 15, 36, "x"}},
                    InvalidValues{"gemma-3-tiny", "/image_token_index", {-1, 608, 1.5}},
                    InvalidValues{"gemma-3-tiny", "/text_config/final_logit_softcapping", {30.0}},
                    InvalidValues{"gemma-3-tiny", "/text_config/layer_types", {{"full_attention"}}}));

TEST(SizeLimits, WeightsNextToConfigLimitSize) {
  const parity::TemporaryFolder folder;
  write_preset_config("smolvlm-256m", folder.path());
  io::write_safetensors(folder.path() / "model.safetensors", {{"model.a", at::zeros({1000})}});
  EXPECT_THAT(get_error_message([&] { build_model(folder.path(), at::kCPU, at::kFloat); }),
              AllOf(HasSubstr("config.json: describes a model of"), HasSubstr("the weights next to it have 1e+03")));
  // Loading reports unreadable weights.
  io::write_file(folder.path() / "model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_NO_THROW(build_model(folder.path(), at::kMeta, at::kFloat));
}

TEST(SizeLimits, ModelOfTrillionsIsRefused) {
  const parity::TemporaryFolder folder;
  EXPECT_NO_THROW(check_parameter_count(5e11, folder.path()));
  EXPECT_THAT(get_error_message([&] { check_parameter_count(1e14, folder.path()); }),
              HasSubstr("which is implausible"));
}

TEST(SizeLimits, InvalidJsonIsADataError) {
  for (const char* key_path : {"/text_config", "/vision_config", "/text_config/rope_scaling", "/layer_types"}) {
    for (const char* preset : {"smolvlm-tiny", "llava-tiny", "qwen2.5-vl-tiny", "internvl3-tiny", "gemma-3-tiny"}) {
      for (const json& value : {json(5), json("x"), json::array({1, 2})}) {
        SCOPED_TRACE(fmt::format("{} {} = {}", preset, key_path, value.dump()));
        const parity::TemporaryFolder folder;
        write_preset_config(preset, folder.path());
        json config = io::read_json(folder.path() / "config.json");
        try {
          config[json::json_pointer(key_path)] = value;
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

TEST(SizeLimits, ImageUsesAtMostAQuarterOfHostMemory) {
  constexpr int64_t kGb = 1'000'000'000;
  constexpr auto kImage = data::MediaKind::kImage, kVideo = data::MediaKind::kVideo;
  EXPECT_NO_THROW(check_decode_bytes({4000, 6000}, kImage, 2 * kGb));
  EXPECT_THAT(
      get_error_message([] {
        check_decode_bytes({12'000, 14'000}, kImage, 8 * kGb);
      }),
      AllOf(HasSubstr("14000 x 12000 pixels take 2.8 GiB"), HasSubstr("quarter"), HasSubstr("shrink the image")));
  EXPECT_NO_THROW(check_decode_bytes({12'000, 14'000}, kImage, 24 * kGb));
  EXPECT_LT(check_decode_bytes({1080, 1920}, kVideo, kGb), kGb / 10) << "for any number of frames";
  EXPECT_THAT(get_error_message([] {
                check_decode_bytes({8192, 8192}, kVideo, 8 * kGb);
              }),
              AllOf(HasSubstr("frames of 8192 x 8192"), HasSubstr("shrink the video")));
}

TEST(SizeLimits, ExtremeAspectRatioIsRefused) {
  llava::ImageProcessorSettings settings;
  settings.shortest_edge = 336;
  EXPECT_NO_THROW(llava::check_image_size({100, 100'000}, settings));
  EXPECT_THAT(get_error_message([&] { llava::check_image_size({1, 100'000'000}, settings); }), HasSubstr("resized to"));
  settings.shortest_edge.reset();
  settings.pad_to_square = true;
  EXPECT_NO_THROW(llava::check_image_size({100, 10'000}, settings));
  EXPECT_THAT(get_error_message([&] { llava::check_image_size({1, 100'000'000}, settings); }), HasSubstr("padded to"));
}

}  // namespace
}  // namespace vlmtrain::models
