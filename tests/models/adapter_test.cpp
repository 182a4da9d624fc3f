#include "vlmtrain/models/adapter.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/memory/trace.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {
namespace {

using io::message_of;
using testing::AllOf;
using testing::HasSubstr;

using Tensors = std::map<std::string, at::Tensor>;

class AdapterTest : public testing::Test {
 protected:
  std::unique_ptr<VisionLanguageModel> model(const nn::LoraSettings& lora) const {
    auto built = build_model(copy_.path(), at::kCPU, at::kFloat, lora);
    load_weights(*built, copy_.path());
    return built;
  }

  static Tensors parameters(const VisionLanguageModel& model) {
    Tensors found;
    for (const auto& parameter : model.parameters().all()) found.emplace(parameter.name, parameter.tensor.detach());
    return found;
  }

  std::string building_error(const nn::LoraSettings& lora) const {
    return message_of([&] { build_model(copy_.path(), at::kCPU, at::kFloat, lora); }, ExitCode::kUsage);
  }

  /// An adapter of the checkpoint, to be changed.
  std::filesystem::path saved(const nn::LoraSettings& lora) const {
    const auto adapted = model(lora);
    initialize_adapter(*adapted, 0);
    const auto folder = out_.path() / "adapter";
    std::filesystem::create_directories(folder);
    save_adapter(*adapted, copy_.path(), folder);
    return folder;
  }

