#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "parity/temporary_folder.h"
#include "parity/tiny_preset.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/synthetic_sample.h"
namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct PublishedModel {
  std::string name;
  int64_t parameters;       ///< of the checkpoint named in the preset
  int64_t tokens_per_tile;  ///< image tokens
  int64_t tokens;           ///< of an image of 1024 x 768: 4 x 3 cells and the global image
};

class PublishedPreset : public testing::TestWithParam<PublishedModel> {
 protected:
  PublishedPreset() { write_preset_config(GetParam().name, folder_.path()); }
  const parity::TemporaryFolder folder_;
};

TEST_P(PublishedPreset, HasPublishedNumberOfParameters) {
  const auto model = build_model(folder_.path(), at::kMeta, at::kBFloat16);
  EXPECT_EQ(model->parameters().count_elements(), GetParam().parameters);
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
    const std::string message = get_error_message([&] { write_preset_checkpoint(GetParam().name, tokenizer, 1, out); });
    EXPECT_FALSE(std::filesystem::exists(out));
    return message;
  };
  const auto yaml_file = folder_.path() / "train.yaml";
  io::write_file(yaml_file, "model:\n  path: base\n");
  EXPECT_THAT(get_error(yaml_file), AllOf(HasSubstr(yaml_file.string()), HasSubstr("not valid JSON")));
  EXPECT_THAT(get_error(folder_.path() / "config.json"), HasSubstr((folder_.path() / "config.json").string()));
  EXPECT_THAT(get_error(folder_.path()), HasSubstr("is a folder"));
  // An intact tokenizer of another model.
  const auto other_tokenizer = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "configs/models/llava-tiny/tokenizer.json";
  EXPECT_THAT(get_error(other_tokenizer),
              AllOf(HasSubstr(other_tokenizer.string()), HasSubstr(get_tokenizer_source(GetParam().name)),
                    Not(HasSubstr("vlmtrain-new"))));
}

TEST_P(PublishedPreset, RequiresATokenizer) {
  const auto out = folder_.path() / "out";
  EXPECT_THAT(get_error_message([&] { write_preset_checkpoint(GetParam().name, {}, 1, out); }, ExitCode::kUsage),
              AllOf(HasSubstr(GetParam().name), HasSubstr("--tokenizer")));
  EXPECT_FALSE(std::filesystem::exists(out));
}

