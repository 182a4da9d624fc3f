#include <unistd.h>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/memory/trace.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;
using testing::UnorderedElementsAreArray;

/// One that comes with a tokenizer, and so makes a whole checkpoint.
class PresetTest : public testing::TestWithParam<std::string> {
 protected:
  const parity::TemporaryFolder folder_;
};

TEST_P(PresetTest, WritesACheckpointThatLoads) {
  const auto out = folder_.path() / "new/model";
  write_preset(GetParam(), {}, 1, out);
  const auto model = build_model(out, at::kCPU, at::kFloat);
  load_weights(*model, out);
  EXPECT_GT(model->parameters().total_elements(), 0);
  EXPECT_GT(load_processor(out, {})->tokenizer().vocab_size(), 0);
}

TEST_P(PresetTest, DependsOnlyOnTheSeed) {
  for (const auto& [name, seed] : {std::pair{"a", 7U}, {"b", 7U}, {"c", 8U}})
    write_preset(GetParam(), {}, seed, folder_.path() / name);
  const auto read_weights = [&](const char* name) {
    return io::read_file(folder_.path() / name / "model.safetensors");
  };
  EXPECT_TRUE(read_weights("a") == read_weights("b"));
  EXPECT_FALSE(read_weights("a") == read_weights("c"));
}

TEST_P(PresetTest, Bf16PresetHasRoundedValues) {
  const auto fp32_folder = folder_.path() / "full", bf16_folder = folder_.path() / "half";
  write_preset(GetParam(), {}, 1, fp32_folder);
  write_preset(GetParam(), {}, 1, bf16_folder, at::kBFloat16);
  const io::SafetensorsFile fp32_tensors(fp32_folder / "model.safetensors"),
      bf16_tensors(bf16_folder / "model.safetensors");
  EXPECT_THAT(bf16_tensors.names(), UnorderedElementsAreArray(fp32_tensors.names()));
  int64_t num_rounded = 0;
  for (const std::string& name : fp32_tensors.names()) {
    const at::Tensor values = fp32_tensors.tensor(name), actual = bf16_tensors.tensor(name);
    if (actual.scalar_type() == at::kBFloat16) ++num_rounded;
    EXPECT_TRUE(at::equal(actual, values.to(actual.scalar_type()))) << name;
  }
  EXPECT_GT(num_rounded, 0);
  EXPECT_THAT(io::read_file(bf16_folder / "config.json"), Not(HasSubstr("\"float32\"")));
  const auto model = build_model(bf16_folder, at::kCPU, at::kFloat);
  load_weights(*model, bf16_folder);
}

TEST_P(PresetTest, RequiresAnEmptyFolder) {
  const auto out = folder_.path() / "model";
  std::filesystem::create_directory(out);
  write_preset(GetParam(), {}, 1, out);
  const auto stored_bytes = io::read_file(out / "model.safetensors");
  EXPECT_THAT(get_error_message([&] { write_preset(GetParam(), {}, 2, out); }, ExitCode::kUsage),
              AllOf(HasSubstr("--out"), HasSubstr(out.string())));
  EXPECT_TRUE(io::read_file(out / "model.safetensors") == stored_bytes);
}

TEST_P(PresetTest, RefusesOtherTokenizers) {
  const auto out = folder_.path() / "model";
  write_preset(GetParam(), {}, 1, out);
  EXPECT_THAT(get_error_message([&] { write_preset(GetParam(), out / "tokenizer.json", 1, folder_.path() / "other"); },
                                ExitCode::kUsage),
              AllOf(HasSubstr("--tokenizer"), HasSubstr(GetParam())));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "other"));
}

