#include "vlmtrain/models/assemble.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "models/mask_model_files.h"
#include "models/presets.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/text/add_token.h"

namespace vlmtrain::models {
namespace {

namespace fs = std::filesystem;
using io::message_of;
using testing::AllOf;
using testing::HasSubstr;

struct MaskFiles {
  std::string name;
  SmallMaskModel (*make)();
  fs::path (*write)(const SmallMaskModel& model, const fs::path& folder);
};

const MaskFiles kMaskFiles[] = {
    {"Transformers", SmallMaskModel::sam,
     [](const SmallMaskModel& model, const fs::path& folder) { return model.write_transformers(folder); }},
    {"Sam", SmallMaskModel::sam,
     [](const SmallMaskModel& model, const fs::path& folder) {
       return model.write_original(folder / "sam.safetensors");
     }},
    {"MobileSam", SmallMaskModel::mobile_sam, [](const SmallMaskModel& model, const fs::path& folder) {
       model.write_original(folder / "mobile_sam.safetensors");
       return folder;  // the only file there
     }}};

at::Tensor text_logits(const VisionLanguageModel& model, const data::MicroBatch& batch) {
  const at::NoGradGuard no_gradients;
  const auto output = model.forward(batch, {.positions = at::arange(batch.tokens(), at::kLong)});
  return at::matmul(output.hidden, model.output_weight().t());
}

class Assembled : public testing::Test {
 protected:
  fs::path make_folder(const std::string& name) const {
    fs::create_directory(folder_.path() / name);
    return folder_.path() / name;
  }
  /// Of the smallest preset's mask model, at random, unless one is given.
  Assembly put_together(const fs::path& text_model, const fs::path& mask_model, const std::string& name,
                        uint64_t seed = 1) const {
    return assemble({.preset = "prs-med-tiny", .text_model = text_model, .mask_model = mask_model, .seed = seed},
                    folder_.path() / name);
  }
  std::string refusal(const fs::path& text_model, const fs::path& mask_model,
                      ExitCode code = ExitCode::kBadData) const {
    const std::string message = message_of([&] { put_together(text_model, mask_model, "refused"); }, code);
    EXPECT_FALSE(fs::exists(folder_.path() / "refused"));
    return message;
  }