// The numbers of parameters are those of the checkpoints on the Hugging Face hub. Tokens in
// addition to a tile's image tokens: the marker before it and its name, which 2.2B spells out
// (<row_1_col_1> in nine tokens, <global-img> in five); the last marker; line breaks after three
// rows.
INSTANTIATE_TEST_SUITE_P(Hub, PublishedPreset,
                         testing::Values(PublishedModel{"smolvlm-256m", 256'484'928, 64, 13 * (64 + 2) + 1 + 3},
                                         PublishedModel{"smolvlm-500m", 507'482'304, 64, 13 * (64 + 2) + 1 + 3},
                                         PublishedModel{"smolvlm-2.2b", 2'246'272'880, 81,
                                                        13 * (81 + 1) + 12 * 9 + 5 + 1 + 3},
                                         PublishedModel{"smolvlm2-256m-video", 256'484'928, 64, 13 * (64 + 2) + 1 + 3},
                                         PublishedModel{"smolvlm2-500m-video", 507'482'304, 64, 13 * (64 + 2) + 1 + 3},
                                         PublishedModel{"smolvlm2-2.2b", 2'246'784'880, 81, 13 * (81 + 2) + 1 + 3}),
                         [](const auto& instance) { return parity::TinyPreset::make_test_name(instance.param.name); });

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
  EXPECT_EQ(model->parameters().count_elements(), GetParam().parameters);
  EXPECT_EQ(model->num_vision_blocks(), 23);  // the 24th does not run
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
  EXPECT_THAT(get_error_message([&] { write_preset_checkpoint(GetParam().name, {}, 1, folder_.path() / "out"); },
                                ExitCode::kUsage),
              AllOf(HasSubstr(GetParam().name), HasSubstr("--tokenizer")));
}

// The sums of CLIP ViT-L/14-336 (303,507,456), the projector and the text model: Vicuna 7B and 13B
// with 64 rows for added tokens, Mistral 7B. The first sum is the published number of
// llava-hf/llava-1.5-7b-hf.
INSTANTIATE_TEST_SUITE_P(
    Hub, PublishedLlava,
    testing::Values(SizedPreset{"llava-1.5-7b", 303'507'456 + 20'979'712 + 6'738'415'616 + 64L * 2 * 4096},
                    SizedPreset{"llava-1.5-13b", 303'507'456 + 31'467'520 + 13'015'864'320 + 64L * 2 * 5120},
                    SizedPreset{"llava-med-7b", 303'507'456 + 20'979'712 + 7'241'732'096}),
    [](const auto& instance) { return parity::TinyPreset::make_test_name(instance.param.name); });

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
  EXPECT_EQ(build_model(folder_.path(), at::kMeta, at::kBFloat16)->parameters().count_elements(),
            GetParam().parameters);
}

TEST_P(PublishedNanovlm, SplitsImagesLikeNanovlm) {
  const auto shape = compute_sample_shape(folder_.path(), {.images = 1, .image_width = 1024, .image_height = 768});
  EXPECT_EQ(shape.pixel_rows, GetParam().tiles);
  EXPECT_EQ(shape.image_tokens, GetParam().image_tokens);
  EXPECT_EQ(shape.tokens - 256, GetParam().tokens);
}

TEST_P(PublishedNanovlm, RequiresATokenizer) {
  EXPECT_THAT(get_error_message([&] { write_preset_checkpoint(GetParam().name, {}, 1, folder_.path() / "out"); },
                                ExitCode::kUsage),
              AllOf(HasSubstr(GetParam().name), HasSubstr("--tokenizer")));
}

// The sums of SigLIP-B/16 without its head, the projector, SmolLM2 (134,515,008 and 361,821,120)
// and 66 rows for extra tokens; the preset names are the rounded sums. 460M scales the longer side
// to 2048 pixels: 4 x 3 cells and the global image.
INSTANTIATE_TEST_SUITE_P(Hub, PublishedNanovlm,
                         testing::Values(NanovlmPreset{"nanovlm-222m", 85'797'120 + 1'769'472 + 134'515'008, 1, 49, 49},
                                         NanovlmPreset{"nanovlm-460m",
                                                       86'433'024 + 11'796'480 + 361'821'120 + 66L * 960, 13, 13 * 64,
                                                       13 * 65}),
                         [](const auto& instance) { return parity::TinyPreset::make_test_name(instance.param.name); });

class PublishedQwen : public testing::TestWithParam<SizedPreset> {
 protected:
  PublishedQwen() { write_preset_config(GetParam().name, folder_.path()); }
  const parity::TemporaryFolder folder_;
};

TEST_P(PublishedQwen, HasPublishedNumberOfParameters) {
  const auto model = build_model(folder_.path(), at::kMeta, at::kBFloat16);
  EXPECT_EQ(model->parameters().count_elements(), GetParam().parameters);
  EXPECT_EQ(model->num_vision_blocks(), 32);
}

TEST_P(PublishedQwen, UsesImagesInTheirResolution) {
  const auto shape = compute_sample_shape(folder_.path(), {.images = 2, .image_width = 1024, .image_height = 768});
  const data::PatchGrid grid{1, 54, 74};  // 1036 x 756 pixels, the nearest multiples of 28
  EXPECT_EQ(shape.patch_grids, (std::vector<data::PatchGrid>{grid, grid}));
  EXPECT_EQ(shape.image_tokens, 2 * 27 * 37);
  EXPECT_EQ(shape.tokens, 2 * (27 * 37 + 2) + 256);
  EXPECT_EQ(shape.row.height, 28);
  EXPECT_EQ(shape.row.width, 14);
}

INSTANTIATE_TEST_SUITE_P(Hub, PublishedQwen,
                         testing::Values(SizedPreset{"qwen2.5-vl-3b", 3'754'622'976},
                                         SizedPreset{"qwen2.5-vl-7b", 8'292'166'656},
                                         SizedPreset{"qwen2-vl-2b", 2'208'985'600}),
                         [](const auto& instance) { return parity::TinyPreset::make_test_name(instance.param.name); });

class PublishedInternVl : public testing::TestWithParam<SizedPreset> {
 protected:
  PublishedInternVl() { write_preset_config(GetParam().name, folder_.path()); }
  const parity::TemporaryFolder folder_;
};

TEST_P(PublishedInternVl, HasNumberOfParametersOfItsParts) {
  const auto model = build_model(folder_.path(), at::kMeta, at::kBFloat16);
  EXPECT_EQ(model->parameters().count_elements(), GetParam().parameters);
}

TEST_P(PublishedInternVl, SplitsImagesIntoTiles) {
  // 4 x 3 cells and the global image, between <img> and </img>.
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

/// Returns the parameters of InternViT-300M-448px or -6B and a projector to a text model of this
/// width.
constexpr int64_t count_with_300m_tower(int64_t width) {
  return 304'012'288 + 2 * 4096 + (4096 + 1) * width + (width + 1) * width;
}
constexpr int64_t count_with_6b_tower(int64_t width) {
  return 5'536'496'000 + 2 * 12800 + (12800 + 1) * width + (width + 1) * width;
}
/// Returns the parameters of Qwen2.5's or Qwen3's text model: `parameters` without embeddings, an
/// embedding of 151,674 or 151,936 rows and a separate output of the same size.
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
    [](const auto& instance) { return parity::TinyPreset::make_test_name(instance.param.name); });

class PublishedQwen3 : public testing::TestWithParam<SizedPreset> {};

TEST_P(PublishedQwen3, HasPublishedSizeAndImageResolution) {
  const parity::TemporaryFolder folder;
  write_preset_config(GetParam().name, folder.path());
  const auto model = build_model(folder.path(), at::kMeta, at::kBFloat16);
  EXPECT_EQ(model->parameters().count_elements(), GetParam().parameters);
  const auto shape = compute_sample_shape(folder.path(), {.images = 2, .image_width = 1000, .image_height = 750});
  const data::PatchGrid grid{1, 46, 62};  // 992 x 736 pixels, the nearest multiples of 32
  EXPECT_EQ(shape.patch_grids, (std::vector<data::PatchGrid>{grid, grid}));
  EXPECT_EQ(shape.tokens, 2 * (23 * 31 + 2) + 256);
}

INSTANTIATE_TEST_SUITE_P(
    Hub, PublishedQwen3,
    testing::Values(SizedPreset{"qwen3-vl-2b", 2'127'532'032}, SizedPreset{"qwen3-vl-4b", 4'437'815'808},
                    SizedPreset{"qwen3-vl-8b", 8'767'123'696}, SizedPreset{"qwen3-vl-32b", 33'357'390'064},
                    // Without the weights of multi-token prediction.
                    SizedPreset{"qwen3.5-0.8b", 852'985'920}, SizedPreset{"qwen3.5-2b", 2'213'241'664},
                    SizedPreset{"qwen3.5-4b", 4'539'265'536}, SizedPreset{"qwen3.5-9b", 9'409'813'744},
                    SizedPreset{"qwen3.5-27b", 27'356'728'560}),
    [](const auto& instance) { return parity::TinyPreset::make_test_name(instance.param.name); });

class PublishedGemma : public testing::TestWithParam<SizedPreset> {};

TEST_P(PublishedGemma, HasPublishedSizeAndOneTilePerImage) {
  const parity::TemporaryFolder folder;
  write_preset_config(GetParam().name, folder.path());
  const auto model = build_model(folder.path(), at::kMeta, at::kBFloat16);
  EXPECT_EQ(model->parameters().count_elements(), GetParam().parameters);
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
                         [](const auto& instance) { return parity::TinyPreset::make_test_name(instance.param.name); });

class PublishedGemma4 : public testing::TestWithParam<SizedPreset> {};

TEST_P(PublishedGemma4, HasTransformersSizeAndTokens) {
  const parity::TemporaryFolder folder;
  write_preset_config(GetParam().name, folder.path());
  const auto model = build_model(folder.path(), at::kMeta, at::kBFloat16);
  EXPECT_EQ(model->parameters().count_elements(), GetParam().parameters);
  const auto shape = compute_sample_shape(folder.path(), {.images = 2, .image_width = 1000, .image_height = 300});
  EXPECT_EQ(shape.image_tokens, 2 * 30 * 9);  // at most 280 cells of 48 x 48 pixels
  EXPECT_EQ(shape.tokens, 2 * (30 * 9 + 2) + 256);
}

// The numbers of transformers' models of these configurations. Their parameters do not include the
// scalar of each block, and the tower's std_bias and std_scale.
INSTANTIATE_TEST_SUITE_P(Hub, PublishedGemma4,
                         testing::Values(SizedPreset{"gemma-4-12b", 11'957'272'576 + 48},
                                         SizedPreset{"gemma-4-31b", 31'273'086'512 + 60 + 2 * 1152},
                                         SizedPreset{"gemma-4-e2b", 4'797'113'600 + 483},
                                         SizedPreset{"gemma-4-e4b", 7'632'344'064 + 490}),
                         [](const auto& instance) { return parity::TinyPreset::make_test_name(instance.param.name); });

class PublishedTextModel : public testing::TestWithParam<SizedPreset> {};

TEST_P(PublishedTextModel, HasPublishedSizeAndNoImages) {
  const parity::TemporaryFolder folder;
  write_preset_config(GetParam().name, folder.path());
  const auto model = build_model(folder.path(), at::kMeta, at::kBFloat16);
  EXPECT_EQ(model->parameters().count_elements(), GetParam().parameters);
  EXPECT_EQ(model->num_vision_blocks(), 0);
  const auto shape = compute_sample_shape(folder.path(), {.text_tokens = 2000});
  EXPECT_EQ(shape.tokens, 2000);
  EXPECT_EQ(shape.num_media(), 0);
}

INSTANTIATE_TEST_SUITE_P(Hub, PublishedTextModel,
                         testing::Values(SizedPreset{"qwen3-0.6b", 596'049'920},
                                         SizedPreset{"smollm2-135m", 134'515'008}),
                         [](const auto& instance) { return parity::TinyPreset::make_test_name(instance.param.name); });
}  // namespace
}  // namespace vlmtrain::models