TEST_P(PresetTest, HoldsOneTensorAtATime) {
  const auto out = folder_.path() / "model";
  int64_t peak_bytes = 0;
  {
    const memory::AllocationTrace trace(at::kCPU);
    write_preset(GetParam(), {}, 1, out);
    int64_t live_bytes = 0;
    for (const auto& event : trace.events()) peak_bytes = std::max(peak_bytes, live_bytes += event.bytes);
  }
  int64_t max_bytes = 0, total_bytes = 0;
  const io::CheckpointTensors weights(out);
  for (const auto& name : weights.names()) {
    max_bytes = std::max(max_bytes, weights.info(name).size_bytes);
    total_bytes += weights.info(name).size_bytes;
  }
  EXPECT_GE(peak_bytes, max_bytes);
  EXPECT_LE(peak_bytes, max_bytes + 100'000) << "tables of rotary positions are small";
  EXPECT_GT(total_bytes, 2 * max_bytes + 200'000);
}

TEST_P(PresetTest, HasInitialWeightsOfModel) {
  const auto out = folder_.path() / "model";
  write_preset(GetParam(), {}, 5, out);
  const auto model = build_model(out, at::kCPU, at::kFloat);
  initialize_weights(*model, 5);
  const io::CheckpointTensors weights(out);
  for (const auto& parameter : model->parameters().all()) {
    const std::string name = model->checkpoint_name(parameter.name);
    EXPECT_TRUE(at::equal(weights.tensor(name), parameter.tensor)) << name;
  }
}

TEST_P(PresetTest, RemovesFilesOfInterruptedWriters) {
  const auto out = folder_.path() / "model";
  {
    // As one that was killed leaves it: by a process that is gone.
    const io::AtomicDirectory unfinished(out);
    const std::string folder_name = unfinished.path().filename().string();
    const std::string process_suffix = fmt::format(".{}.", getpid());
    const size_t position = folder_name.find(process_suffix);
    ASSERT_NE(position, std::string::npos) << folder_name;
    std::filesystem::create_directory(folder_.path() / (folder_name.substr(0, position) + ".999999999." +
                                                        folder_name.substr(position + process_suffix.size())));
  }
  write_preset(GetParam(), {}, 1, out);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1) << "but for the model";
}

std::string make_test_name(std::string preset) {
  std::erase_if(preset, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return preset;
}

INSTANTIATE_TEST_SUITE_P(WithTokenizer, PresetTest,
                         testing::Values("smolvlm-tiny", "smolvlm2-tiny", "llava-tiny", "nanovlm-tiny",
                                         "qwen2.5-vl-tiny", "qwen3-vl-tiny", "internvl3-tiny", "internvl3.5-tiny",
                                         "gemma-3-tiny", "prs-med-tiny", "brain-llava-tiny"),
                         [](const auto& instance) { return make_test_name(instance.param); });

struct PublishedModel {
  std::string name;
  int64_t parameters;       ///< of the checkpoint that the preset is named after
  int64_t tokens_per_tile;  ///< image tokens
  int64_t tokens;           ///< that an image of 1024 x 768 becomes: 4 x 3 cells and the whole picture
};

class PublishedPreset : public testing::TestWithParam<PublishedModel> {
 protected:
  PublishedPreset() { write_preset_config(GetParam().name, folder_.path()); }
  const parity::TemporaryFolder folder_;
};

TEST_P(PublishedPreset, HasPublishedNumberOfParameters) {
  const auto model = build_model(folder_.path(), at::kMeta, at::kBFloat16);
  EXPECT_EQ(model->parameters().total_elements(), GetParam().parameters);
}

TEST_P(PublishedPreset, SplitsAndMarksImageLikeTheCheckpoint) {
  const auto shape = compute_sample_shape(folder_.path(), {.images = 1, .image_width = 1024, .image_height = 768});
  EXPECT_EQ(shape.pixel_rows, 13);
  EXPECT_EQ(shape.image_tokens, 13 * GetParam().tokens_per_tile);
  EXPECT_EQ(shape.tokens - 256, GetParam().tokens);
  const auto config = io::read_json(folder_.path() / "config.json");
  const auto processor = io::read_json(folder_.path() / "processor_config.json");
  EXPECT_EQ(processor.at("image_seq_len"), GetParam().tokens_per_tile);
  const auto added_tokens = io::read_json(folder_.path() / "added_tokens.json");
  EXPECT_EQ(config.at("image_token_id"), added_tokens.at("<image>"));
  EXPECT_EQ(io::read_json(folder_.path() / "generation_config.json").at("eos_token_id"),
            added_tokens.at("<end_of_utterance>"));
  for (const auto& [token, id] : added_tokens.items())
    EXPECT_LT(id, config.at("text_config").at("vocab_size")) << token;
}

TEST_P(PublishedPreset, RefusesFilesThatAreNotItsTokenizer) {
  const auto out = folder_.path() / "out";
  const auto get_error = [&](const std::filesystem::path& tokenizer) {
    const std::string message = get_error_message([&] { write_preset(GetParam().name, tokenizer, 1, out); });
    EXPECT_FALSE(std::filesystem::exists(out));
    return message;
  };
  const auto yaml_file = folder_.path() / "train.yaml";
  io::write_file(yaml_file, "model:\n  path: base\n");
  EXPECT_THAT(get_error(yaml_file), AllOf(HasSubstr(yaml_file.string()), HasSubstr("not valid JSON")));
  EXPECT_THAT(get_error(folder_.path() / "config.json"), HasSubstr((folder_.path() / "config.json").string()));
  EXPECT_THAT(get_error(folder_.path()), HasSubstr("is a folder"));
  // A whole one, of another model.
  const auto other_tokenizer = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "configs/models/llava-tiny/tokenizer.json";
  EXPECT_THAT(get_error(other_tokenizer),
              AllOf(HasSubstr(other_tokenizer.string()), HasSubstr(get_tokenizer_source(GetParam().name)),
                    Not(HasSubstr("vlmtrain-new"))));
}

TEST_P(PublishedPreset, RequiresATokenizer) {
  const auto out = folder_.path() / "out";
  EXPECT_THAT(get_error_message([&] { write_preset(GetParam().name, {}, 1, out); }, ExitCode::kUsage),
              AllOf(HasSubstr(GetParam().name), HasSubstr("--tokenizer")));
  EXPECT_FALSE(std::filesystem::exists(out));
}

// The numbers of parameters are those of the checkpoints on the Hugging Face hub. Beside a tile's image tokens: the
// mark before it and its name, which 2.2B spells out (<row_1_col_1> in nine tokens, <global-img> in five); the last
// mark; line breaks after three rows.
INSTANTIATE_TEST_SUITE_P(Hub, PublishedPreset,
                         testing::Values(PublishedModel{"smolvlm-256m", 256'484'928, 64, 13 * (64 + 2) + 1 + 3},
                                         PublishedModel{"smolvlm-500m", 507'482'304, 64, 13 * (64 + 2) + 1 + 3},
                                         PublishedModel{"smolvlm-2.2b", 2'246'272'880, 81,
                                                        13 * (81 + 1) + 12 * 9 + 5 + 1 + 3},
                                         PublishedModel{"smolvlm2-256m-video", 256'484'928, 64, 13 * (64 + 2) + 1 + 3},
                                         PublishedModel{"smolvlm2-500m-video", 507'482'304, 64, 13 * (64 + 2) + 1 + 3},
                                         PublishedModel{"smolvlm2-2.2b", 2'246'784'880, 81, 13 * (81 + 2) + 1 + 3}),
                         [](const auto& instance) { return make_test_name(instance.param.name); });

struct SizedPreset {
  std::string name;
  int64_t parameters;
};

class PublishedLlava : public testing::TestWithParam<SizedPreset> {
 protected:
  PublishedLlava() { write_preset_config(GetParam().name, folder_.path()); }
  const parity::TemporaryFolder folder_;
};

TEST_P(PublishedLlava, HasNumberOfParametersOfItsParts) {
  const auto model = build_model(folder_.path(), at::kMeta, at::kBFloat16);
  EXPECT_EQ(model->parameters().total_elements(), GetParam().parameters);
  EXPECT_EQ(model->vision_blocks(), 23);  // the 24th does not run
}

TEST_P(PublishedLlava, EveryImageHas576Tokens) {
  for (const auto& [width, height] : {std::pair{1024, 768}, {10, 3000}}) {
    const auto shape =
        compute_sample_shape(folder_.path(), {.images = 2, .image_width = width, .image_height = height});
    EXPECT_EQ(shape.pixel_rows, 2);
    EXPECT_EQ(shape.image_tokens, 2 * 576);
    EXPECT_EQ(shape.tokens, 256 + 2 * 576);
    EXPECT_EQ(shape.row.height, 336);
  }
}

TEST_P(PublishedLlava, RequiresATokenizer) {
  EXPECT_THAT(
      get_error_message([&] { write_preset(GetParam().name, {}, 1, folder_.path() / "out"); }, ExitCode::kUsage),
      AllOf(HasSubstr(GetParam().name), HasSubstr("--tokenizer")));
}

// CLIP ViT-L/14-336's 303,507,456, the projector's and the text model's: Vicuna 7B and 13B with 64 rows more for tokens
// that were added, Mistral 7B. The first sum is the published number of llava-hf/llava-1.5-7b-hf.
INSTANTIATE_TEST_SUITE_P(
    Hub, PublishedLlava,
    testing::Values(SizedPreset{"llava-1.5-7b", 303'507'456 + 20'979'712 + 6'738'415'616 + 64L * 2 * 4096},
                    SizedPreset{"llava-1.5-13b", 303'507'456 + 31'467'520 + 13'015'864'320 + 64L * 2 * 5120},
                    SizedPreset{"llava-med-7b", 303'507'456 + 20'979'712 + 7'241'732'096}),
    [](const auto& instance) { return make_test_name(instance.param.name); });

struct NanovlmPreset {
  std::string name;
  int64_t parameters;
  int64_t tiles, image_tokens, tokens;  ///< of an image of 1024 x 768
};

class PublishedNanovlm : public testing::TestWithParam<NanovlmPreset> {
 protected:
  PublishedNanovlm() { write_preset_config(GetParam().name, folder_.path()); }
  const parity::TemporaryFolder folder_;
};

TEST_P(PublishedNanovlm, HasNumberOfParametersOfItsParts) {
  EXPECT_EQ(build_model(folder_.path(), at::kMeta, at::kBFloat16)->parameters().total_elements(),
            GetParam().parameters);
}

TEST_P(PublishedNanovlm, SplitsImagesLikeNanovlm) {
  const auto shape = compute_sample_shape(folder_.path(), {.images = 1, .image_width = 1024, .image_height = 768});
  EXPECT_EQ(shape.pixel_rows, GetParam().tiles);
  EXPECT_EQ(shape.image_tokens, GetParam().image_tokens);
  EXPECT_EQ(shape.tokens - 256, GetParam().tokens);
}

TEST_P(PublishedNanovlm, RequiresATokenizer) {
  EXPECT_THAT(
      get_error_message([&] { write_preset(GetParam().name, {}, 1, folder_.path() / "out"); }, ExitCode::kUsage),
      AllOf(HasSubstr(GetParam().name), HasSubstr("--tokenizer")));
}

// SigLIP-B/16 without its head, the projector, SmolLM2's 134,515,008 and 361,821,120, and 66 rows for extra tokens: in
// all what the names round to. 460M brings the longer side to 2048 pixels: 4 x 3 cells and the whole picture.
INSTANTIATE_TEST_SUITE_P(Hub, PublishedNanovlm,
                         testing::Values(NanovlmPreset{"nanovlm-222m", 85'797'120 + 1'769'472 + 134'515'008, 1, 49, 49},
                                         NanovlmPreset{"nanovlm-460m",
                                                       86'433'024 + 11'796'480 + 361'821'120 + 66L * 960, 13, 13 * 64,
                                                       13 * 65}),
                         [](const auto& instance) { return make_test_name(instance.param.name); });

class PublishedQwen : public testing::TestWithParam<SizedPreset> {
 protected:
  PublishedQwen() { write_preset_config(GetParam().name, folder_.path()); }
  const parity::TemporaryFolder folder_;
};

TEST_P(PublishedQwen, HasPublishedNumberOfParameters) {
  const auto model = build_model(folder_.path(), at::kMeta, at::kBFloat16);
  EXPECT_EQ(model->parameters().total_elements(), GetParam().parameters);
  EXPECT_EQ(model->vision_blocks(), 32);
}

TEST_P(PublishedQwen, UsesImagesInTheirResolution) {
  const auto shape = compute_sample_shape(folder_.path(), {.images = 2, .image_width = 1024, .image_height = 768});
  const data::PatchGrid grid{1, 54, 74};  // 1036 x 756 pixels, the nearest multiples of 28
  EXPECT_EQ(shape.grids, (std::vector<data::PatchGrid>{grid, grid}));
  EXPECT_EQ(shape.image_tokens, 2 * 27 * 37);
  EXPECT_EQ(shape.tokens, 2 * (27 * 37 + 2) + 256);
  EXPECT_EQ(shape.row.height, 28);
  EXPECT_EQ(shape.row.width, 14);
}

INSTANTIATE_TEST_SUITE_P(Hub, PublishedQwen,
                         testing::Values(SizedPreset{"qwen2.5-vl-3b", 3'754'622'976},
                                         SizedPreset{"qwen2.5-vl-7b", 8'292'166'656},
                                         SizedPreset{"qwen2-vl-2b", 2'208'985'600}),
                         [](const auto& instance) { return make_test_name(instance.param.name); });

class PublishedInternVl : public testing::TestWithParam<SizedPreset> {
 protected:
  PublishedInternVl() { write_preset_config(GetParam().name, folder_.path()); }
  const parity::TemporaryFolder folder_;
};

TEST_P(PublishedInternVl, HasNumberOfParametersOfItsParts) {
  const auto model = build_model(folder_.path(), at::kMeta, at::kBFloat16);
  EXPECT_EQ(model->parameters().total_elements(), GetParam().parameters);
}

TEST_P(PublishedInternVl, SplitsImagesIntoTiles) {
  // 4 x 3 cells and the whole picture, between <img> and </img>.
  const auto shape = compute_sample_shape(folder_.path(), {.images = 1, .image_width = 1024, .image_height = 768});
  EXPECT_EQ(shape.pixel_rows, 13);
  EXPECT_EQ(shape.image_tokens, 13 * 256);
  EXPECT_EQ(shape.tokens, 13 * 256 + 2 + 256);
}

TEST_P(PublishedInternVl, UsesVideosFrameByFrame) {
  const SyntheticSample sample{.images = 0, .video_frames = 12, .text_tokens = 100};
  const auto shape = compute_sample_shape(folder_.path(), sample);
  EXPECT_EQ(shape.pixel_rows, 12);
  EXPECT_EQ(shape.video_frames, 12);
  // "Frame", one or two digits, ":", " ", "<img>", "</img>"; eleven line breaks.
  EXPECT_EQ(shape.tokens, 12 * (256 + 5) + 9 + 3 * 2 + 11 + 100);
}

/// InternViT-300M-448px or -6B, and a projector to a text model of this width.
constexpr int64_t count_with_300m_tower(int64_t width) {
  return 304'012'288 + 2 * 4096 + (4096 + 1) * width + (width + 1) * width;
}
constexpr int64_t count_with_6b_tower(int64_t width) {
  return 5'536'496'000 + 2 * 12800 + (12800 + 1) * width + (width + 1) * width;
}
/// Qwen2.5's or Qwen3's text model, of which `parameters` are those without embeddings, with 151,674 or 151,936 of them
/// and as many rows of an output of its own.
constexpr int64_t count_qwen2_5(int64_t parameters, int64_t width) {
  return parameters + 2 * 151'674 * width;
}
constexpr int64_t count_qwen3(int64_t parameters, int64_t width) {
  return parameters + 2 * 151'936 * width;
}

INSTANTIATE_TEST_SUITE_P(
    Hub, PublishedInternVl,
    testing::Values(SizedPreset{"internvl3-1b", count_with_300m_tower(896) + count_qwen2_5(357'898'112, 896)},
                    SizedPreset{"internvl3-2b", count_with_300m_tower(1536) + count_qwen2_5(1'310'340'608, 1536)},
                    SizedPreset{"internvl3-8b", count_with_300m_tower(3584) + count_qwen2_5(6'525'621'760, 3584)},
                    SizedPreset{"internvl3-14b", count_with_300m_tower(5120) + count_qwen2_5(13'212'898'304, 5120)},
                    SizedPreset{"internvl3-38b", count_with_6b_tower(5120) + count_qwen2_5(31'206'740'992, 5120)},
                    SizedPreset{"internvl3.5-1b", count_with_300m_tower(1024) + count_qwen3(440'467'456, 1024)},
                    SizedPreset{"internvl3.5-2b", count_with_300m_tower(2048) + count_qwen3(1'409'410'048, 2048)},
                    SizedPreset{"internvl3.5-4b", count_with_300m_tower(2560) + count_qwen3(3'633'511'936, 2560)},
                    SizedPreset{"internvl3.5-8b", count_with_300m_tower(4096) + count_qwen3(6'946'075'648, 4096)},
                    SizedPreset{"internvl3.5-14b", count_with_300m_tower(5120) + count_qwen3(13'212'482'560, 5120)},
                    SizedPreset{"internvl3.5-38b", count_with_6b_tower(5120) + count_qwen3(31'206'298'624, 5120)}),
    [](const auto& instance) { return make_test_name(instance.param.name); });

class PublishedQwen3 : public testing::TestWithParam<SizedPreset> {};

TEST_P(PublishedQwen3, HasPublishedSizeAndImageResolution) {
  const parity::TemporaryFolder folder;
  write_preset_config(GetParam().name, folder.path());
  const auto model = build_model(folder.path(), at::kMeta, at::kBFloat16);
  EXPECT_EQ(model->parameters().total_elements(), GetParam().parameters);
  const auto shape = compute_sample_shape(folder.path(), {.images = 2, .image_width = 1000, .image_height = 750});
  const data::PatchGrid grid{1, 46, 62};  // 992 x 736 pixels, the nearest multiples of 32
  EXPECT_EQ(shape.grids, (std::vector<data::PatchGrid>{grid, grid}));
  EXPECT_EQ(shape.tokens, 2 * (23 * 31 + 2) + 256);
}

INSTANTIATE_TEST_SUITE_P(Hub, PublishedQwen3,
                         testing::Values(SizedPreset{"qwen3-vl-2b", 2'127'532'032},
                                         SizedPreset{"qwen3-vl-4b", 4'437'815'808},
                                         SizedPreset{"qwen3-vl-8b", 8'767'123'696},
                                         SizedPreset{"qwen3-vl-32b", 33'357'390'064}),
                         [](const auto& instance) { return make_test_name(instance.param.name); });

class PublishedGemma : public testing::TestWithParam<SizedPreset> {};

TEST_P(PublishedGemma, HasPublishedSizeAndOneTilePerImage) {
  const parity::TemporaryFolder folder;
  write_preset_config(GetParam().name, folder.path());
  const auto model = build_model(folder.path(), at::kMeta, at::kBFloat16);
  EXPECT_EQ(model->parameters().total_elements(), GetParam().parameters);
  const auto shape = compute_sample_shape(folder.path(), {.images = 2, .image_width = 1000, .image_height = 300});
  EXPECT_EQ(shape.pixel_rows, 2);
  EXPECT_EQ(shape.image_tokens, 2 * 256);
  EXPECT_EQ(shape.tokens, 2 * (256 + 4) + 256);
}

INSTANTIATE_TEST_SUITE_P(Hub, PublishedGemma,
                         testing::Values(SizedPreset{"gemma-3-4b", 4'300'079'472},
                                         SizedPreset{"medgemma-4b", 4'300'079'472},
                                         SizedPreset{"gemma-3-12b", 12'187'325'040},
                                         SizedPreset{"gemma-3-27b", 27'432'406'640}),
                         [](const auto& instance) { return make_test_name(instance.param.name); });

TEST(PresetNames, AreAllTested) {
  EXPECT_THAT(list_presets(),
              UnorderedElementsAre(
                  "brain-llava-7b", "brain-llava-tiny", "gemma-3-12b", "gemma-3-27b", "gemma-3-4b", "gemma-3-tiny",
                  "internvl3-14b", "internvl3-1b", "internvl3-2b", "internvl3-38b", "internvl3-8b", "internvl3-tiny",
                  "internvl3.5-14b", "internvl3.5-1b", "internvl3.5-2b", "internvl3.5-38b", "internvl3.5-4b",
                  "internvl3.5-8b", "internvl3.5-tiny", "llava-1.5-13b", "llava-1.5-7b", "llava-med-7b", "llava-tiny",
                  "medgemma-4b", "nanovlm-222m", "nanovlm-460m", "nanovlm-tiny", "prs-med-7b", "prs-med-tiny",
                  "qwen2-vl-2b", "qwen2.5-vl-3b", "qwen2.5-vl-7b", "qwen2.5-vl-tiny", "qwen3-vl-2b", "qwen3-vl-32b",
                  "qwen3-vl-4b", "qwen3-vl-8b", "qwen3-vl-tiny", "smolvlm-2.2b", "smolvlm-256m", "smolvlm-500m",
                  "smolvlm-tiny", "smolvlm2-2.2b", "smolvlm2-256m-video", "smolvlm2-500m-video", "smolvlm2-tiny"));
}

TEST(PresetNames, NameTheirTokenizerSource) {
  for (const auto& name : list_presets()) {
    parity::TemporaryFolder folder;
    write_preset_config(name, folder.path());
    EXPECT_EQ(get_tokenizer_source(name).empty(), std::filesystem::exists(folder.path() / "tokenizer.json")) << name;
  }
}

TEST(WritePreset, UnknownNameListsTheKnownNames) {
  const parity::TemporaryFolder folder;
  std::string misspelled_name = list_presets().at(0);
  misspelled_name.back() = '?';
  const auto preset_error =
      get_error_message([&] { write_preset(misspelled_name, {}, 1, folder.path() / "out"); }, ExitCode::kUsage);
  EXPECT_THAT(preset_error, HasSubstr("--preset " + misspelled_name));
  const auto config_error =
      get_error_message([&] { write_preset_config(misspelled_name, folder.path()); }, ExitCode::kUsage);
  EXPECT_THAT(config_error, HasSubstr("model " + misspelled_name));
  for (const auto& message : {preset_error, config_error}) {
    EXPECT_THAT(message, HasSubstr("did you mean " + list_presets().at(0)));
    for (const auto& name : list_presets()) EXPECT_THAT(message, HasSubstr(name));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace vlmtrain::models
