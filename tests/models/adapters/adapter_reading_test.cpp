#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/adapter_folder.h"
#include "models/adapters/adapter_format.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

std::string get_load_and_merge_error(const AdapterFolder& adapter) {
  const std::string load_error = get_error_message([&] { adapter.load(); });
  EXPECT_EQ(get_error_message([&] { adapter.merge(); }), load_error);
  EXPECT_FALSE(std::filesystem::exists(adapter.make_path("merged")));
  return load_error;
}

void expect_same(const VisionLanguageModel& actual, const std::map<std::string, at::Tensor>& expected) {
  const auto values = collect_values(actual);
  ASSERT_EQ(values.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(values.at(name), tensor)) << name;
}

/// Tensor names of adapters from older versions of transformers.
struct LegacyNames {
  const char* base;
  std::vector<std::pair<std::string, std::string>> prefixes;  ///< current and older prefixes
};

void PrintTo(const LegacyNames& names, std::ostream* out) {
  *out << names.base;
}

class LegacyAdapter : public testing::TestWithParam<LegacyNames> {};

TEST_P(LegacyAdapter, LoadsTheSameWeights) {
  const AdapterFolder adapter(GetParam().base, {.rank = 2});
  const auto expected = collect_values(*adapter.load());
  const auto to_legacy_name = [](const std::string& name) {
    for (const auto& [current, legacy] : GetParam().prefixes) {
      if (name.starts_with("base_model.model." + current)) return replace_first(name, current, legacy);
    }
    return name;
  };
  int64_t num_renamed = 0;
  adapter.rename([&](const std::string& name) {
    num_renamed += to_legacy_name(name) != name ? 1 : 0;
    return to_legacy_name(name);
  });
  EXPECT_GT(num_renamed, 0);
  adapter.edit("adapter_config.json", [&](auto& content) {
    for (auto& target : content["target_modules"]) {
      target = to_legacy_name("base_model.model." + target.template get<std::string>()).substr(17);
    }
  });
  expect_same(*adapter.load(), expected);
  EXPECT_NO_THROW(adapter.merge());
}

INSTANTIATE_TEST_SUITE_P(
    Families, LegacyAdapter,
    testing::Values(LegacyNames{"qwen2_5_vl_video",
                                {{"model.language_model.", "model."}, {"model.visual.", "visual."}}},
                    LegacyNames{"qwen2_vl_images", {{"model.language_model.", "model."}, {"model.visual.", "visual."}}},
                    LegacyNames{"llava_clip_llama",
                                {{"model.language_model.", "language_model.model."},
                                 {"model.vision_tower.", "vision_tower.vision_model."},
                                 {"model.multi_modal_projector.", "multi_modal_projector."}}},
                    LegacyNames{"llava_clip_mistral", {{"model.vision_tower.", "model.vision_tower.vision_model."}}},
                    LegacyNames{"gemma3_words", {{"model.language_model.", "language_model.model."}}},
                    LegacyNames{"internvl3_tiles", {{"model.language_model.", "language_model.model."}}}),
    [](const auto& member) { return std::string(member.param.base); });

TEST(AdapterNames, WrappersAreRemoved) {
  const std::string path = "model.layers.0.q_proj.lora_A.weight";
  for (const std::string name :
       {"base_model.model.model.layers.0.q_proj.lora_A.weight", "model.layers.0.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.q_proj.lora_A.default.weight",
        "module.base_model.model.model.layers.0.q_proj.lora_A.weight",
        "_orig_mod.base_model.model.model.layers.0.q_proj.lora_A.my_adapter.weight",
        "_fsdp_wrapped_module.base_model.model.model.layers.0._fsdp_wrapped_module.q_proj.lora_A.weight",
        "base_model.model.model.layers.0._checkpoint_wrapped_module.q_proj.lora_A.weight"}) {
    EXPECT_EQ(parse_adapter_tensor_name(name).path, path) << name;
  }
  EXPECT_EQ(parse_adapter_tensor_name("base_model.model.lm_head.modules_to_save.default.weight").path,
            "lm_head.weight");
  EXPECT_EQ(parse_adapter_tensor_name("base_model.model.a.fc.lora_magnitude_vector.default.weight").path,
            "a.fc.lora_magnitude_vector");
  EXPECT_EQ(parse_adapter_tensor_name("base_model.model.a.fc.lora_magnitude_vector").path,
            "a.fc.lora_magnitude_vector");
  EXPECT_EQ(parse_adapter_tensor_name("base_model.model.a.fc.lora_B.one.weight").adapter_name, "one");
}

