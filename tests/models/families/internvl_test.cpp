#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "models/internvl/family.h"
#include "models/internvl/model.h"
#include "models/internvl/processor.h"
#include "parity/case.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/media_preview.h"
#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::models::internvl {
namespace {

using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// Returns results of transformers (tests/parity/reference/modules/internvl_layouts.py).
const json& read_reference() {
  static const json content =
      io::read_json(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/models/data/internvl.json");
  return content;
}

constexpr int64_t kSide = 448;

ImageProcessor make_processor(int64_t min_tiles, int64_t max_tiles, std::optional<int64_t> max_pixels = std::nullopt) {
  const TileSettings tile{.side = kSide, .filter = image::ResampleFilter::kBicubic, .normalization = {}};
  return {{.tile = tile, .min_cells = min_tiles, .max_cells = max_tiles}, max_pixels};
}

TEST(InternVlTiles, MatchGridsOfTransformers) {
  for (const json& entry : read_reference().at("grids")) {
    const auto processor = make_processor(entry.at(2), entry.at(3));
    const TileGrid expected{.rows = entry.at(5), .columns = entry.at(4)};
    EXPECT_EQ(processor.compute_grid({entry.at(0), entry.at(1)}, std::nullopt), expected) << entry;
  }
}

TEST(InternVlTiles, RespectMaxPixels) {
  constexpr image::ImageSize kImageSize{.height = 768, .width = 1024};
  EXPECT_EQ(make_processor(1, 12).compute_grid(kImageSize, std::nullopt).num_cells(), 12);
  EXPECT_EQ(make_processor(1, 12, 7 * kSide * kSide).compute_grid(kImageSize, std::nullopt).num_cells(), 6);
  EXPECT_EQ(make_processor(1, 12).compute_grid(kImageSize, 7 * kSide * kSide).num_cells(), 6);
  EXPECT_EQ(make_processor(2, 12).compute_grid(kImageSize, kSide * kSide).num_tiles(), 1) << "for any number of cells";
  EXPECT_THAT(get_error_message([] { make_processor(1, 12, kSide * kSide - 1); }, ExitCode::kUsage),
              AllOf(HasSubstr("data.image_max_pixels"), HasSubstr("200704")));
}

TEST(InternVlTiles, NeverDecreaseWithMorePixels) {
  // The search in conversation_processor_limits.cpp relies on this.
  const auto processor = make_processor(1, 40);
  for (const json& entry : read_reference().at("grids")) {
    int64_t previous_cells = 0;
    for (int64_t max_cells = 1; max_cells <= 40; ++max_cells) {
      const int64_t cells = processor.compute_grid({entry.at(0), entry.at(1)}, max_cells * kSide * kSide).num_cells();
      EXPECT_GE(cells, previous_cells) << entry << " " << max_cells;
      previous_cells = cells;
    }
  }
}

TEST(InternVlVideos, MatchFramesOfTransformers) {
  for (const json& entry : read_reference().at("frames")) {
    const json& video = entry.at("video");
    VideoSettings settings{.tile = make_processor(1, 1).tile_settings(), .initial_shift = video.at(4)};
    if (!video.at(2).is_null()) settings.sampling_fps = video.at(2);
    if (!video.at(3).is_null()) settings.num_frames = video.at(3);
    const image::VideoInfo info{.num_frames = video.at(0), .fps = video.at(1), .size = {10, 10}};
    EXPECT_EQ(settings.sample_frame_indices(info), entry.at("indices")) << video;
  }
}

TEST(InternVlVideos, UseAllFramesOfShortVideos) {
  VideoSettings settings{.tile = make_processor(1, 1).tile_settings(), .num_frames = 8};
  const image::VideoInfo info{.num_frames = 3, .fps = 30, .size = {10, 10}};
  EXPECT_THAT(settings.sample_frame_indices(info), ElementsAre(0, 1, 2));
  settings.max_frames = 2;
  EXPECT_THAT(settings.sample_frame_indices(info), ElementsAre(0, 2)) << "the middles of two halves, 0.75 and 2.25";
  settings.num_frames.reset();
  EXPECT_THAT(settings.sample_frame_indices({.num_frames = 3, .fps = 0, .size = {10, 10}}), ElementsAre(0, 2))
      << "the requested number";
  settings.sampling_fps = 0.01;
  EXPECT_THAT(settings.sample_frame_indices(info), ElementsAre(1)) << "at least one";
}

TEST(InternVlText, HasMarkersAroundTilesAndALinePerFrame) {
  EXPECT_EQ(format_image_text(2, 2), "<img><IMG_CONTEXT><IMG_CONTEXT><IMG_CONTEXT><IMG_CONTEXT></img>");
  EXPECT_EQ(format_video_text(2, 1), "Frame1: <img><IMG_CONTEXT></img>\nFrame2: <img><IMG_CONTEXT></img>");
}

TEST(InternVlWeightNames, FollowTheCheckpoint) {
  const std::string tower = "model.vision_tower.encoder.layer.0.lambda_1", text = "model.language_model.norm.weight";
  const std::vector<std::string> modules{"model.vision_tower.x", "model.multi_modal_projector.x",
                                         "model.language_model.x", "lm_head.weight"};
  EXPECT_EQ(make_key_map(modules).to_checkpoint_key(tower), tower);
  EXPECT_EQ(make_key_map(modules).to_checkpoint_key("lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(make_key_map({}).to_checkpoint_key(tower), "vision_tower.encoder.layer.0.lambda_1")
      << "a new checkpoint gets the published value";
  EXPECT_EQ(make_key_map({}).to_checkpoint_key(text), "language_model.model.norm.weight");
  EXPECT_EQ(make_key_map({}).to_checkpoint_key("lm_head.weight"), "language_model.lm_head.weight");
}

/// Copy of a case's checkpoint whose files a test edits.
class InternVlCheckpoint : public testing::Test {
 protected:
  std::string get_model_error() {
    return get_error_message([&] { build_model(copy_.path(), at::kMeta, at::kFloat); });
  }
  std::string get_processor_error() {
    return get_error_message([&] { load_processor(copy_.path(), {}); });
  }
  Config config() const { return Config::from_json(io::read_json(copy_.path() / "config.json"), copy_.path()); }

  CheckpointCopy copy_{"internvl3_tiles"};
};

TEST_F(InternVlCheckpoint, MixtureOfExpertsIsRefused) {
  for (const char* type : {"qwen3_moe", "gpt_oss"}) {
    copy_.edit("config.json", [&](json& config) { config["text_config"]["model_type"] = type; });
    EXPECT_THAT(get_model_error(), AllOf(HasSubstr("config.json (text_config)"), HasSubstr(type),
                                         HasSubstr("mixture of experts"), HasSubstr("InternVL3_5-8B-HF")));
  }
  copy_.edit("config.json", [&](json& config) { config["text_config"]["model_type"] = "phi3"; });
  EXPECT_THAT(get_model_error(), AllOf(HasSubstr("phi3"), HasSubstr("qwen2, qwen3, llama")));
}

TEST_F(InternVlCheckpoint, OriginalLayoutIsRefusedWithAHint) {
  copy_.edit("config.json", [](json& config) { config["model_type"] = "internvl_chat"; });
  EXPECT_THAT(get_model_error(), AllOf(HasSubstr("internvl_chat"), HasSubstr("OpenGVLab/InternVL3-8B-hf")));
}

TEST_F(InternVlCheckpoint, ImageTokenOutsideTheVocabularyIsRefused) {
  copy_.edit("config.json", [](json& config) { config["image_token_id"] = 420; });
  EXPECT_THAT(get_model_error(), AllOf(HasSubstr("image_token_id 420"), HasSubstr("vocabulary of 420")));
}

TEST_F(InternVlCheckpoint, UnsupportedKeysAreRefused) {
  const auto expect_refused = [&](const char* section, const char* key, const json& value) {
    const std::string config_text = io::read_file(copy_.path() / "config.json");
    copy_.edit("config.json", [&](json& config) { (*section == 0 ? config : config[section])[key] = value; });
    EXPECT_THAT(get_model_error(), AllOf(HasSubstr("config.json"), HasSubstr(key))) << value;
    io::write_file(copy_.path() / "config.json", config_text);
  };
  expect_refused("", "vision_feature_layer", -2);
  expect_refused("", "vision_feature_select_strategy", "full");
  expect_refused("", "downsample_ratio", 0.125);  // of 4 patches per side
  expect_refused("", "downsample_ratio", 0.4);
  expect_refused("vision_config", "norm_type", "batch_norm");
  expect_refused("vision_config", "image_size", json::array({28, 56}));
  expect_refused("vision_config", "use_mask_token", true);
  expect_refused("vision_config", "use_absolute_position_embeddings", false);
  expect_refused("vision_config", "hidden_dropout_prob", 0.1);
  expect_refused("vision_config", "num_attention_heads", 5);
  expect_refused("text_config", "layer_types", json::array({"full_attention", "sliding_attention"}));
}

TEST_F(InternVlCheckpoint, ProcessorOfAnotherFamilyIsRefused) {
  copy_.edit("preprocessor_config.json", [](json& file) { file["image_processor_type"] = "Qwen2VLImageProcessor"; });
  EXPECT_THAT(get_processor_error(), AllOf(HasSubstr("preprocessor_config.json"), HasSubstr("Qwen2VLImageProcessor"),
                                           HasSubstr("GotOcr2ImageProcessor")));
}

TEST_F(InternVlCheckpoint, TilesOfAnotherSizeAreRefused) {
  copy_.edit("preprocessor_config.json", [](json& file) { file["size"] = {{"height", 448}, {"width", 448}}; });
  EXPECT_THAT(get_processor_error(), AllOf(HasSubstr("448"), HasSubstr("image_size"), HasSubstr("28")));
  copy_.edit("preprocessor_config.json", [](json& file) { file["size"] = {{"height", 28}, {"width", 56}}; });
  EXPECT_THAT(get_processor_error(), AllOf(HasSubstr("size is"), HasSubstr("equal")));
  copy_.edit("preprocessor_config.json", [](json& file) { file["size"] = {{"height", 28}, {"width", 28}}; });
  copy_.edit("processor_config.json", [](json& file) { file["image_seq_length"] = 256; });
  EXPECT_THAT(get_processor_error(), AllOf(HasSubstr("image_seq_length is 256"), HasSubstr("4 features")));
}

TEST_F(InternVlCheckpoint, VideoTokenMayExceedTheVocabulary) {
  const auto processor = load_processor(copy_.path(), {});
  EXPECT_EQ(processor->tokenizer().vocab_size(), config().text.vocab_size + 1);
  EXPECT_EQ(processor->tokenizer().token_to_id(text::kVideoPlaceholder), config().text.vocab_size);
  // A video placeholder without a video would be a token without an embedding.
  io::Record record;
  record.id = "film";
  record.turns = {{text::Role::kUser, "What does <video> mean?"}, {text::Role::kAssistant, "Nothing."}};
  EXPECT_THAT(get_error_message([&] { data::make_sample(*processor, record, 0); }),
              HasSubstr("sample film: the text has the token <video>"));
  copy_.edit("tokenizer.json", [](json& file) { file["added_tokens"].back()["content"] = "<film>"; });
  EXPECT_THAT(get_processor_error(), AllOf(HasSubstr("421 tokens"), HasSubstr("vocab_size 420")));
}

TEST_F(InternVlCheckpoint, TiesEmbeddingsLikeItsWeightsByDefault) {
  // As published: no top-level key, and text_config contradicts the weights.
  copy_.edit("config.json", [](json& config) { config["text_config"]["tie_word_embeddings"] = true; });
  EXPECT_FALSE(config().text.tie_word_embeddings);
  copy_.edit("config.json", [](json& config) { config["tie_word_embeddings"] = true; });
  EXPECT_TRUE(config().text.tie_word_embeddings);
  copy_.edit("config.json", [](json& config) { config.erase("tie_word_embeddings"); });
  std::filesystem::remove(copy_.path() / "model.safetensors");
  EXPECT_TRUE(config().text.tie_word_embeddings) << "without weights text_config is used";
}

TEST_F(InternVlCheckpoint, DynamicRopeLimitsSampleLength) {
  EXPECT_TRUE(read_context_length(copy_.path()).is_hard_limit);
  copy_.edit("config.json", [](json& config) { config["text_config"]["max_position_embeddings"] = 60; });
  ProcessorSettings settings;
  settings.on_too_long = data::LongSamplePolicy::kFail;
  const auto processor = load_processor(copy_.path(), settings);
  io::Record record;
  record.turns = {{text::Role::kUser, "Is there a fracture?"}, {text::Role::kAssistant, std::string(100, 'x')}};
  record.id = "long";
  EXPECT_EQ(processor->max_positions(), 60);
  EXPECT_THAT(get_error_message([&] { data::make_sample(*processor, record, 0); }),
              AllOf(HasSubstr("sample long has "), HasSubstr("max_position_embeddings 60"), HasSubstr("dynamic")));
  copy_.edit("config.json", [](json& config) { config["text_config"].erase("rope_scaling"); });
  EXPECT_FALSE(read_context_length(copy_.path()).is_hard_limit);
  EXPECT_GT(load_processor(copy_.path(), settings)->max_positions(), int64_t{1} << 40);
}

TEST_F(InternVlCheckpoint, ShrinksImagesOfALongSample) {
  const parity::Case origin("internvl3_tiles");
  const auto records = origin.records();
  const auto full_sample = data::make_sample(*load_processor(copy_.path(), {}), records.at(2), 2);
  ProcessorSettings settings;
  settings.max_length = full_sample.tokens() - 1;
  const auto shrunk = data::make_sample(*load_processor(copy_.path(), settings), records.at(2), 2);
  ASSERT_TRUE(shrunk.shrink_info.has_value());
  EXPECT_LE(shrunk.tokens(), settings.max_length);
  EXPECT_LT(shrunk.pixel_values.size(0), full_sample.pixel_values.size(0));
  EXPECT_EQ(std::ssize(shrunk.image_token_positions), shrunk.pixel_values.size(0) * 4);
}

TEST_F(InternVlCheckpoint, PreviewsAreFullImageAndOverview) {
  const parity::Case origin("internvl3_tiles");
  const auto processor = origin.load_processor();
  const auto record = origin.records().at(0);
  const auto sample = data::make_sample(*processor, record, 0);
  const auto previews = processor->preview_media(record, sample);
  ASSERT_EQ(previews.size(), 2U);
  EXPECT_EQ(previews[0].pixels.sizes(), (std::vector<int64_t>{3, 56, 56})) << "2 x 2 cells of 28 pixels";
  EXPECT_TRUE(previews[1].is_overview);
}

}  // namespace
}  // namespace vlmtrain::models::internvl
