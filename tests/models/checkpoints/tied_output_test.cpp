#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/captured_log.h"
#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "models/checkpoints/saved_config.h"
#include "models/checkpoints/tensor_names.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/models/checkpoint_info.h"

namespace vlmtrain::models {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

/// Checkpoint whose config ties the output projection.
struct TiedCase {
  const char* name;
  const char* embedding;
  const char* output;
};

class TiedOutputTest : public testing::TestWithParam<TiedCase> {
 protected:
  /// Adds an output projection, `change` of the embedding. If the output alone is stored, it
  /// becomes the embedding.
  template <class Change>
  at::Tensor add_output(const Change& change) const {
    io::NamedTensors tensors;
    at::Tensor embedding;
    const io::CheckpointTensors stored_tensors(copy_.path());
    for (const auto& name : stored_tensors.names()) {
      // From an earlier call.
      if (name == GetParam().output && stored_tensors.contains(GetParam().embedding)) continue;
      tensors.emplace_back(name == GetParam().output ? GetParam().embedding : name,
                           stored_tensors.tensor(name).clone());
      if (tensors.back().first == GetParam().embedding) embedding = tensors.back().second;
    }
    tensors.emplace_back(GetParam().output, change(embedding));
    io::write_safetensors(copy_.path() / "model.safetensors", tensors);
    return tensors.back().second;
  }

  const CheckpointCopy copy_{GetParam().name};
};

TEST_P(TiedOutputTest, DifferentOutputIsLoadedAndSaved) {
  const at::Tensor output = add_output([](const at::Tensor& embedding) {
    at::Tensor edited = embedding.clone();
    edited[-1][-1].add_(1);  // only the last number
    return edited;
  });
  const auto model = build_model(copy_.path(), at::kCPU, at::kFloat);
  EXPECT_FALSE(has_tied_output(*model));
  const CapturedLog log;
  load_weights(*model, copy_.path());
  EXPECT_TRUE(at::equal(model->output_weight(), output));
  EXPECT_THAT(log.text(),
              AllOf(HasSubstr("config.json"), HasSubstr(GetParam().output), HasSubstr(GetParam().embedding),
                    HasSubstr(std::string(get_tie_config_key(io::read_json(copy_.path() / "config.json"))))));
  const parity::TemporaryFolder out;
  const BaseWeights base(copy_.path());
  save_checkpoint(*model, {.base = &base}, out.path(), 1'000'000);
  EXPECT_TRUE(at::equal(io::CheckpointTensors(out.path()).tensor(GetParam().output), output));
  EXPECT_FALSE(may_tie_output(io::read_json(out.path() / "config.json")));
  EXPECT_THAT(list_checkpoint_warnings(out.path()), IsEmpty());
}

TEST_P(TiedOutputTest, EqualOutputIsTheEmbedding) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    add_output([&](const at::Tensor& embedding) { return embedding.to(dtype, false, /*copy=*/true); });
    const auto model = build_model(copy_.path(), at::kCPU, at::kFloat);
    EXPECT_TRUE(has_tied_output(*model));
    const CapturedLog log;
    load_weights(*model, copy_.path());
    EXPECT_EQ(log.text(), "");
    const std::string file = (copy_.path() / "config.json").string();
    EXPECT_EQ(json::parse(make_saved_config(*model, io::read_json(file).dump(), file, {})), io::read_json(file));
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
        TiedCase{"qwen3_text", "model.embed_tokens.weight", "lm_head.weight"},
        TiedCase{"gemma3_text", "model.embed_tokens.weight", "lm_head.weight"},
        TiedCase{"smollm3_text", "model.embed_tokens.weight", "lm_head.weight"},
        TiedCase{"nanovlm_tiles", "decoder.token_embedding.weight", "decoder.head.weight"}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(TiedOutputTest, OutputWithoutEmbeddingIsRefused) {
  if (std::string(GetParam().name) == "nanovlm_tiles") GTEST_SKIP() << "nanoVLM's checkpoints are saved this way";
  add_output([](const at::Tensor& embedding) { return embedding.clone(); });
  io::NamedTensors tensors;
  const io::CheckpointTensors file_tensors(copy_.path());
  for (const auto& name : file_tensors.names()) {
    if (name != GetParam().embedding) tensors.emplace_back(name, file_tensors.tensor(name).clone());
  }
  io::write_safetensors(copy_.path() / "model.safetensors", tensors);
  const auto model = build_model(copy_.path(), at::kCPU, at::kFloat);
  EXPECT_THAT(io::get_error_message([&] { load_weights(*model, copy_.path()); }),
              AllOf(HasSubstr(GetParam().output), HasSubstr("rename it to"), HasSubstr("embed_tokens.weight")));
}

TEST(TiedOutput, UntiedConfigKeepsItsOutput) {
  for (const char* name : {"text_only", "qwen3_vl_mixed", "internvl3_tiles", "gemma3_saved", "gemma4_unified_video",
                           "nanovlm_untied", "llama_text"}) {
    const CheckpointCopy copy(name);
    EXPECT_FALSE(has_tied_output(*build_model(copy.path(), at::kMeta, at::kFloat))) << name;
    EXPECT_THAT(list_checkpoint_warnings(copy.path()), IsEmpty()) << name;
  }
}

TEST(TiedOutput, KeyIsSetForTransformers) {
  const auto set_tie_key = [](json config, bool tied) {
    set_tied_output(config, tied);
    return config;
  };
  const json tied_text{{"model_type", "qwen2_5_vl"}, {"text_config", {{"tie_word_embeddings", true}}}};
  EXPECT_EQ(set_tie_key(tied_text, true), tied_text) << "Qwen2.5-VL's class reads both keys";
  EXPECT_EQ(set_tie_key(tied_text, false)["text_config"]["tie_word_embeddings"], false);
  json qwen3_config = tied_text;
  qwen3_config["model_type"] = "qwen3_vl";
  EXPECT_EQ(set_tie_key(qwen3_config, true)["tie_word_embeddings"], true)
      << "Qwen3-VL's class reads only the top-level key";
  const json gemma_config{{"model_type", "gemma3"}, {"text_config", json::object()}};
  EXPECT_EQ(set_tie_key(gemma_config, true), gemma_config);
  EXPECT_EQ(set_tie_key(gemma_config, false)["tie_word_embeddings"], false) << "Gemma 3 is tied if the key is absent";
  const json llava_config{{"model_type", "llava"}, {"text_config", json::object()}};
  EXPECT_EQ(set_tie_key(llava_config, false), llava_config);
  EXPECT_EQ(set_tie_key(llava_config, true)["tie_word_embeddings"], true);
  const json nanovlm_config{{"lm_hidden_dim", 32}};
  EXPECT_EQ(set_tie_key(nanovlm_config, true), nanovlm_config);
  EXPECT_EQ(set_tie_key(nanovlm_config, false)["lm_tie_weights"], false);
}

}  // namespace
}  // namespace vlmtrain::models
