#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "models/internvl/config.h"
#include "models/internvl/image_processor.h"
#include "models/internvl/image_text.h"
#include "models/internvl/video_processor.h"
#include "models/internvl/weight_names.h"
#include "parity/case.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/hypothetical_sample.h"

namespace vlmtrain::models::internvl {
namespace {

using io::message_of;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// What transformers computes (tests/parity/reference/make_internvl_layouts.py).
const json& reference() {
  static const json content =
      io::read_json(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/models/data/internvl.json");
  return content;
}

constexpr int64_t kSide = 448;

ImageProcessor processor_of(int64_t min_tiles, int64_t max_tiles, std::optional<int64_t> max_pixels = std::nullopt) {
  const TileSettings tile{.side = kSide, .filter = image::Filter::kBicubic, .normalization = {}};
  return {{.tile = tile, .min_tiles = min_tiles, .max_tiles = max_tiles}, max_pixels};
}

TEST(InternVlTiles, HaveTheGridsOfTransformers) {
  for (const json& entry : reference().at("grids")) {
    const auto processor = processor_of(entry.at(2), entry.at(3));
    const TileGrid wanted{.rows = entry.at(5), .columns = entry.at(4)};
    EXPECT_EQ(processor.grid_for({entry.at(0), entry.at(1)}, std::nullopt), wanted) << entry;
  }
}

TEST(InternVlTiles, KeepToTheMostPixels) {
  constexpr image::ImageSize kPicture{.height = 768, .width = 1024};
  EXPECT_EQ(processor_of(1, 12).grid_for(kPicture, std::nullopt).cells(), 12);
  EXPECT_EQ(processor_of(1, 12, 7 * kSide * kSide).grid_for(kPicture, std::nullopt).cells(), 6);
  EXPECT_EQ(processor_of(1, 12).grid_for(kPicture, 7 * kSide * kSide).cells(), 6);
  EXPECT_EQ(processor_of(2, 12).grid_for(kPicture, kSide * kSide).tiles(), 1) << "however few cells there may be";
  EXPECT_THAT(message_of([] { processor_of(1, 12, kSide * kSide - 1); }, ExitCode::kUsage),
              AllOf(HasSubstr("data.image_max_pixels"), HasSubstr("200704")));
}

TEST(InternVlTiles, NeverBecomeFewerWithMorePixels) {
  // What samples shrink by (processing/shrink.cpp) searches on the strength of it.
  const auto processor = processor_of(1, 40);
  for (const json& entry : reference().at("grids")) {
    int64_t last = 0;
    for (int64_t most = 1; most <= 40; ++most) {
      const int64_t cells = processor.grid_for({entry.at(0), entry.at(1)}, most * kSide * kSide).cells();
      EXPECT_GE(cells, last) << entry << " " << most;
      last = cells;
    }
  }
}

TEST(InternVlVideos, HaveTheFramesOfTransformers) {
  for (const json& entry : reference().at("frames")) {
    const json& video = entry.at("video");
    VideoSettings settings{.tile = processor_of(1, 1).tile(), .initial_shift = video.at(4)};
    if (!video.at(2).is_null()) settings.wanted_fps = video.at(2);
    if (!video.at(3).is_null()) settings.num_frames = video.at(3);
    const image::VideoInfo info{.frames = video.at(0), .fps = video.at(1), .size = {10, 10}};
    EXPECT_EQ(settings.sample(info), entry.at("indices")) << video;
  }
}

TEST(InternVlVideos, AreTakenAsAWholeWhereTheyHaveFewerFrames) {
  VideoSettings settings{.tile = processor_of(1, 1).tile(), .num_frames = 8};
  const image::VideoInfo info{.frames = 3, .fps = 30, .size = {10, 10}};
  EXPECT_THAT(settings.sample(info), ElementsAre(0, 1, 2));
  settings.most_frames = 2;
  EXPECT_THAT(settings.sample(info), ElementsAre(0, 2)) << "the middles of two halves, 0.75 and 2.25";
  settings.num_frames.reset();
  EXPECT_THAT(settings.sample({.frames = 3, .fps = 0, .size = {10, 10}}), ElementsAre(0, 2)) << "as many as are wanted";
  settings.wanted_fps = 0.01;
  EXPECT_THAT(settings.sample(info), ElementsAre(1)) << "at least one";
}

TEST(InternVlText, HasAMarkAroundTilesAndALineForAFrame) {
  EXPECT_EQ(image_text(2, 2), "<img><IMG_CONTEXT><IMG_CONTEXT><IMG_CONTEXT><IMG_CONTEXT></img>");
  EXPECT_EQ(video_text(2, 1), "Frame1: <img><IMG_CONTEXT></img>\nFrame2: <img><IMG_CONTEXT></img>");
}

TEST(InternVlWeightNames, AreTheCheckpoints) {
  const std::string tower = "model.vision_tower.encoder.layer.0.lambda_1", text = "model.language_model.norm.weight";
  const std::vector<std::string> modules{"model.vision_tower.x", "model.multi_modal_projector.x",
                                         "model.language_model.x", "lm_head.weight"};
  EXPECT_EQ(weight_names(modules).spelled(tower), tower);
  EXPECT_EQ(weight_names(modules).spelled("lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(weight_names({}).spelled(tower), "vision_tower.encoder.layer.0.lambda_1") << "a new one: the published";
  EXPECT_EQ(weight_names({}).spelled(text), "language_model.model.norm.weight");
  EXPECT_EQ(weight_names({}).spelled("lm_head.weight"), "language_model.lm_head.weight");
}

/// A copy of the checkpoint of a case, whose files are changed.
class InternVlCheckpoint : public testing::Test {
 protected:
  std::string refusal_of_model() {
    return message_of([&] { build_model(copy_.path(), at::kMeta, at::kFloat); });
  }
  std::string refusal_of_processor() {
    return message_of([&] { load_processor(copy_.path(), {}); });
  }
  Config config() const { return Config::from_json(io::read_json(copy_.path() / "config.json"), copy_.path()); }

  CheckpointCopy copy_{"internvl3_tiles"};
};

TEST_F(InternVlCheckpoint, OfAMixtureOfExpertsIsRefusedByName) {
  for (const char* type : {"qwen3_moe", "gpt_oss"}) {
    copy_.edit("config.json", [&](json& config) { config["text_config"]["model_type"] = type; });
    EXPECT_THAT(refusal_of_model(), AllOf(HasSubstr("config.json (text_config)"), HasSubstr(type),
                                          HasSubstr("mixture of experts"), HasSubstr("InternVL3_5-8B-HF")));
  }
  copy_.edit("config.json", [&](json& config) { config["text_config"]["model_type"] = "phi3"; });
  EXPECT_THAT(refusal_of_model(), AllOf(HasSubstr("phi3"), HasSubstr("qwen2, qwen3 and llama")));
}

TEST_F(InternVlCheckpoint, InTheLayoutOfItsOwnCodeIsRefusedWithTheRemedy) {
  copy_.edit("config.json", [](json& config) { config["model_type"] = "internvl_chat"; });
  EXPECT_THAT(refusal_of_model(), AllOf(HasSubstr("internvl_chat"), HasSubstr("OpenGVLab/InternVL3-8B-hf")));
}

TEST_F(InternVlCheckpoint, WithAnImageTokenOutsideTheVocabularyIsRefused) {
  copy_.edit("config.json", [](json& config) { config["image_token_id"] = 420; });
  EXPECT_THAT(refusal_of_model(), AllOf(HasSubstr("image_token_id 420"), HasSubstr("vocabulary of 420")));
}

TEST_F(InternVlCheckpoint, WithWhatIsNotFollowedIsRefusedByKey) {
  const auto refused = [&](const char* section, const char* key, const json& value) {
    const std::string before = io::read_file(copy_.path() / "config.json");
    copy_.edit("config.json", [&](json& config) { (*section == 0 ? config : config[section])[key] = value; });
    EXPECT_THAT(refusal_of_model(), AllOf(HasSubstr("config.json"), HasSubstr(key))) << value;
    io::write_file(copy_.path() / "config.json", before);
  };
  refused("", "vision_feature_layer", -2);
  refused("", "vision_feature_select_strategy", "full");
  refused("", "downsample_ratio", 0.125);  // of 4 patches a side
  refused("", "downsample_ratio", 0.4);
  refused("vision_config", "norm_type", "batch_norm");
  refused("vision_config", "image_size", json::array({28, 56}));
  refused("vision_config", "use_mask_token", true);
  refused("vision_config", "use_absolute_position_embeddings", false);
  refused("vision_config", "hidden_dropout_prob", 0.1);
  refused("vision_config", "num_attention_heads", 5);
  refused("text_config", "layer_types", json::array({"full_attention", "sliding_attention"}));
}

TEST_F(InternVlCheckpoint, WithAProcessorFileOfAnotherFamilyIsRefused) {
  copy_.edit("preprocessor_config.json", [](json& file) { file["image_processor_type"] = "Qwen2VLImageProcessor"; });
  EXPECT_THAT(refusal_of_processor(), AllOf(HasSubstr("preprocessor_config.json"), HasSubstr("Qwen2VLImageProcessor"),
                                            HasSubstr("GotOcr2ImageProcessor")));
}

TEST_F(InternVlCheckpoint, WithTilesOfAnotherSizeIsRefused) {
  copy_.edit("preprocessor_config.json", [](json& file) { file["size"] = {{"height", 448}, {"width", 448}}; });
  EXPECT_THAT(refusal_of_processor(), AllOf(HasSubstr("448"), HasSubstr("image_size"), HasSubstr("28")));
  copy_.edit("preprocessor_config.json", [](json& file) { file["size"] = {{"height", 28}, {"width", 56}}; });
  EXPECT_THAT(refusal_of_processor(), AllOf(HasSubstr("size is"), HasSubstr("equal")));
  copy_.edit("preprocessor_config.json", [](json& file) { file["size"] = {{"height", 28}, {"width", 28}}; });
  copy_.edit("processor_config.json", [](json& file) { file["image_seq_length"] = 256; });
  EXPECT_THAT(refusal_of_processor(), AllOf(HasSubstr("image_seq_length is 256"), HasSubstr("4 features")));
}

TEST_F(InternVlCheckpoint, MayHaveOneTokenMoreThanRowsWhichIsTheMarkOfVideos) {
  const auto processor = load_processor(copy_.path(), {});
  EXPECT_EQ(processor->tokenizer().vocab_size(), config().text.vocab_size + 1);
  EXPECT_EQ(processor->tokenizer().token_to_id(text::kVideoMark), config().text.vocab_size);
  // A mark of no video would be a token without an embedding.
  io::Record record;
  record.turns = {{text::Role::kUser, "What does <video> mean?"}, {text::Role::kAssistant, "Nothing."}};
  EXPECT_THROW(data::make_sample(*processor, record, 0), data::SampleError);
  copy_.edit("tokenizer.json", [](json& file) { file["added_tokens"].back()["content"] = "<film>"; });
  EXPECT_THAT(refusal_of_processor(), AllOf(HasSubstr("421 tokens"), HasSubstr("vocab_size is 420")));
}

TEST_F(InternVlCheckpoint, TiesEmbeddingsAsItsWeightsDoWhereTheConfigDoesNotSay) {
  // As published: nothing at the top, and text_config says something else than the weights.
  copy_.edit("config.json", [](json& config) { config["text_config"]["tie_word_embeddings"] = true; });
  EXPECT_FALSE(config().text.tie_word_embeddings);
  copy_.edit("config.json", [](json& config) { config["tie_word_embeddings"] = true; });
  EXPECT_TRUE(config().text.tie_word_embeddings);
  copy_.edit("config.json", [](json& config) { config.erase("tie_word_embeddings"); });
  std::filesystem::remove(copy_.path() / "model.safetensors");
  EXPECT_TRUE(config().text.tie_word_embeddings) << "without weights text_config counts";
}

TEST_F(InternVlCheckpoint, OfDynamicRopeTakesNoLongerSamplesThanItsPositions) {
  EXPECT_TRUE(context_length_of(copy_.path()).refuses_longer);
  copy_.edit("config.json", [](json& config) { config["text_config"]["max_position_embeddings"] = 60; });
  ProcessorSettings settings;
  settings.on_too_long = data::LongSamplePolicy::kFail;
  const auto processor = load_processor(copy_.path(), settings);
  io::Record record;
  record.turns = {{text::Role::kUser, "Is there a fracture?"}, {text::Role::kAssistant, std::string(100, 'x')}};
  record.id = "long";
  EXPECT_EQ(processor->most_positions(), 60);
  EXPECT_THAT(message_of([&] { data::make_sample(*processor, record, 0); }),
              AllOf(HasSubstr("sample long has "), HasSubstr("max_position_embeddings 60"), HasSubstr("dynamic")));
  copy_.edit("config.json", [](json& config) { config["text_config"].erase("rope_scaling"); });
  EXPECT_FALSE(context_length_of(copy_.path()).refuses_longer);
  EXPECT_GT(load_processor(copy_.path(), settings)->most_positions(), int64_t{1} << 40);
}

TEST_F(InternVlCheckpoint, ShrinksPicturesOfALongSample) {
  const parity::Case origin("internvl3_tiles");
  const auto records = origin.records();
  const auto whole = data::make_sample(*load_processor(copy_.path(), {}), records.at(2), 2);
  ProcessorSettings settings;
  settings.max_length = whole.tokens() - 1;
  const auto shrunk = data::make_sample(*load_processor(copy_.path(), settings), records.at(2), 2);
  ASSERT_TRUE(shrunk.shrunk.has_value());
  EXPECT_LE(shrunk.tokens(), settings.max_length);
  EXPECT_LT(shrunk.pixel_values.size(0), whole.pixel_values.size(0));
  EXPECT_EQ(std::ssize(shrunk.image_token_positions), shrunk.pixel_values.size(0) * 4);
}

TEST_F(InternVlCheckpoint, ShowsAPictureWholeAgainAndItsOverview) {
  const parity::Case origin("internvl3_tiles");
  const auto processor = origin.load_processor();
  const auto record = origin.records().at(0);
  const auto sample = data::make_sample(*processor, record, 0);
  const auto pictures = processor->seen(record, sample);
  ASSERT_EQ(pictures.size(), 2U);
  EXPECT_EQ(pictures[0].pixels.sizes(), (std::vector<int64_t>{3, 56, 56})) << "2 x 2 cells of 28 pixels";
  EXPECT_TRUE(pictures[1].is_overview);
}

}  // namespace
}  // namespace vlmtrain::models::internvl