TEST(AdapterReading, WrapperPrefixesAreIgnored) {
  const AdapterFolder adapter("mixed_batch",
                              {.rank = 2, .target_modules = {"q_proj"}, .modules_to_save = {"connector"}});
  const auto expected = collect_values(*adapter.load());
  const auto tensors = adapter.tensors();
  const std::vector<std::function<std::string(const std::string&)>> changes{
      [](const std::string& name) {
        return replace_first(
            name, ".weight",
            name.find("lora_") == std::string::npos ? ".modules_to_save.default.weight" : ".default.weight");
      },
      [](const std::string& name) { return "module." + name; },
      [](const std::string& name) { return name.substr(std::string("base_model.model.").size()); }};
  for (const auto& change : changes) {
    adapter.write(tensors);
    adapter.rename(change);
    expect_same(*adapter.load(), expected);
  }
}

TEST(AdapterReading, SeveralAdaptersInOneFileAreRefused) {
  const AdapterFolder adapter("mixed_batch");
  auto tensors = adapter.tensors();
  for (const auto& [name, tensor] : adapter.tensors()) {
    tensors.erase(name);
    tensors.emplace(replace_first(name, ".weight", ".one.weight"), tensor);
    tensors.emplace(replace_first(name, ".weight", ".two.weight"), tensor);
  }
  adapter.write(tensors);
  EXPECT_THAT(get_load_and_merge_error(adapter), HasSubstr("several adapters (one, two)"));
}

TEST(AdapterReading, Zero3ShardsAreRefused) {
  const AdapterFolder adapter("mixed_batch");
  auto tensors = adapter.tensors();
  for (auto& [name, tensor] : tensors) tensor = at::zeros({0});
  adapter.write(tensors);
  EXPECT_THAT(get_load_and_merge_error(adapter), AllOf(HasSubstr("ZeRO-3"), HasSubstr("zero_to_fp32.py")));
}

TEST(AdapterReading, LoadAndMergeReportTheSameErrors) {
  struct InvalidTensor {
    const char* name;
    std::vector<int64_t> shape;
    const char* expected_message;
  };
  const std::string module = "model.text_model.layers.0.self_attn.q_proj";
  const AdapterFolder adapter("mixed_batch");
  const auto tensors = adapter.tensors();
  for (const auto& [name, shape, expected_message] :
       {InvalidTensor{"model.text_model.norm.weight", {2}, "unexpected: base_model.model.model.text_model.norm.weight"},
        InvalidTensor{"model.text_model.nrom.weight", {2}, "unexpected: base_model.model.model.text_model.nrom.weight"},
        InvalidTensor{"model.text_model.layers.0.self_attn.q_proj.base_layer.weight", {2, 2}, "a weight of the base"},
        InvalidTensor{"model.text_model.layers.0.self_attn.q_proj.lora_A.weight", {3, 4}, "has shape [3, 4]"},
        InvalidTensor{"v_head.summary.weight", {1, 2}, "unexpected: base_model.model.v_head.summary.weight"}}) {
    auto edited_tensors = tensors;
    edited_tensors.insert_or_assign("base_model.model." + std::string(name), at::full(shape, 0.5));
    adapter.write(edited_tensors);
    EXPECT_THAT(get_load_and_merge_error(adapter),
                AllOf(HasSubstr("does not match the model"), HasSubstr(expected_message)));
  }
  auto integer_tensors = tensors;
  for (auto& [name, tensor] : integer_tensors) tensor = tensor.to(at::kChar);
  adapter.write(integer_tensors);
  EXPECT_THAT(get_load_and_merge_error(adapter), HasSubstr("has dtype I8"));
}

