#include "models/checkpoints/tied_output.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/captured_log.h"
#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "models/checkpoints/saved_config.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_remarks.h"
#include "vlmtrain/models/weights_to_save.h"

namespace vlmtrain::models {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

/// A checkpoint whose config ties the output projection.
struct TiedCase {
  const char* name;
  const char* embedding;
  const char* output;
};

class TiedOutputTest : public testing::TestWithParam<TiedCase> {
 protected:
  /// Adds the output projection that `change` makes of the embedding; one that is there alone becomes the embedding.
  template <class Change>
  at::Tensor add_output(const Change& change) const {
    io::NamedTensors tensors;
    at::Tensor embedding;
    const io::CheckpointTensors before(copy_.path());
    for (const auto& name : before.names()) {
      if (name == GetParam().output && before.contains(GetParam().embedding)) continue;  // of an earlier call
      tensors.emplace_back(name == GetParam().output ? GetParam().embedding : name, before.tensor(name).clone());
      if (tensors.back().first == GetParam().embedding) embedding = tensors.back().second;
    }
    tensors.emplace_back(GetParam().output, change(embedding));
    io::write_safetensors(copy_.path() / "model.safetensors", tensors);
    return tensors.back().second;
  }

  const CheckpointCopy copy_{GetParam().name};
};

TEST_P(TiedOutputTest, OneThatDiffersIsLoadedAndSaved) {
  const at::Tensor output = add_output([](const at::Tensor& embedding) {
    at::Tensor changed = embedding.clone();
    changed[-1][-1].add_(1);  // in the last number alone
    return changed;
  });
  const auto model = build_model(copy_.path(), at::kCPU, at::kFloat);
  EXPECT_FALSE(ties_output(*model));
  const CapturedLog log;
  load_weights(*model, copy_.path());
  EXPECT_TRUE(at::equal(model->output_weight(), output));
  EXPECT_THAT(log.text(), AllOf(HasSubstr("config.json"), HasSubstr(GetParam().output), HasSubstr(GetParam().embedding),
                                HasSubstr(std::string(tie_key(io::read_json(copy_.path() / "config.json"))))));
  const parity::TemporaryFolder out;
  const BaseWeights base(copy_.path());
  save_checkpoint(*model, {.base = &base}, out.path(), 1'000'000);
  EXPECT_TRUE(at::equal(io::CheckpointTensors(out.path()).tensor(GetParam().output), output));
  EXPECT_FALSE(may_tie_output(io::read_json(out.path() / "config.json")));
  EXPECT_THAT(checkpoint_remarks(out.path()), IsEmpty());
}

TEST_P(TiedOutputTest, OneThatIsEqualIsTheEmbedding) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    add_output([&](const at::Tensor& embedding) { return embedding.to(dtype, false, /*copy=*/true); });
    const auto model = build_model(copy_.path(), at::kCPU, at::kFloat);
    EXPECT_TRUE(ties_output(*model));
    const CapturedLog log;
    load_weights(*model, copy_.path());
    EXPECT_EQ(log.text(), "");
    const std::string file = (copy_.path() / "config.json").string();
    EXPECT_EQ(json::parse(saved_config(*model, io::read_json(file).dump(), file, {})), io::read_json(file));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, TiedOutputTest,
    testing::Values(
        TiedCase{"mixed_batch", "model.text_model.embed_tokens.weight", "lm_head.weight"},
        TiedCase{"qwen2_5_vl_video", "model.embed_tokens.weight", "lm_head.weight"},
        TiedCase{"qwen3_vl_images", "model.language_model.embed_tokens.weight", "lm_head.weight"},
        TiedCase{"gemma3_published", "language_model.model.embed_tokens.weight", "language_model.lm_head.weight"},
        TiedCase{"internvl3_5_mixed", "model.language_model.embed_tokens.weight", "lm_head.weight"},
        TiedCase{"llava_siglip_qwen2", "language_model.model.embed_tokens.weight", "language_model.lm_head.weight"},
        TiedCase{"nanovlm_tiles", "decoder.token_embedding.weight", "decoder.head.weight"}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(TiedOutputTest, OneThatStandsForTheEmbeddingIsNamed) {
  if (std::string(GetParam().name) == "nanovlm_tiles") GTEST_SKIP() << "whose checkpoints are written so";
  add_output([](const at::Tensor& embedding) { return embedding.clone(); });
  io::NamedTensors tensors;
  const io::CheckpointTensors both(copy_.path());
  for (const auto& name : both.names()) {
    if (name != GetParam().embedding) tensors.emplace_back(name, both.tensor(name).clone());
  }
  io::write_safetensors(copy_.path() / "model.safetensors", tensors);
  const auto model = build_model(copy_.path(), at::kCPU, at::kFloat);
  EXPECT_THAT(io::message_of([&] { load_weights(*model, copy_.path()); }),
              AllOf(HasSubstr(GetParam().output), HasSubstr("rename it to"), HasSubstr("embed_tokens.weight")));
}

TEST(TiedOutput, AnUntiedConfigKeepsItsOwnOutput) {
  for (const char* name : {"text_only", "qwen3_vl_mixed", "internvl3_tiles", "gemma3_saved", "nanovlm_untied"}) {
    const CheckpointCopy copy(name);
    EXPECT_FALSE(ties_output(*build_model(copy.path(), at::kMeta, at::kFloat))) << name;
    EXPECT_THAT(checkpoint_remarks(copy.path()), IsEmpty()) << name;
  }
}

TEST(TiedOutput, TheKeyIsSetWhereTransformersReadsIt) {
  const auto set = [](json config, bool tied) {
    set_tying(config, tied);
    return config;
  };
  const json text_true{{"model_type", "qwen2_5_vl"}, {"text_config", {{"tie_word_embeddings", true}}}};
  EXPECT_EQ(set(text_true, true), text_true) << "Qwen2.5-VL's class reads both places";
  EXPECT_EQ(set(text_true, false)["text_config"]["tie_word_embeddings"], false);
  json qwen3 = text_true;
  qwen3["model_type"] = "qwen3_vl";
  EXPECT_EQ(set(qwen3, true)["tie_word_embeddings"], true) << "Qwen3-VL's class reads the top alone";
  const json gemma{{"model_type", "gemma3"}, {"text_config", json::object()}};
  EXPECT_EQ(set(gemma, true), gemma);
  EXPECT_EQ(set(gemma, false)["tie_word_embeddings"], false) << "Gemma 3 is tied where the key is absent";
  const json llava{{"model_type", "llava"}, {"text_config", json::object()}};
  EXPECT_EQ(set(llava, false), llava);
  EXPECT_EQ(set(llava, true)["tie_word_embeddings"], true);
  const json nanovlm{{"lm_hidden_dim", 32}};
  EXPECT_EQ(set(nanovlm, true), nanovlm);
  EXPECT_EQ(set(nanovlm, false)["lm_tie_weights"], false);
}

}  // namespace
}  // namespace vlmtrain::models
