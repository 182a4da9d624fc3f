#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/adapter_folder.h"
#include "models/adapters/output_module.h"

namespace vlmtrain::models {
namespace {

using io::message_of;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kHead = "base_model.model.lm_head.weight";

/// Embedding and output of a base that ties them, as PEFT 0.21.2 writes them in an adapter: one of the two alone, both
/// with values of their own, or both with ensure_weight_tying.
class TiedAdapter : public testing::TestWithParam<const char*> {
 protected:
  static nn::LoraSettings settings() {
    return {.rank = 2, .target_modules = {"q_proj"}, .modules_to_save = {"embed_tokens"}};
  }

  /// As PEFT writes it without ensure_weight_tying: `modules`, and of the two tensors those that are asked for.
  void train_apart(const std::vector<std::string>& modules, bool has_embedding, bool has_head) const {
    auto tensors = adapter_.tensors();
    if (!has_embedding) tensors.erase(embedding_);
    if (has_head) tensors[kHead] = tensors.at(kHead) * 2;
    if (!has_head) tensors.erase(kHead);
    adapter_.put(tensors);
    adapter_.edit("adapter_config.json", [&](auto& content) {
      content["modules_to_save"] = modules;
      content["ensure_weight_tying"] = false;
    });
  }

  at::Tensor embedding_of(const VisionLanguageModel& model) const {
    return values_of(model).at(embedding_.substr(std::string("base_model.model.").size()));
  }
  at::Tensor embedding_of_base() const {
    const auto model = build_model(adapter_.base(), at::kCPU, at::kFloat);
    load_weights(*model, adapter_.base());
    return embedding_of(*model);
  }

  /// The adapter and what it merges to have these values, and the merged config.json says that they are apart.
  void expect_apart(const at::Tensor& embedding, const at::Tensor& head) const {
    const auto merged = adapter_.merge();
    for (const auto& model : {adapter_.load(), load_model(merged, at::kCPU, at::kFloat)}) {
      EXPECT_EQ(tied_embedding(*model), nullptr);
      EXPECT_TRUE(at::equal(embedding_of(*model), embedding));
      EXPECT_TRUE(at::equal(model->output_weight().detach(), head));
    }
    EXPECT_EQ(io::read_json(merged / "config.json").at("tie_word_embeddings"), false);
  }