TEST(AdapterReading, MergeRefusesInvalidBase) {
  const AdapterFolder adapter("mixed_batch");
  adapter.base_copy().edit("config.json", [](auto& content) { content["text_config"]["intermediate_size"] = 72; });
  EXPECT_THAT(get_load_and_merge_error(adapter), HasSubstr("down_proj"));
}

TEST(AdapterReading, OtherWeightFilesAreRefused) {
  const AdapterFolder adapter("llava_clip_llama");
  for (const auto& [file, expected_message] :
       {std::pair{"non_lora_state_dict.bin", "trained in addition to LoRA"},
        std::pair{"non_lora_trainables.bin", "trained in addition to LoRA"},
        std::pair{"mm_projector.bin", "a trained projector"}, std::pair{"vit.safetensors", "a trained vision tower"},
        std::pair{"value_head.safetensors", "a value head"}, std::pair{"model.safetensors", "weights of a whole model"},
        std::pair{"mine.pt", "is a tensor file that is not part of a LoRA adapter"}}) {
    io::write_file(adapter.path() / file, "weights");
    EXPECT_THAT(get_load_and_merge_error(adapter),
                AllOf(HasSubstr((adapter.path() / file).string()), HasSubstr(expected_message)));
    std::filesystem::remove(adapter.path() / file);
  }
  for (const char* file : {"training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "adapter_model.bin",
                           "._adapter_model.safetensors", "README.md", "trainer_state.json"}) {
    io::write_file(adapter.path() / file, "no weights");
  }
  EXPECT_NO_THROW(adapter.load());
}

class AdapterConfigKeys : public testing::Test {
 protected:
  void set_key(const std::string& key, const nlohmann::json& value) {
    io::write_file(file_, content_);
    adapter_.edit("adapter_config.json", [&](auto& content) { content[key] = value; });
  }

  const AdapterFolder adapter_{"mixed_batch"};
  const std::filesystem::path file_ = adapter_.path() / "adapter_config.json";
  const std::string content_ = io::read_file(file_);
};

TEST_F(AdapterConfigKeys, UnsupportedKeysAreRefused) {
  const std::vector<std::pair<const char*, nlohmann::json>> entries{
      {"layer_replication", {{0, 1}}},
      {"trainable_token_indices", {1, 2}},
      {"target_parameters", {"mlp.experts"}},
      {"lora_bias", true},
      {"use_qalora", true},
      {"bias", "all"},
      {"init_lora_weights", "pissa"},
      {"init_lora_weights", "olora"},
      {"init_lora_weights", "loftq"},
      {"kasa_config", {{"beta", 1}}},
      {"megatron_config", {{"a", 1}}},
      {"rank_pattern", {{"layers.0.self_attn.q_proj", 8}}},
      {"alpha_pattern", {{"q_proj", 1}}},
      {"alpha_pattern", {{".*layers\\.1.*", 1}}}};
  for (const auto& [key, value] : entries) {
    set_key(key, value);
    EXPECT_THAT(get_load_and_merge_error(adapter_), HasSubstr(key)) << value;
  }
  set_key("rank_pattern", {{"layers.0.self_attn.q_proj", 8}});
  EXPECT_THAT(get_load_and_merge_error(adapter_), HasSubstr("rank_pattern \"layers.0.self_attn.q_proj\" gives"));
}

TEST_F(AdapterConfigKeys, KeysWithoutEffectAreAccepted) {
  const std::vector<std::pair<const char*, nlohmann::json>> entries{{"rank_pattern", {{"nothing", 8}}},
                                                                    {"rank_pattern", {{"q_proj", 2}}},
                                                                    {"alpha_pattern", {{".*", 16}}},
                                                                    {"fan_in_fan_out", true},
                                                                    {"exclude_modules", {"lm_head"}},
                                                                    {"layers_to_transform", {0, 1}},
                                                                    {"layers_pattern", "layers"},
                                                                    {"init_lora_weights", "gaussian"},
                                                                    {"init_lora_weights", false},
                                                                    {"loftq_config", {{"bits", 4}}},
                                                                    {"megatron_core", "megatron.core"},
                                                                    {"lora_bias", false},
                                                                    {"use_qalora", false},
                                                                    {"trainable_token_indices", nullptr},
                                                                    {"qalora_group_size", 16},
                                                                    {"target_parameters", nlohmann::json::array()},
                                                                    {"modules_to_save", nlohmann::json::array()}};
  for (const auto& [key, value] : entries) {
    set_key(key, value);
    EXPECT_NO_THROW(read_adapter_settings(adapter_.path())) << key << " " << value;
  }
}

