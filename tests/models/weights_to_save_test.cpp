#include "vlmtrain/models/weights_to_save.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {
namespace {

constexpr int64_t kShardBytes = 300'000;
constexpr const char* kFamilies[] = {"mixed_batch",       "full_heads_untied_tiles", "smolvlm_type_sharded",
                                     "llava_clip_llama",  "nanovlm_tiles",           "nanovlm_untied",
                                     "qwen2_vl_images",   "qwen3_vl_images",         "internvl3_tiles",
                                     "internvl3_5_mixed", "gemma3_published"};

/// A model in bf16 of an fp32 checkpoint, and fp32 values of what is trained, which differ from both.
class WeightsToSaveTest : public testing::TestWithParam<const char*> {
 protected:
  void load(const FrozenParts& frozen, const std::optional<nn::LoraSettings>& lora = std::nullopt) {
    model_ = build_model(copy_.path(), at::kCPU, at::kBFloat16, lora);
    load_weights(*model_, copy_.path());
    if (lora) initialize_adapter(*model_, 0);
    freeze(*model_, frozen);
    for (const auto& parameter : model_->parameters().all()) {
      if (!parameter.tensor.requires_grad()) continue;
      const at::Tensor values = parameter.tensor.detach().to(at::kFloat);
      masters_[parameter.name] = values + 1e-3 * at::randn_like(values);
    }
  }

  SavedWeights how(const BaseWeights& base, std::optional<at::ScalarType> dtype = std::nullopt) const {
    return {.base = &base, .dtype = dtype, .masters = masters_};
  }

  io::CheckpointTensors saved(const SavedWeights& how_) const {
    std::filesystem::remove_all(out());
    std::filesystem::create_directory(out());
    save_checkpoint(*model_, how_, out(), kShardBytes);
    return io::CheckpointTensors(out());
  }

  std::filesystem::path out() const { return folder_.path() / "out"; }