  const parity::TemporaryFolder folder_;
  const parity::Case llava_{"llava_clip_mistral"};
};

class AssembledOf : public Assembled, public testing::WithParamInterface<std::tuple<std::string, MaskFiles>> {
 protected:
  const parity::Case llava_{std::get<0>(GetParam())};
  const SmallMaskModel masks_ = std::get<1>(GetParam()).make();
};

TEST_P(AssembledOf, HasWhatItsPartsHave) {
  const auto mask_model = std::get<1>(GetParam()).write(masks_, make_folder("masks"));
  const auto out = folder_.path() / "out";
  const auto made = put_together(llava_.checkpoint(), mask_model, "out");
  EXPECT_EQ(made.from_mask_model, std::ssize(masks_.own));
  EXPECT_EQ(made.at_random, 4) << "mask_prompt";

  const auto model = build_model(out, at::kCPU, at::kFloat);
  load_weights(*model, out);
  for (const auto& parameter : model->parameters().all()) {
    const std::string prefix = "mask_model.";
    if (!parameter.name.starts_with(prefix)) continue;
    EXPECT_TRUE(at::equal(parameter.tensor, masks_.own.at(parameter.name.substr(prefix.size())))) << parameter.name;
  }
  const auto processor = load_processor(out, {});
  const auto samples = llava_.samples();
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto batch = data::collate(std::span(samples).subspan(i, 1));
    EXPECT_TRUE(at::equal(text_logits(*model, batch), text_logits(*llava_.load_model(), batch))) << i;
  }
  EXPECT_EQ(processor->tokenizer().encode("<SEG>").ids, std::vector<int64_t>{made.mask_token_id});
  EXPECT_EQ(processor->tokenizer().decode(std::vector{made.mask_token_id}, /*skip_special_tokens=*/true), "<SEG>");
}

TEST_P(AssembledOf, HasTheSizesThatWereFound) {
  const auto mask_model = std::get<1>(GetParam()).write(masks_, make_folder("masks"));
  put_together(llava_.checkpoint(), mask_model, "out");
  const auto before = io::read_json(llava_.checkpoint() / "config.json");
  const auto config = io::read_json(folder_.path() / "out/config.json");
  EXPECT_EQ(config.at("model_type"), "prs_med");
  EXPECT_EQ(config.at("base_model_type"), before.at("model_type"));
  EXPECT_EQ(config.value("rms_norm_eps", nlohmann::json()), before.value("rms_norm_eps", nlohmann::json()));
  const auto& found = config.at("mask_config");
  for (const auto& [key, value] : masks_.encoder.items()) {
    if (key == "image_size") continue;
    EXPECT_EQ(found.at("vision_encoder").at(key), value) << key;
  }
  for (const auto& [key, value] : masks_.decoder.items()) EXPECT_EQ(found.at("mask_decoder").at(key), value) << key;
  const bool is_original = std::get<1>(GetParam()).name != "Transformers";
  EXPECT_EQ(found.at("mask_decoder").value("layer_norm_eps", 1e-6), is_original ? 1e-5 : 1e-6);
  const bool is_tiny = masks_.encoder.contains("embed_dims");
  EXPECT_EQ(found.at("image_size"), is_tiny ? 128 : 64) << "TinyViT takes any: the preset's";
}

INSTANTIATE_TEST_SUITE_P(Parts, AssembledOf,
                         testing::Combine(testing::Values("llava_clip_mistral", "llava_original"),
                                          testing::ValuesIn(kMaskFiles)),
                         [](const auto& instance) {
                           return std::get<0>(instance.param) + "_" + std::get<1>(instance.param).name;
                         });

TEST_F(Assembled, VocabularyGrowsByTheMeanOfItsRows) {
  const CheckpointCopy copy("llava_clip_mistral");
  std::string json = io::read_file(copy.path() / "tokenizer.json");
  for (int i = 462; i < 470; ++i) json = text::with_token(json, fmt::format("<t{}>", i), "tokenizer.json").json;
  io::write_file(copy.path() / "tokenizer.json", json);
  const auto made = put_together(copy.path(), {}, "out");
  EXPECT_EQ(made.mask_token_id, 470);
  EXPECT_EQ(made.vocabulary, 512);

  const io::CheckpointTensors before(copy.path()), after(folder_.path() / "out");
  for (const char* name : {"lm_head.weight", "model.language_model.embed_tokens.weight"}) {
    const at::Tensor old = before.tensor(name), grown = after.tensor(name);
    ASSERT_EQ(grown.size(0), 512) << name;
    EXPECT_TRUE(at::equal(grown.narrow(0, 0, 470), old)) << name;
    EXPECT_TRUE(at::equal(grown[470], old.mean(0))) << name;
    EXPECT_TRUE(at::equal(grown[511], grown[470])) << name;
  }
}

TEST_F(Assembled, IsAFunctionOfTheSeed) {
  for (const auto& [name, seed] : {std::pair{"a", 7U}, {"b", 7U}, {"c", 8U}}) {
    put_together(llava_.checkpoint(), {}, name, seed);
  }
  const auto weights = [&](const char* name) { return io::read_file(folder_.path() / name / "model.safetensors"); };
  EXPECT_TRUE(weights("a") == weights("b"));
  EXPECT_FALSE(weights("a") == weights("c"));
}

TEST_F(Assembled, WeightsKeepTheTypeOfTheTextModel) {
  const CheckpointCopy copy("llava_clip_mistral");
  io::NamedTensors halves;
  {
    const io::CheckpointTensors weights(copy.path());
    for (const auto& name : weights.names()) halves.emplace_back(name, weights.tensor(name).to(at::kBFloat16));
  }
  fs::remove(copy.path() / "model.safetensors");
  io::write_checkpoint_tensors(copy.path(), halves);
  put_together(copy.path(), {}, "out");
  const io::CheckpointTensors made(folder_.path() / "out");
  for (const auto& name : made.names()) EXPECT_EQ(made.info(name).dtype, at::kBFloat16) << name;
}

TEST_F(Assembled, MaskModelMayStandBesideARandomTextModel) {
  const auto made = put_together({}, SmallMaskModel::sam().write_transformers(make_folder("masks")), "out");
  EXPECT_EQ(made.from_text_model, 0);
  const auto model = build_model(folder_.path() / "out", at::kCPU, at::kFloat);
  load_weights(*model, folder_.path() / "out");
  EXPECT_EQ(io::read_json(folder_.path() / "out/config.json").at("mask_config").at("image_size"), 64);
}

TEST_F(Assembled, ListsWhatAMaskModelLacks) {
  const std::string missing = "mask_decoder.transformer.layers.1.norm3.weight";
  const auto file = SmallMaskModel::sam().write_original(folder_.path() / "sam.safetensors", missing);
  EXPECT_THAT(refusal(llava_.checkpoint(), file),
              AllOf(HasSubstr(file.string()), HasSubstr("1 differences"), HasSubstr("missing: " + missing)));
}

TEST_F(Assembled, ListsWhatATextModelLacks) {
  const CheckpointCopy copy("llava_clip_mistral");
  io::NamedTensors kept;
  {
    const io::CheckpointTensors weights(copy.path());
    for (const auto& name : weights.names()) {
      if (name != "lm_head.weight") kept.emplace_back(name, weights.tensor(name).clone());
    }
  }
  fs::remove(copy.path() / "model.safetensors");
  io::write_checkpoint_tensors(copy.path(), kept);
  EXPECT_THAT(refusal(copy.path(), {}), AllOf(HasSubstr(copy.path().string()), HasSubstr("lm_head.weight")));
}

TEST_F(Assembled, RefusesMaskModelsThatAreNone) {
  const fs::path data = fs::path(VLMTRAIN_SOURCE_DIR) / "tests/io/data";
  EXPECT_THAT(refusal(llava_.checkpoint(), data / "torch_state.pt"),
              AllOf(HasSubstr("torch_state.pt"), HasSubstr("no known layout"), HasSubstr("image_encoder.blocks")));
  const auto damaged = folder_.path() / "sam.pth";
  io::write_file(damaged, io::read_file(data / "torch_state.pt").substr(0, 700));
  EXPECT_THAT(refusal(llava_.checkpoint(), damaged), AllOf(HasSubstr(damaged.string()), HasSubstr("damaged")));
  EXPECT_THAT(refusal(llava_.checkpoint(), llava_.checkpoint()), HasSubstr("no known layout"));
  EXPECT_THAT(refusal(llava_.checkpoint(), make_folder("empty")), HasSubstr("has no config.json"));
  const auto alone = SmallMaskModel::sam().write_transformers(make_folder("sam")) / "model.safetensors";
  fs::remove(alone.parent_path() / "config.json");
  EXPECT_THAT(refusal(llava_.checkpoint(), alone), HasSubstr("a config.json beside the weights"));
}

TEST_F(Assembled, RefusesTextModelsThatAreNoLlava) {
  EXPECT_THAT(refusal(parity::Case("qwen2_vl_images").checkpoint(), {}, ExitCode::kUsage),
              AllOf(HasSubstr("--text-model"), HasSubstr("qwen2_vl"), HasSubstr("llava_mistral")));
}

TEST_F(Assembled, SaysWhereAVisionTowerIsMissing) {
  const CheckpointCopy copy("llava_original");  // whose tower lies beside the original
  copy.edit("config.json", [](auto& config) {
    config["vision_config"] =
        io::read_json(parity::Case("llava_original").checkpoint() / "../tower/config.json").at("vision_config");
  });
  EXPECT_THAT(refusal(copy.path(), {}), AllOf(HasSubstr("vision tower ../tower"), HasSubstr("mm_vision_tower")));
}

TEST_F(Assembled, OtherPresetsTakeNoParts) {
  EXPECT_THAT(message_of([&] { assemble({.preset = "llava-tiny", .text_model = llava_.checkpoint()}, "out"); },
                         ExitCode::kUsage),
              AllOf(HasSubstr("llava-tiny"), HasSubstr("prs-med-7b")));
}

TEST_F(Assembled, TokenizerOfAPresetGetsTheMaskToken) {
  const auto tokenizer = parity::Case("llava_original").checkpoint() / "tokenizer.json";
  write_preset_files("prs-med-7b", tokenizer, folder_.path());
  EXPECT_EQ(load_processor(folder_.path(), {})->tokenizer().encode("<SEG>").ids, std::vector<int64_t>{460});
}

TEST_F(Assembled, TokenizerMayComeBesideATextModel) {
  const CheckpointCopy copy("llava_clip_mistral");
  const auto elsewhere = folder_.path() / "elsewhere.json";
  fs::rename(copy.path() / "tokenizer.json", elsewhere);
  const AssemblyParts parts{.preset = "prs-med-tiny", .text_model = copy.path(), .tokenizer = elsewhere};
  EXPECT_EQ(assemble(parts, folder_.path() / "out").mask_token_id, 462);
  EXPECT_THAT(refusal(copy.path(), {}), HasSubstr("tokenizer.json"));
}

}  // namespace
}  // namespace vlmtrain::models
