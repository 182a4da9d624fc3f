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
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models {
namespace {

namespace fs = std::filesystem;
using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

struct MaskModelLayout {
  std::string name;
  SmallMaskModel (*make_model)();
  fs::path (*write_model)(const SmallMaskModel& model, const fs::path& folder);
};

const MaskModelLayout kMaskModelLayouts[] = {
    {"Transformers", SmallMaskModel::make_sam,
     [](const SmallMaskModel& model, const fs::path& folder) { return model.write_transformers(folder); }},
    {"Sam", SmallMaskModel::make_sam,
     [](const SmallMaskModel& model, const fs::path& folder) {
       return model.write_original(folder / "sam.safetensors");
     }},
    {"MobileSam", SmallMaskModel::make_mobile_sam, [](const SmallMaskModel& model, const fs::path& folder) {
       model.write_original(folder / "mobile_sam.safetensors");
       return folder;  // the only file in it
     }}};

at::Tensor compute_text_logits(const VisionLanguageModel& model, const data::MicroBatch& batch) {
  const at::NoGradGuard no_gradients;
  const auto output = model.forward(batch, {.positions = at::arange(batch.tokens(), at::kLong)});
  return at::matmul(output.hidden_states, model.output_weight().t());
}

class AssemblyTest : public testing::Test {
 protected:
  fs::path make_folder(const std::string& name) const {
    fs::create_directory(folder_.path() / name);
    return folder_.path() / name;
  }
  /// Assembles a model; the default mask model is the smallest preset's with random values.
  AssemblyResult assemble_model(const fs::path& text_model, const fs::path& mask_model, const std::string& name,
                                uint64_t seed = 1) const {
    return assemble_checkpoint(
        {.preset = "prs-med-tiny", .text_model = text_model, .mask_model = mask_model, .seed = seed},
        folder_.path() / name);
  }
  std::string get_error(const fs::path& text_model, const fs::path& mask_model,
                        ExitCode code = ExitCode::kBadData) const {
    const std::string message = get_error_message([&] { assemble_model(text_model, mask_model, "refused"); }, code);
    EXPECT_FALSE(fs::exists(folder_.path() / "refused"));
    return message;
  }

  const parity::TemporaryFolder folder_;
  const parity::Case llava_{"llava_clip_mistral"};
};

class AssemblyFromSources : public AssemblyTest,
                            public testing::WithParamInterface<std::tuple<std::string, MaskModelLayout>> {
 protected:
  const parity::Case llava_{std::get<0>(GetParam())};
  const SmallMaskModel masks_ = std::get<1>(GetParam()).make_model();
};

TEST_P(AssemblyFromSources, HasWeightsOfItsSources) {
  const auto mask_model = std::get<1>(GetParam()).write_model(masks_, make_folder("masks"));
  const auto out = folder_.path() / "out";
  const auto result = assemble_model(llava_.checkpoint(), mask_model, "out");
  EXPECT_EQ(result.num_mask_tensors, std::ssize(masks_.state_dict));
  EXPECT_EQ(result.num_random_tensors, 4) << "mask_prompt";

  const auto model = build_model(out, at::kCPU, at::kFloat);
  load_weights(*model, out);
  for (const auto& parameter : model->parameters().all()) {
    const std::string prefix = "mask_model.";
    if (!parameter.name.starts_with(prefix)) continue;
    EXPECT_TRUE(at::equal(parameter.tensor, masks_.state_dict.at(parameter.name.substr(prefix.size()))))
        << parameter.name;
  }
  const auto processor = load_processor(out, {});
  const auto samples = llava_.samples();
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto batch = data::collate(std::span(samples).subspan(i, 1));
    EXPECT_TRUE(at::equal(compute_text_logits(*model, batch), compute_text_logits(*llava_.load_model(), batch))) << i;
  }
  EXPECT_EQ(processor->tokenizer().encode("<SEG>").ids, std::vector<int64_t>{result.mask_token_id});
  EXPECT_EQ(processor->tokenizer().decode(std::vector{result.mask_token_id}, /*skip_special_tokens=*/true), "<SEG>");
}

TEST_P(AssemblyFromSources, HasSizesOfItsSources) {
  const auto mask_model = std::get<1>(GetParam()).write_model(masks_, make_folder("masks"));
  assemble_model(llava_.checkpoint(), mask_model, "out");
  const auto text_config = io::read_json(llava_.checkpoint() / "config.json");
  const auto config = io::read_json(folder_.path() / "out/config.json");
  EXPECT_EQ(config.at("model_type"), "prs_med");
  EXPECT_EQ(config.at("base_model_type"), text_config.at("model_type"));
  EXPECT_EQ(config.value("rms_norm_eps", nlohmann::json()), text_config.value("rms_norm_eps", nlohmann::json()));
  const auto& mask_config = config.at("mask_config");
  for (const auto& [key, value] : masks_.encoder.items()) {
    if (key == "image_size") continue;
    EXPECT_EQ(mask_config.at("vision_encoder").at(key), value) << key;
  }
  for (const auto& [key, value] : masks_.decoder.items())
    EXPECT_EQ(mask_config.at("mask_decoder").at(key), value) << key;
  const bool is_original = std::get<1>(GetParam()).name != "Transformers";
  EXPECT_EQ(mask_config.at("mask_decoder").value("layer_norm_eps", 1e-6), is_original ? 1e-5 : 1e-6);
  const bool is_tiny = masks_.encoder.contains("embed_dims");
  EXPECT_EQ(mask_config.at("image_size"), is_tiny ? 128 : 64) << "TinyViT supports any size: the preset's is used";
}

INSTANTIATE_TEST_SUITE_P(Parts, AssemblyFromSources,
                         testing::Combine(testing::Values("llava_clip_mistral", "llava_original"),
                                          testing::ValuesIn(kMaskModelLayouts)),
                         [](const auto& instance) {
                           return std::get<0>(instance.param) + "_" + std::get<1>(instance.param).name;
                         });

TEST_F(AssemblyTest, NewVocabularyRowsAreTheMean) {
  const CheckpointCopy copy("llava_clip_mistral");
  std::string json = io::read_file(copy.path() / "tokenizer.json");
  for (int i = 462; i < 470; ++i) json = text::add_token(json, fmt::format("<t{}>", i), "tokenizer.json").json;
  io::write_file(copy.path() / "tokenizer.json", json);
  const auto result = assemble_model(copy.path(), {}, "out");
  EXPECT_EQ(result.mask_token_id, 470);
  EXPECT_EQ(result.vocab_size, 512);

  const io::CheckpointTensors old_tensors(copy.path()), new_tensors(folder_.path() / "out");
  for (const char* name : {"lm_head.weight", "model.language_model.embed_tokens.weight"}) {
    const at::Tensor old_rows = old_tensors.tensor(name), new_rows = new_tensors.tensor(name);
    ASSERT_EQ(new_rows.size(0), 512) << name;
    EXPECT_TRUE(at::equal(new_rows.narrow(0, 0, 470), old_rows)) << name;
    EXPECT_TRUE(at::equal(new_rows[470], old_rows.mean(0))) << name;
    EXPECT_TRUE(at::equal(new_rows[511], new_rows[470])) << name;
  }
}

TEST_F(AssemblyTest, DependsOnlyOnTheSeed) {
  for (const auto& [name, seed] : {std::pair{"a", 7U}, {"b", 7U}, {"c", 8U}}) {
    assemble_model(llava_.checkpoint(), {}, name, seed);
  }
  const auto read_weights = [&](const char* name) {
    return io::read_file(folder_.path() / name / "model.safetensors");
  };
  EXPECT_TRUE(read_weights("a") == read_weights("b"));
  EXPECT_FALSE(read_weights("a") == read_weights("c"));
}

TEST_F(AssemblyTest, KeepsDtypeOfTextModel) {
  const CheckpointCopy copy("llava_clip_mistral");
  io::NamedTensors bf16_tensors;
  {
    const io::CheckpointTensors weights(copy.path());
    for (const auto& name : weights.names()) bf16_tensors.emplace_back(name, weights.tensor(name).to(at::kBFloat16));
  }
  fs::remove(copy.path() / "model.safetensors");
  io::write_checkpoint_tensors(copy.path(), bf16_tensors);
  assemble_model(copy.path(), {}, "out");
  const io::CheckpointTensors tensors(folder_.path() / "out");
  for (const auto& name : tensors.names()) EXPECT_EQ(tensors.info(name).dtype, at::kBFloat16) << name;
}

TEST_F(AssemblyTest, TextModelIsOptional) {
  const auto result = assemble_model({}, SmallMaskModel::make_sam().write_transformers(make_folder("masks")), "out");
  EXPECT_EQ(result.num_text_tensors, 0);
  const auto model = build_model(folder_.path() / "out", at::kCPU, at::kFloat);
  load_weights(*model, folder_.path() / "out");
  EXPECT_EQ(io::read_json(folder_.path() / "out/config.json").at("mask_config").at("image_size"), 64);
}

TEST_F(AssemblyTest, ListsMissingMaskTensors) {
  const std::string missing = "mask_decoder.transformer.layers.1.norm3.weight";
  const auto file = SmallMaskModel::make_sam().write_original(folder_.path() / "sam.safetensors", missing);
  EXPECT_THAT(get_error(llava_.checkpoint(), file),
              AllOf(HasSubstr(file.string()), HasSubstr("1 differences"), HasSubstr("missing: " + missing)));
}

TEST_F(AssemblyTest, ListsMissingTextTensors) {
  const CheckpointCopy copy("llava_clip_mistral");
  io::NamedTensors remaining;
  {
    const io::CheckpointTensors weights(copy.path());
    for (const auto& name : weights.names()) {
      if (name != "lm_head.weight") remaining.emplace_back(name, weights.tensor(name).clone());
    }
  }
  fs::remove(copy.path() / "model.safetensors");
  io::write_checkpoint_tensors(copy.path(), remaining);
  EXPECT_THAT(get_error(copy.path(), {}), AllOf(HasSubstr(copy.path().string()), HasSubstr("lm_head.weight")));
}

TEST_F(AssemblyTest, RefusesInvalidMaskModels) {
  const fs::path data = fs::path(VLMTRAIN_SOURCE_DIR) / "tests/io/data";
  EXPECT_THAT(get_error(llava_.checkpoint(), data / "torch_state.pt"),
              AllOf(HasSubstr("torch_state.pt"), HasSubstr("an unknown layout"), HasSubstr("image_encoder.blocks")));
  const auto damaged_file = folder_.path() / "sam.pth";
  io::write_file(damaged_file, io::read_file(data / "torch_state.pt").substr(0, 700));
  EXPECT_THAT(get_error(llava_.checkpoint(), damaged_file),
              AllOf(HasSubstr(damaged_file.string()), HasSubstr("damaged")));
  EXPECT_THAT(get_error(llava_.checkpoint(), llava_.checkpoint()), HasSubstr("an unknown layout"));
  EXPECT_THAT(get_error(llava_.checkpoint(), make_folder("empty")), HasSubstr("has no config.json"));
  const auto weights_file = SmallMaskModel::make_sam().write_transformers(make_folder("sam")) / "model.safetensors";
  fs::remove(weights_file.parent_path() / "config.json");
  EXPECT_THAT(get_error(llava_.checkpoint(), weights_file),
              HasSubstr("no config.json with its sizes next to the weights"));
}

TEST_F(AssemblyTest, RefusesTextModelsOtherThanLlava) {
  EXPECT_THAT(get_error(parity::Case("qwen2_vl_images").checkpoint(), {}, ExitCode::kUsage),
              AllOf(HasSubstr("--text-model"), HasSubstr("qwen2_vl"), HasSubstr("llava_mistral")));
}

TEST_F(AssemblyTest, NamesMissingVisionTower) {
  const CheckpointCopy copy("llava_original");  // its tower is in a sibling folder of the original
  copy.edit("config.json", [](auto& config) {
    config["vision_config"] =
        io::read_json(parity::Case("llava_original").checkpoint() / "../tower/config.json").at("vision_config");
  });
  EXPECT_THAT(get_error(copy.path(), {}), AllOf(HasSubstr("vision tower ../tower"), HasSubstr("mm_vision_tower")));
}

TEST_F(AssemblyTest, OtherPresetsTakeNoSources) {
  EXPECT_THAT(get_error_message(
                  [&] { assemble_checkpoint({.preset = "llava-tiny", .text_model = llava_.checkpoint()}, "out"); },
                  ExitCode::kUsage),
              AllOf(HasSubstr("llava-tiny"), HasSubstr("prs-med-7b")));
}

TEST_F(AssemblyTest, TokenizerOfAPresetGetsTheMaskToken) {
  const auto tokenizer = parity::Case("llava_original").checkpoint() / "tokenizer.json";
  write_preset_files("prs-med-7b", tokenizer, folder_.path());
  EXPECT_EQ(load_processor(folder_.path(), {})->tokenizer().encode("<SEG>").ids, std::vector<int64_t>{460});
}

TEST_F(AssemblyTest, TokenizerMayBeASeparateFile) {
  const CheckpointCopy copy("llava_clip_mistral");
  const auto tokenizer_file = folder_.path() / "elsewhere.json";
  fs::rename(copy.path() / "tokenizer.json", tokenizer_file);
  const AssemblyOptions options{.preset = "prs-med-tiny", .text_model = copy.path(), .tokenizer = tokenizer_file};
  EXPECT_EQ(assemble_checkpoint(options, folder_.path() / "out").mask_token_id, 462);
  EXPECT_THAT(get_error(copy.path(), {}), HasSubstr("tokenizer.json"));
}

}  // namespace
}  // namespace vlmtrain::models