  const CheckpointCopy copy_{GetParam()};
  const parity::TemporaryFolder folder_;
  std::unique_ptr<VisionLanguageModel> model_;
  std::map<std::string, at::Tensor> masters_;
};

TEST_P(WeightsToSaveTest, FrozenTensorsAreTheBasesAndTrainedOnesTheMasters) {
  load({.vision_tower = true});
  const BaseWeights base(copy_.path());
  EXPECT_EQ(base.dtype(), at::kFloat);
  const io::CheckpointTensors original(copy_.path());
  const auto found = saved(how(base));
  int64_t frozen = 0, rounded = 0;
  for (const auto& parameter : model_->parameters().all()) {
    const std::string name = model_->checkpoint_name(parameter.name);
    const at::Tensor tensor = found.tensor(name);
    ASSERT_EQ(tensor.scalar_type(), at::kFloat) << name;
    if (masters_.contains(parameter.name)) {
      EXPECT_TRUE(at::equal(tensor, masters_.at(parameter.name))) << name;
    } else if (original.contains(name)) {
      EXPECT_TRUE(at::equal(tensor, original.tensor(name))) << name;
      ++frozen;
      rounded += at::equal(tensor, parameter.tensor.detach().to(at::kFloat)) ? 0 : 1;
    }
  }
  EXPECT_GT(frozen, 5);
  EXPECT_GT(rounded, 0) << "the model's own values would have done as well";
  EXPECT_EQ(io::read_json(out() / "config.json"), io::read_json(copy_.path() / "config.json"));
  const auto again = build_model(out(), at::kCPU, at::kFloat);
  EXPECT_NO_THROW(load_weights(*again, out()));
}

TEST_P(WeightsToSaveTest, ATypeThatIsAskedForIsThatOfAll) {
  load({.language_model = true});
  const BaseWeights base(copy_.path());
  const auto found = saved(how(base, at::kHalf));
  const io::CheckpointTensors original(copy_.path());
  for (const auto& parameter : model_->parameters().all()) {
    const std::string name = model_->checkpoint_name(parameter.name);
    ASSERT_EQ(found.info(name).dtype, at::kHalf) << name;
    if (const auto master = masters_.find(parameter.name); master != masters_.end()) {
      EXPECT_TRUE(at::equal(found.tensor(name), master->second.to(at::kHalf))) << name;
    } else if (original.contains(name)) {
      EXPECT_TRUE(at::equal(found.tensor(name), original.tensor(name).to(at::kHalf))) << name << " was rounded twice";
    }
  }
  // A model that is loaded from there has its frozen weights from the base again.
  const auto loaded = build_model(out(), at::kCPU, at::kFloat);
  load_weights(*loaded, out());
  freeze(*loaded, {.language_model = true});
  restore_frozen(*loaded, out(), base, 0);
  for (const auto& parameter : loaded->parameters().all()) {
    const std::string name = loaded->checkpoint_name(parameter.name);
    if (parameter.tensor.requires_grad() || !original.contains(name)) continue;
    EXPECT_TRUE(at::equal(parameter.tensor, original.tensor(name))) << name;
  }
}

TEST_P(WeightsToSaveTest, ABaseThatIsGoneOnTheWayCostsNoRun) {
  load({.vision_tower = true});
  const BaseWeights base(copy_.path());
  for (const auto& entry : std::filesystem::directory_iterator(copy_.path())) {
    std::filesystem::remove_all(entry.path());
  }
  const auto found = saved(how(base));
  for (const auto& parameter : model_->parameters().all()) {
    const auto master = masters_.find(parameter.name);
    const at::Tensor wanted = master != masters_.end() ? master->second : parameter.tensor.detach().to(at::kFloat);
    EXPECT_TRUE(at::equal(found.tensor(model_->checkpoint_name(parameter.name)), wanted)) << parameter.name;
  }
  EXPECT_TRUE(std::filesystem::exists(out() / "tokenizer.json"));
  EXPECT_NE(io::message_of([&] { BaseWeights{copy_.path()}; }), "");
}

INSTANTIATE_TEST_SUITE_P(Families, WeightsToSaveTest, testing::ValuesIn(kFamilies),
                         [](const auto& instance) { return std::string(instance.param); });

using SavedAdapterTest = WeightsToSaveTest;

TEST_P(SavedAdapterTest, AdaptersAreTheirMastersInTheBasesType) {
  load({}, nn::LoraSettings{.rank = 2, .modules_to_save = {"connector"}});
  const BaseWeights base(copy_.path());
  for (const auto dtype : {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
    std::filesystem::remove_all(out());
    std::filesystem::create_directory(out());
    save_adapter(*model_, how(base, dtype), out());
    const io::SafetensorsFile found(out() / "adapter_model.safetensors");
    EXPECT_EQ(found.names().size(), masters_.size());
    for (const auto& [name, master] : masters_) {
      const at::Tensor tensor = found.tensor("base_model.model." + name);
      EXPECT_TRUE(at::equal(tensor, master.to(dtype.value_or(at::kFloat)))) << name;
    }
  }
  EXPECT_EQ(base_of_adapter(out()), copy_.path());
}

TEST_P(SavedAdapterTest, AFrozenAdapterStaysAsItCame) {
  const auto adapter = folder_.path() / "adapter";
  {
    const auto before = build_model(copy_.path(), at::kCPU, at::kFloat, nn::LoraSettings{.rank = 2});
    load_weights(*before, copy_.path());
    initialize_adapter(*before, 3);
    std::filesystem::create_directory(adapter);
    save_adapter(*before, copy_.path(), adapter);
  }
  load({.vision_tower = true}, read_adapter_settings(adapter));
  load_adapter(*model_, adapter);
  const BaseWeights base(copy_.path(), adapter);
  std::filesystem::create_directory(out());
  save_adapter(*model_, how(base, at::kBFloat16), out());
  const io::SafetensorsFile found(out() / "adapter_model.safetensors"), wanted(adapter / "adapter_model.safetensors");
  int64_t frozen = 0;
  for (const auto& name : wanted.names()) {
    if (name.find("vision_model") == std::string::npos) continue;
    EXPECT_TRUE(at::equal(found.tensor(name), wanted.tensor(name))) << name;
    ++frozen;
  }
  EXPECT_GT(frozen, 10);
}

INSTANTIATE_TEST_SUITE_P(Families, SavedAdapterTest, testing::Values("mixed_batch"));

TEST(WeightsToSave, AFrozenTowerOfAFolderOfItsOwnIsThatFolders) {
  const parity::Case original("llava_original");
  const auto model = original.load_model(at::kBFloat16);
  freeze(*model, {.vision_tower = true});
  const BaseWeights base(original.checkpoint());
  const parity::TemporaryFolder out;
  save_checkpoint(*model, SavedWeights{.base = &base}, out.path(), kShardBytes);
  const io::CheckpointTensors saved(out.path());
  int64_t of_the_tower = 0;
  for (const auto& parameter : model->parameters().all()) {
    const auto place = model->weight_elsewhere(parameter.name);
    if (!place) continue;
    const at::Tensor wanted = io::CheckpointTensors(place->folder).tensor(place->name);
    EXPECT_TRUE(at::equal(saved.tensor(model->checkpoint_name(parameter.name)), wanted)) << parameter.name;
    ++of_the_tower;
  }
  EXPECT_GT(of_the_tower, 10);
}

TEST(WeightsToSave, RowsThatWereAddedToAFrozenTableAreTheMeanInTheBasesType) {
  const CheckpointCopy copy("text_only");
  copy.edit("config.json", [](auto& config) {
    auto& text = config["text_config"];
    text["vocab_size"] = text["vocab_size"].template get<int64_t>() + 3;
  });
  const auto model = build_model(copy.path(), at::kCPU, at::kBFloat16);
  load_weights(*model, copy.path(), {.resize_embeddings = true});
  freeze(*model, {.language_model = true});
  const BaseWeights base(copy.path());
  const parity::TemporaryFolder out;
  save_checkpoint(*model, SavedWeights{.base = &base}, out.path(), kShardBytes);
  const std::string name = "model.text_model.embed_tokens.weight";
  const at::Tensor table = io::CheckpointTensors(copy.path()).tensor(name);
  const io::CheckpointTensors saved(out.path());
  const at::Tensor rows = saved.tensor(name);
  ASSERT_EQ(rows.size(0), table.size(0) + 3);
  EXPECT_TRUE(at::equal(rows.narrow(0, 0, table.size(0)), table));
  EXPECT_TRUE(at::equal(rows.narrow(0, table.size(0), 3), table.mean(0, true).expand({3, -1})));
}

}  // namespace
}  // namespace vlmtrain::models