TEST_F(AdapterConfigKeys, OnlyUnknownKeysAreWarnedAbout) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  set_key("velora_config", {{"a", 1}});
  read_adapter_settings(adapter_.path());
  const std::string known_key_log = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
  EXPECT_EQ(known_key_log.find("velora_config"), std::string::npos);
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  set_key("some_new_scale", 2);
  read_adapter_settings(adapter_.path());
  const std::string unknown_key_log = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
  EXPECT_THAT(unknown_key_log, HasSubstr("some_new_scale"));
}

class AdapterBase : public AdapterConfigKeys {};

TEST_F(AdapterBase, MissingBaseIsNamedWithAHint) {
  setenv("HF_HUB_OFFLINE", "1", 1);
  set_key("base_model_name_or_path", "org/not-in-the-cache");
  EXPECT_THAT(get_load_and_merge_error(adapter_),
              AllOf(HasSubstr("org/not-in-the-cache: not a folder on this machine"), HasSubstr("with --base")));
  set_key("base_model_name_or_path", "/nowhere/base");
  EXPECT_THAT(get_load_and_merge_error(adapter_), AllOf(HasSubstr("/nowhere/base"), HasSubstr("with --base")));
  EXPECT_NO_THROW(load_model(adapter_.path(), at::kCPU, at::kFloat, adapter_.base()));
  EXPECT_NO_THROW(adapter_.merge({.base = adapter_.base()}));
}

TEST_F(AdapterBase, InvalidBaseIsDescribed) {
  set_key("base_model_name_or_path", adapter_.path().string());
  EXPECT_THAT(get_load_and_merge_error(adapter_),
              AllOf(HasSubstr("is an adapter itself"), HasSubstr("vlmtrain merge --adapter")));
  const auto run = adapter_.make_path("run");
  std::filesystem::create_directories(run / "checkpoints/step-2");
  set_key("base_model_name_or_path", run.string());
  EXPECT_THAT(get_load_and_merge_error(adapter_),
              AllOf(HasSubstr("base_model_name_or_path"), HasSubstr("is the folder of a run"), HasSubstr("step-2")));
  EXPECT_THAT(get_error_message([&] { read_adapter_settings(run); }), HasSubstr("is the folder of a run"));
  std::filesystem::create_directories(adapter_.make_path("empty"));
  set_key("base_model_name_or_path", adapter_.make_path("empty").string());
  EXPECT_THAT(get_load_and_merge_error(adapter_), HasSubstr("has no config.json"));
  EXPECT_THAT(get_error_message([&] { adapter_.merge({.base = adapter_.make_path("none")}); }, ExitCode::kUsage),
              HasSubstr("--base"));
}

TEST_F(AdapterBase, BaseOptionRequiresAnAdapter) {
  EXPECT_THAT(get_error_message([&] { resolve_base_and_adapter(adapter_.base(), adapter_.base()); }, ExitCode::kUsage),
              HasSubstr("is not an adapter"));
  EXPECT_EQ(resolve_base_and_adapter(adapter_.path(), {}).base, adapter_.base());
}

TEST_F(AdapterBase, CopiesOfACheckpointAreEqual) {
  const CheckpointCopy copy("mixed_batch");
  EXPECT_TRUE(are_equal_checkpoints(copy.path(), adapter_.base()));
  const auto file = copy.path() / "model.safetensors";
  std::string bytes = io::read_file(file);
  bytes.back() ^= 1;
  io::write_file(file, bytes);
  EXPECT_FALSE(are_equal_checkpoints(copy.path(), adapter_.base()));
  EXPECT_FALSE(are_equal_checkpoints(CheckpointCopy("text_only").path(), adapter_.base()));
}

}  // namespace
}  // namespace vlmtrain::models
