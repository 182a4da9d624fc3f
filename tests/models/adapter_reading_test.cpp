#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/adapter_folder.h"
#include "models/adapters/adapter_names.h"

namespace vlmtrain::models {
namespace {

using io::message_of;
using testing::AllOf;
using testing::HasSubstr;

std::string error_of_both(const AdapterFolder& adapter) {
  const std::string of_load = message_of([&] { adapter.load(); });
  EXPECT_EQ(message_of([&] { adapter.merge(); }), of_load);
  EXPECT_FALSE(std::filesystem::exists(adapter.beside("merged")));
  return of_load;
}

void expect_same(const VisionLanguageModel& found, const std::map<std::string, at::Tensor>& wanted) {
  const auto values = values_of(found);
  ASSERT_EQ(values.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) EXPECT_TRUE(at::equal(values.at(name), tensor)) << name;
}

/// What an adapter's tensors were called before the modules of a family got their places of today.
struct OlderNames {
  const char* base;
  std::vector<std::pair<std::string, std::string>> beginnings;  ///< today's, and the older ones
};

void PrintTo(const OlderNames& names, std::ostream* out) {
  *out << names.base;
}

class AdapterOfOlderTransformers : public testing::TestWithParam<OlderNames> {};

TEST_P(AdapterOfOlderTransformers, IsTheSameAdapter) {
  const AdapterFolder adapter(GetParam().base, {.rank = 2});
  const auto wanted = values_of(*adapter.load());
  const auto older = [](const std::string& name) {
    for (const auto& [current, before] : GetParam().beginnings) {
      if (name.starts_with("base_model.model." + current)) return replaced(name, current, before);
    }
    return name;
  };
  int64_t renamed = 0;
  adapter.rename([&](const std::string& name) {
    renamed += older(name) != name ? 1 : 0;
    return older(name);
  });
  EXPECT_GT(renamed, 0);
  adapter.edit("adapter_config.json", [&](auto& content) {
    for (auto& target : content["target_modules"]) {
      target = older("base_model.model." + target.template get<std::string>()).substr(17);
    }
  });
  expect_same(*adapter.load(), wanted);
  EXPECT_NO_THROW(adapter.merge());
}

INSTANTIATE_TEST_SUITE_P(
    Families, AdapterOfOlderTransformers,
    testing::Values(OlderNames{"qwen2_5_vl_video", {{"model.language_model.", "model."}, {"model.visual.", "visual."}}},
                    OlderNames{"qwen2_vl_images", {{"model.language_model.", "model."}, {"model.visual.", "visual."}}},
                    OlderNames{"llava_clip_llama",
                               {{"model.language_model.", "language_model.model."},
                                {"model.vision_tower.", "vision_tower.vision_model."},
                                {"model.multi_modal_projector.", "multi_modal_projector."}}},
                    OlderNames{"llava_clip_mistral", {{"model.vision_tower.", "model.vision_tower.vision_model."}}},
                    OlderNames{"gemma3_words", {{"model.language_model.", "language_model.model."}}},
                    OlderNames{"internvl3_tiles", {{"model.language_model.", "language_model.model."}}}),
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
    EXPECT_EQ(plain_adapter_name(name).path, path) << name;
  }
  EXPECT_EQ(plain_adapter_name("base_model.model.lm_head.modules_to_save.default.weight").path, "lm_head.weight");
  EXPECT_EQ(plain_adapter_name("base_model.model.a.fc.lora_magnitude_vector.default.weight").path,
            "a.fc.lora_magnitude_vector");
  EXPECT_EQ(plain_adapter_name("base_model.model.a.fc.lora_magnitude_vector").path, "a.fc.lora_magnitude_vector");
  EXPECT_EQ(plain_adapter_name("base_model.model.a.fc.lora_B.one.weight").adapter_name, "one");
}

TEST(AdapterReading, NamesOfWrappersAreTheSameAdapter) {
  const AdapterFolder adapter("mixed_batch",
                              {.rank = 2, .target_modules = {"q_proj"}, .modules_to_save = {"connector"}});
  const auto wanted = values_of(*adapter.load());
  const auto tensors = adapter.tensors();
  const std::vector<std::function<std::string(const std::string&)>> changes{
      [](const std::string& name) {
        return replaced(
            name, ".weight",
            name.find("lora_") == std::string::npos ? ".modules_to_save.default.weight" : ".default.weight");
      },
      [](const std::string& name) { return "module." + name; },
      [](const std::string& name) { return name.substr(std::string("base_model.model.").size()); }};
  for (const auto& change : changes) {
    adapter.put(tensors);
    adapter.rename(change);
    expect_same(*adapter.load(), wanted);
  }
}

TEST(AdapterReading, SeveralAdaptersInOneFileAreNamed) {
  const AdapterFolder adapter("mixed_batch");
  auto tensors = adapter.tensors();
  for (const auto& [name, tensor] : adapter.tensors()) {
    tensors.erase(name);
    tensors.emplace(replaced(name, ".weight", ".one.weight"), tensor);
    tensors.emplace(replaced(name, ".weight", ".two.weight"), tensor);
  }
  adapter.put(tensors);
  EXPECT_THAT(error_of_both(adapter), HasSubstr("several adapters (one, two)"));
}

TEST(AdapterReading, PartsOfZeroThreeAreNamed) {
  const AdapterFolder adapter("mixed_batch");
  auto tensors = adapter.tensors();
  for (auto& [name, tensor] : tensors) tensor = at::zeros({0});
  adapter.put(tensors);
  EXPECT_THAT(error_of_both(adapter), AllOf(HasSubstr("ZeRO-3"), HasSubstr("zero_to_fp32.py")));
}

TEST(AdapterReading, LoadingAndMergingRefuseTheSame) {
  struct Member {
    const char* name;
    std::vector<int64_t> shape;
    const char* wanted;
  };
  const std::string module = "model.text_model.layers.0.self_attn.q_proj";
  const AdapterFolder adapter("mixed_batch");
  const auto tensors = adapter.tensors();
  for (const auto& [name, shape, wanted] :
       {Member{"model.text_model.norm.weight", {2}, "unexpected: base_model.model.model.text_model.norm.weight"},
        Member{"model.text_model.nrom.weight", {2}, "unexpected: base_model.model.model.text_model.nrom.weight"},
        Member{"model.text_model.layers.0.self_attn.q_proj.base_layer.weight", {2, 2}, "a weight of the base"},
        Member{"model.text_model.layers.0.self_attn.q_proj.lora_A.weight", {3, 4}, "has shape [3, 4]"},
        Member{"v_head.summary.weight", {1, 2}, "unexpected: base_model.model.v_head.summary.weight"}}) {
    auto changed = tensors;
    changed.insert_or_assign("base_model.model." + std::string(name), at::full(shape, 0.5));
    adapter.put(changed);
    EXPECT_THAT(error_of_both(adapter), AllOf(HasSubstr("does not match the model"), HasSubstr(wanted)));
  }
  auto integers = tensors;
  for (auto& [name, tensor] : integers) tensor = tensor.to(at::kChar);
  adapter.put(integers);
  EXPECT_THAT(error_of_both(adapter), HasSubstr("has dtype I8"));
}

TEST(AdapterReading, AMergeRefusesABaseThatLoadingRefuses) {
  const AdapterFolder adapter("mixed_batch");
  adapter.base_copy().edit("config.json", [](auto& content) { content["text_config"]["intermediate_size"] = 72; });
  EXPECT_THAT(error_of_both(adapter), HasSubstr("down_proj"));
}

TEST(AdapterReading, WeightsNextToAnAdapterAreNamed) {
  const AdapterFolder adapter("llava_clip_llama");
  for (const auto& [file, wanted] :
       {std::pair{"non_lora_state_dict.bin", "trained beside LoRA"},
        std::pair{"non_lora_trainables.bin", "trained beside LoRA"},
        std::pair{"mm_projector.bin", "a trained projector"}, std::pair{"vit.safetensors", "a trained vision tower"},
        std::pair{"value_head.safetensors", "a value head"}, std::pair{"model.safetensors", "weights of a whole model"},
        std::pair{"mine.pt", "is a file of tensors that is no part of a LoRA adapter"}}) {
    io::write_file(adapter.path() / file, "weights");
    EXPECT_THAT(error_of_both(adapter), AllOf(HasSubstr((adapter.path() / file).string()), HasSubstr(wanted)));
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
  void set(const std::string& key, const nlohmann::json& value) {
    io::write_file(file_, content_);
    adapter_.edit("adapter_config.json", [&](auto& content) { content[key] = value; });
  }

  const AdapterFolder adapter_{"mixed_batch"};
  const std::filesystem::path file_ = adapter_.path() / "adapter_config.json";
  const std::string content_ = io::read_file(file_);
};

TEST_F(AdapterConfigKeys, WhatChangesTheAdapterIsRefusedByName) {
  const std::vector<std::pair<const char*, nlohmann::json>> members{
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
  for (const auto& [key, value] : members) {
    set(key, value);
    EXPECT_THAT(error_of_both(adapter_), HasSubstr(key)) << value;
  }
  set("rank_pattern", {{"layers.0.self_attn.q_proj", 8}});
  EXPECT_THAT(error_of_both(adapter_), HasSubstr("rank_pattern \"layers.0.self_attn.q_proj\" gives"));
}

TEST_F(AdapterConfigKeys, WhatHasNoEffectIsAccepted) {
  const std::vector<std::pair<const char*, nlohmann::json>> members{{"rank_pattern", {{"nothing", 8}}},
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
  for (const auto& [key, value] : members) {
    set(key, value);
    EXPECT_NO_THROW(read_adapter_settings(adapter_.path())) << key << " " << value;
  }
}

TEST_F(AdapterConfigKeys, UnknownKeysAreWarnedOfAndKnownOnesAreNot) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  set("velora_config", {{"a", 1}});
  read_adapter_settings(adapter_.path());
  const std::string before = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
  EXPECT_EQ(before.find("velora_config"), std::string::npos);
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  set("some_new_scale", 2);
  read_adapter_settings(adapter_.path());
  const std::string warned = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
  EXPECT_THAT(warned, HasSubstr("some_new_scale"));
}

class BaseOfAdapter : public AdapterConfigKeys {};

TEST_F(BaseOfAdapter, OneThatIsNotHereIsNamedWithAWayOut) {
  set("base_model_name_or_path", "Qwen/Qwen2.5-VL-3B-Instruct");
  EXPECT_THAT(error_of_both(adapter_), AllOf(HasSubstr("Qwen/Qwen2.5-VL-3B-Instruct"), HasSubstr("--base DIR"),
                                             HasSubstr("hf download Qwen/Qwen2.5-VL-3B-Instruct")));
  set("base_model_name_or_path", "/nowhere/base");
  EXPECT_THAT(error_of_both(adapter_), AllOf(HasSubstr("/nowhere/base"), HasSubstr("--base DIR")));
  EXPECT_NO_THROW(load_model(adapter_.path(), at::kCPU, at::kFloat, adapter_.base()));
  EXPECT_NO_THROW(adapter_.merge({.base = adapter_.base()}));
}

TEST_F(BaseOfAdapter, OneThatIsNoWholeCheckpointIsNamedAsWhatItIs) {
  set("base_model_name_or_path", adapter_.path().string());
  EXPECT_THAT(error_of_both(adapter_), AllOf(HasSubstr("is an adapter itself"), HasSubstr("vlmtrain merge --adapter")));
  const auto run = adapter_.beside("run");
  std::filesystem::create_directories(run / "checkpoints/step-2");
  set("base_model_name_or_path", run.string());
  EXPECT_THAT(error_of_both(adapter_),
              AllOf(HasSubstr("base_model_name_or_path"), HasSubstr("is the folder of a run"), HasSubstr("step-2")));
  EXPECT_THAT(message_of([&] { read_adapter_settings(run); }), HasSubstr("is the folder of a run"));
  std::filesystem::create_directories(adapter_.beside("empty"));
  set("base_model_name_or_path", adapter_.beside("empty").string());
  EXPECT_THAT(error_of_both(adapter_), HasSubstr("holds no config.json"));
  EXPECT_THAT(message_of([&] { adapter_.merge({.base = adapter_.beside("none")}); }, ExitCode::kUsage),
              HasSubstr("--base"));
}

TEST_F(BaseOfAdapter, ABaseWithAWholeCheckpointIsRefused) {
  EXPECT_THAT(message_of([&] { base_and_adapter(adapter_.base(), adapter_.base()); }, ExitCode::kUsage),
              HasSubstr("is no adapter"));
  EXPECT_EQ(base_and_adapter(adapter_.path(), {}).base, adapter_.base());
}

TEST_F(BaseOfAdapter, CopiesOfACheckpointAreTheSame) {
  const CheckpointCopy copy("mixed_batch");
  EXPECT_TRUE(is_same_checkpoint(copy.path(), adapter_.base()));
  const auto file = copy.path() / "model.safetensors";
  std::string bytes = io::read_file(file);
  bytes.back() ^= 1;
  io::write_file(file, bytes);
  EXPECT_FALSE(is_same_checkpoint(copy.path(), adapter_.base()));
  EXPECT_FALSE(is_same_checkpoint(CheckpointCopy("text_only").path(), adapter_.base()));
}

}  // namespace
}  // namespace vlmtrain::models