  const AdapterFolder adapter_{GetParam(), settings()};
  const AdapterFolder::Tensors written_ = adapter_.tensors();
  const std::string embedding_ = [this] {
    for (const auto& [name, tensor] : written_) {
      if (name.ends_with("embed_tokens.weight")) return name;
    }
    return std::string();
  }();
};

TEST_P(TiedAdapter, IsWrittenWithBothTensorsAsPeftReadsIt) {
  ASSERT_TRUE(written_.contains(kHead));
  EXPECT_TRUE(at::equal(written_.at(kHead), written_.at(embedding_)));
  EXPECT_EQ(io::read_json(adapter_.path() / "adapter_config.json").at("ensure_weight_tying"), true);
  const auto model = adapter_.load();
  EXPECT_NE(tied_embedding(*model), nullptr);
  EXPECT_TRUE(at::equal(model->output_weight().detach(), written_.at(embedding_)));
  const auto merged = load_model(adapter_.merge(), at::kCPU, at::kFloat);
  EXPECT_NE(tied_embedding(*merged), nullptr);
  EXPECT_TRUE(at::equal(merged->output_weight().detach(), written_.at(embedding_)));
}

TEST_P(TiedAdapter, IsReadAsPeftAndEarlierReleasesWroteIt) {
  const auto expect_tied = [&] {
    const auto model = adapter_.load();
    EXPECT_NE(tied_embedding(*model), nullptr);
    EXPECT_TRUE(at::equal(model->output_weight().detach(), written_.at(embedding_)));
  };
  // PEFT names the embedding twice.
  const std::string prefix = "base_model.model.";
  const std::string module = embedding_.substr(prefix.size(), embedding_.rfind('.') - prefix.size());
  adapter_.edit("adapter_config.json", [&](auto& content) { content["modules_to_save"] = {module, "embed_tokens"}; });
  expect_tied();
  // And the output where that is what was asked for.
  adapter_.edit("adapter_config.json", [&](auto& content) {
    content["modules_to_save"] = {"embed_tokens", "lm_head"};
  });
  expect_tied();
  auto tensors = written_;
  tensors.erase(kHead);
  adapter_.put(tensors);
  expect_tied();
}

TEST_P(TiedAdapter, TrainedApartHasTwoWeights) {
  const at::Tensor base = embedding_of_base();
  train_apart({"embed_tokens", "lm_head"}, true, true);
  expect_apart(written_.at(embedding_), written_.at(kHead) * 2);
  adapter_.put(written_);
  train_apart({"lm_head"}, false, true);
  expect_apart(base, written_.at(kHead) * 2);
  adapter_.put(written_);
  train_apart({"embed_tokens"}, true, false);
  expect_apart(written_.at(embedding_), base);

  // What is trained apart is saved apart.
  const auto again = adapter_.beside("again");
  std::filesystem::create_directories(again);
  save_adapter(*adapter_.load(), adapter_.base(), again);
  EXPECT_EQ(io::read_json(again / "adapter_config.json").at("ensure_weight_tying"), false);
  EXPECT_FALSE(io::SafetensorsFile(again / "adapter_model.safetensors").contains(kHead));
  EXPECT_TRUE(at::equal(load_model(again, at::kCPU, at::kFloat)->output_weight().detach(), base));
}

TEST_P(TiedAdapter, AMergeReplacesTheCopyOfTheOutputThatABaseHas) {
  const auto base = adapter_.base() / "model.safetensors";
  io::NamedTensors tensors;
  {
    const io::SafetensorsFile file(base);
    for (const auto& name : file.names()) {
      tensors.emplace_back(name, file.tensor(name).clone());
      if (!name.ends_with("embed_tokens.weight")) continue;
      const bool is_outside = name.starts_with("language_model.");
      tensors.emplace_back(is_outside ? "language_model.lm_head.weight" : "lm_head.weight", file.tensor(name).clone());
    }
  }
  io::write_safetensors(base, tensors);
  const io::CheckpointTensors merged(adapter_.merge());
  for (const auto& name : merged.names()) {
    if (name.ends_with("embed_tokens.weight") || name.ends_with("lm_head.weight")) {
      EXPECT_TRUE(at::equal(merged.tensor(name), written_.at(embedding_))) << name;
    }
  }

  // Values that differ and are to be one are refused by all commands.
  auto apart = written_;
  apart[kHead] = apart.at(kHead) * 2;
  adapter_.put(apart);
  std::filesystem::remove_all(adapter_.beside("merged"));
  const auto wanted = AllOf(HasSubstr(kHead), HasSubstr("ensure_weight_tying"));
  EXPECT_THAT(message_of([&] { adapter_.load(); }), wanted);
  EXPECT_THAT(message_of([&] { adapter_.merge(); }), wanted);
  EXPECT_FALSE(std::filesystem::exists(adapter_.beside("merged")));
}

INSTANTIATE_TEST_SUITE_P(Families, TiedAdapter,
                         testing::Values("mixed_batch", "qwen3_vl_images", "gemma3_words", "internvl3_5_mixed",
                                         "llava_siglip_qwen2"),
                         [](const auto& member) { return std::string(member.param); });

TEST(UntiedAdapter, TrainsTheTwoAsTheBaseHasThem) {
  const AdapterFolder adapter(
      "llava_clip_llama", {.rank = 2, .target_modules = {"q_proj"}, .modules_to_save = {"embed_tokens", "lm_head"}});
  EXPECT_EQ(io::read_json(adapter.path() / "adapter_config.json").at("ensure_weight_tying"), false);
  const auto written = adapter.tensors();
  EXPECT_TRUE(at::equal(adapter.load()->output_weight().detach(), written.at(kHead)));
  EXPECT_EQ(io::read_json(adapter.merge() / "config.json"), io::read_json(adapter.base() / "config.json"));
}

TEST(TiedModulesToSave, TheOutputOfATiedModelIsTrainedWithItsEmbedding) {
  const CheckpointCopy base("mixed_batch");
  const auto build = [&](const std::vector<std::string>& modules) {
    return build_model(base.path(), at::kMeta, at::kFloat, nn::LoraSettings{.modules_to_save = modules});
  };
  EXPECT_NE(tied_embedding(*build({"embed_tokens", "lm_head"})), nullptr);
  EXPECT_THAT(message_of([&] { build({"lm_head"}); }, ExitCode::kUsage),
              AllOf(HasSubstr("lora.modules_to_save"), HasSubstr("tie_word_embeddings"), HasSubstr("embed_tokens")));
}

}  // namespace
}  // namespace vlmtrain::models