  const CheckpointCopy copy_{"mixed_batch"};
  const parity::TemporaryFolder out_;
};

TEST_F(AdapterTest, StartsAsPeftDoes) {
  const auto adapted = model({.rank = 4});
  initialize_adapter(*adapted, /*seed=*/1);
  int64_t count = 0;
  for (const auto& parameter : adapted->parameters().all()) {
    if (parameter.name.ends_with("lora_A.weight")) {
      const double bound = 1 / std::sqrt(static_cast<double>(parameter.tensor.size(1)));
      const double largest = parameter.tensor.abs().max().item<double>();
      EXPECT_LE(largest, bound) << parameter.name;
      EXPECT_GT(largest, 0.9 * bound) << parameter.name;
      EXPECT_NEAR(parameter.tensor.std().item<double>(), bound / std::sqrt(3.0), 0.15 * bound) << parameter.name;
      ++count;
    } else if (parameter.name.ends_with("lora_B.weight")) {
      EXPECT_EQ(parameter.tensor.abs().max().item<double>(), 0) << parameter.name;
    }
  }
  EXPECT_EQ(count, 2 * 7 + 2 * 6 + 1);  // of two blocks in each tower, and the projector
}

TEST_F(AdapterTest, StartsFromSeedAndNameOnly) {
  const auto all = model({.rank = 4});
  const auto some = model({.rank = 4, .target_modules = {"q_proj"}});
  initialize_adapter(*all, 1);
  initialize_adapter(*some, 1);
  const Tensors wanted = parameters(*all);
  for (const auto& [name, tensor] : parameters(*some)) EXPECT_TRUE(at::equal(tensor, wanted.at(name))) << name;
  initialize_adapter(*some, 2);
  const std::string first = "model.text_model.layers.0.self_attn.q_proj.lora_A.weight";
  EXPECT_FALSE(at::equal(parameters(*some).at(first), wanted.at(first)));
}

TEST_F(AdapterTest, DoraStartsWithTheLengthsOfTheRows) {
  const auto adapted = model({.rank = 4, .use_dora = true});
  initialize_adapter(*adapted, 1);
  const Tensors found = parameters(*adapted);
  const std::string path = "model.vision_model.encoder.layers.0.mlp.fc1.";
  EXPECT_TRUE(at::allclose(found.at(path + "lora_magnitude_vector"), found.at(path + "weight").norm(2, {1}), 1e-6));
}

TEST_F(AdapterTest, FreezingLeavesTheBaseFrozen) {
  const auto adapted = model({.rank = 4});
  EXPECT_TRUE(freeze(*adapted, {.vision_tower = true}));
  for (const auto& parameter : adapted->parameters().all()) {
    const bool trained = parameter.is_adapter && parameter.component != nn::Component::kVisionTower;
    EXPECT_EQ(parameter.tensor.requires_grad(), trained) << parameter.name;
  }
  EXPECT_FALSE(freeze(*adapted, {true, true, true}));
}

TEST_F(AdapterTest, ACheckpointOfItHoldsTheBaseOnly) {
  const auto adapted = model({.rank = 4});
  const auto folder = out_.path() / "whole";
  std::filesystem::create_directories(folder);
  save_checkpoint(*adapted, copy_.path(), folder, io::kDefaultShardBytes);
  EXPECT_EQ(io::CheckpointTensors(folder).names().size(), io::CheckpointTensors(copy_.path()).names().size());
}

TEST_F(AdapterTest, TargetsThatMatchNothingAreNamedWithNearOnes) {
  EXPECT_THAT(building_error({.target_modules = {"v_proj", "v_prj"}}),
              AllOf(HasSubstr("v_prj (did you mean v_proj?)"), HasSubstr("fc1"), HasSubstr(".layers.")));
  EXPECT_THAT(building_error({.target_modules = {".*vision.*gate_proj"}}), HasSubstr(".*vision.*gate_proj"));
  EXPECT_THAT(building_error({.target_modules = {"lm_head"}}), HasSubstr("no Linear"));
  EXPECT_THAT(building_error({.left_out = {nn::Component::kVisionTower, nn::Component::kProjector,
                                           nn::Component::kLanguageModel}}),
              HasSubstr("outside the frozen parts"));
}

TEST_F(AdapterTest, ListsEveryDifferenceAtOnce) {
  const auto folder = saved({.rank = 4, .target_modules = {"q_proj"}});
  const auto file = folder / "adapter_model.safetensors";
  io::NamedTensors changed;
  {
    const io::SafetensorsFile tensors(file);
    for (const auto& name : tensors.names()) changed.emplace_back(name, tensors.tensor(name).clone());
  }
  const std::string removed = "base_model.model.model.text_model.layers.0.self_attn.q_proj.lora_B.weight";
  std::erase_if(changed, [&](const auto& tensor) { return tensor.first == removed; });
  changed.emplace_back("base_model.model.lm_head.weight", at::zeros({2, 2}));
  io::write_safetensors(file, changed);
  const auto adapted = model(read_adapter_settings(folder));
  EXPECT_THAT(message_of([&] { load_adapter(*adapted, folder); }),
              AllOf(HasSubstr(folder.string()), HasSubstr("2 differences"), HasSubstr("missing: " + removed),
                    HasSubstr("unexpected: base_model.model.lm_head.weight")));
}

TEST_F(AdapterTest, ReadsWhatItWrote) {
  const auto folder = saved({.rank = 3, .alpha = 4.5, .dropout = 0.25, .use_rslora = true, .target_modules = {"fc1"}});
  const auto settings = read_adapter_settings(folder);
  EXPECT_EQ(settings.rank, 3);
  EXPECT_EQ(settings.alpha, 4.5);
  EXPECT_EQ(settings.dropout, 0.25);
  EXPECT_TRUE(settings.use_rslora);
  EXPECT_FALSE(settings.use_dora);
  EXPECT_EQ(settings.adapter, folder);
  EXPECT_THAT(settings.target_modules, testing::UnorderedElementsAre("model.vision_model.encoder.layers.0.mlp.fc1",
                                                                     "model.vision_model.encoder.layers.1.mlp.fc1"));
  EXPECT_EQ(base_of_adapter(folder), copy_.path());
  EXPECT_EQ(load_model(folder, at::kCPU, at::kFloat)->parameters().lora()->dropout, 0);
}

TEST_F(AdapterTest, SettingsOfNoAdapterAreNamed) {
  const auto folder = saved({.rank = 4});
  const auto file = folder / "adapter_config.json";
  const auto config = io::read_json(file);
  const std::vector<std::pair<const char*, nlohmann::json>> nonsense{
      {"lora_alpha", 1e308}, {"lora_alpha", 0},    {"lora_alpha", -5}, {"r", 0}, {"r", -1},
      {"r", INT64_MAX},      {"lora_dropout", -1}, {"lora_dropout", 1}};
  for (const auto& [key, value] : nonsense) {
    SCOPED_TRACE(fmt::format("{} = {}", key, value.dump()));
    auto changed = config;
    changed[key] = value;
    io::write_file(file, changed.dump());
    const auto of_merge = message_of([&] { merge_adapter(folder, out_.path() / "merged"); });
    EXPECT_THAT(of_merge, AllOf(HasSubstr(file.string()), HasSubstr(fmt::format("{} is", key))));
    EXPECT_FALSE(std::filesystem::exists(out_.path() / "merged"));
  }
}

TEST_F(AdapterTest, AMergeHoldsOneTensorAtATime) {
  const auto folder = saved({.rank = 4});
  int64_t peak = 0;
  {
    const memory::AllocationTrace trace(at::kCPU);
    merge_adapter(folder, out_.path() / "merged");
    int64_t live = 0;
    for (const auto& event : trace.events()) peak = std::max(peak, live += event.bytes);
  }
  int64_t largest = 0, all = 0;
  const io::CheckpointTensors merged(out_.path() / "merged");
  for (const auto& name : merged.names()) {
    largest = std::max(largest, merged.info(name).size_bytes);
    all += merged.info(name).size_bytes;
  }
  EXPECT_GT(peak, 0);
  EXPECT_LE(peak, 3 * largest);
  EXPECT_GT(all, 4 * largest);
}

TEST_F(AdapterTest, MergesIntoEachDtype) {
  const auto folder = saved({.rank = 4});
  const auto model16 = build_model(copy_.path(), at::kCPU, at::kBFloat16);
  load_weights(*model16, copy_.path());
  const auto base16 = out_.path() / "base16";
  std::filesystem::create_directories(base16);
  save_checkpoint(*model16, copy_.path(), base16, /*max_shard_bytes=*/100'000);
  auto config = io::read_json(folder / "adapter_config.json");
  config["base_model_name_or_path"] = base16.string();
  io::write_file(folder / "adapter_config.json", config.dump());

  merge_adapter(folder, out_.path() / "merged");
  const io::CheckpointTensors merged(out_.path() / "merged");
  const io::CheckpointTensors base(base16);
  EXPECT_THAT(merged.names(), testing::UnorderedElementsAreArray(base.names()));
  for (const auto& name : base.names()) {
    EXPECT_EQ(merged.info(name).dtype, at::kBFloat16);
    EXPECT_TRUE(at::equal(merged.tensor(name), base.tensor(name))) << name;  // B is zero
  }
  EXPECT_EQ(io::read_json(out_.path() / "merged/config.json"), io::read_json(base16 / "config.json"));
}

TEST_F(AdapterTest, ModulesToSaveAreTrainedAndGetNoAdapters) {
  const auto adapted = model({.rank = 4, .modules_to_save = {"connector", "embed_tokens", "text_model.norm"}});
  freeze(*adapted, {});
  int64_t saved = 0;
  for (const auto& parameter : adapted->parameters().all()) {
    const bool is_saved = parameter.name.find("connector") != std::string::npos ||
                          parameter.name == "model.text_model.embed_tokens.weight" ||
                          parameter.name == "model.text_model.norm.weight";
    EXPECT_EQ(parameter.in_modules_to_save, is_saved) << parameter.name;
    EXPECT_EQ(parameter.tensor.requires_grad(), is_saved || parameter.is_adapter) << parameter.name;
    EXPECT_FALSE(is_saved && parameter.is_adapter) << parameter.name;
    saved += is_saved ? 1 : 0;
  }
  EXPECT_EQ(saved, 3);
  EXPECT_THAT(building_error({.modules_to_save = {"conector"}}),
              AllOf(HasSubstr("lora.modules_to_save"), HasSubstr("conector"), HasSubstr("model.connector")));
}

/// What an adapter should have and has not would be the base's in a merge, which nobody would see.
TEST_F(AdapterTest, AnAdapterThatLacksTensorsIsNotMerged) {
  const auto folder = saved({.rank = 4, .target_modules = {"q_proj"}, .modules_to_save = {"connector"}});
  const auto file = folder / "adapter_model.safetensors";
  const auto without = [&](std::string_view part) {
    io::NamedTensors kept;
    {
      const io::SafetensorsFile whole(file);
      for (const auto& name : whole.names()) {
        if (name.find(part) == std::string::npos) kept.emplace_back(name, whole.tensor(name).clone());
      }
    }
    const auto copy = out_.path() / "partial";
    std::filesystem::remove_all(copy);
    std::filesystem::copy(folder, copy);
    io::write_safetensors(copy / "adapter_model.safetensors", kept);
    return message_of([&] { merge_adapter(copy, out_.path() / "merged"); });
  };
  EXPECT_THAT(without("connector"), HasSubstr("missing: base_model.model.model.connector."));
  EXPECT_THAT(without("text_model.layers.1."),
              HasSubstr("missing: base_model.model.model.text_model.layers.1.self_attn.q_proj.lora_A.weight"));
  EXPECT_FALSE(std::filesystem::exists(out_.path() / "merged"));
}

TEST_F(AdapterTest, ModulesToSaveComeBackAndReplaceTheBaseInAMerge) {
  const nn::LoraSettings lora{.rank = 4, .target_modules = {"q_proj"}, .modules_to_save = {"connector"}};
  const std::string name = "model.connector.modality_projection.proj.weight";
  const auto adapted = model(lora);
  initialize_adapter(*adapted, 0);
  parameters(*adapted).at(name).mul_(2);
  const auto folder = out_.path() / "whole_modules";
  std::filesystem::create_directories(folder);
  save_adapter(*adapted, copy_.path(), folder);
  EXPECT_EQ(read_adapter_settings(folder).modules_to_save, lora.modules_to_save);
  const at::Tensor wanted = parameters(*adapted).at(name);
  EXPECT_TRUE(at::equal(parameters(*load_model(folder, at::kCPU, at::kFloat)).at(name), wanted));
  merge_adapter(folder, out_.path() / "merged");
  EXPECT_TRUE(at::equal(io::CheckpointTensors(out_.path() / "merged").tensor(name), wanted));
}

}  // namespace
}  // namespace vlmtrain::models
