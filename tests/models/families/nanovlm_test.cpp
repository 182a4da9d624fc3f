#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/reference_files.h"
#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "models/nanovlm/processor.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/media_preview.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::models::nanovlm {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAreArray;

/// Returns an image of tests/parity/reference/modules/images.py.
at::Tensor make_image(int64_t height, int64_t width) {
  at::Tensor image = at::empty({3, height, width}, at::kByte);
  auto values = image.accessor<uint8_t, 3>();
  for (int64_t channel = 0; channel < 3; ++channel) {
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        values[channel][y][x] = static_cast<uint8_t>((7 * x + 13 * y + 29 * channel + x * y % 31) % 256);
      }
    }
  }
  return image;
}

Config make_config(const nlohmann::json& json) {
  Config config;
  config.vision.image_size = json.at("vit_img_size");
  if (json.contains("max_img_size")) config.max_image_side = json["max_img_size"].get<int64_t>();
  config.resize_to_max_side = json.value("resize_to_max_side_len", false);
  if (json.contains("vlm_extra_tokens")) config.extra_tokens = json["vlm_extra_tokens"];
  return config;
}

TEST(NanovlmImageProcessor, MatchesTilesOfNanovlm) {
  const auto file = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/models/data/nanovlm_images.json";
  const auto reference = io::read_json(file);
  EXPECT_EQ(reference.at("cases").size(), 60U);
  for (const auto& entry : reference.at("cases")) {
    SCOPED_TRACE(entry.dump());
    const ImageProcessor processor(make_config(reference.at("configs").at(entry.at("config").get<std::string>())));
    const image::ImageSize size{entry.at("height"), entry.at("width")};
    const TileGrid grid = processor.compute_grid(size);
    EXPECT_EQ((std::vector{grid.rows, grid.columns}), entry.at("grid"));
    EXPECT_EQ(grid.num_tiles(), entry.at("tiles"));
    const at::Tensor tiles = processor.process(make_image(size.height, size.width));
    EXPECT_EQ(tiles.size(0), entry.at("tiles"));
    EXPECT_EQ(compute_crc32(tiles), entry.at("crc"));
  }
}

TEST(NanovlmImageProcessor, OnlyTheGlobalImageIsNotBitwiseEqual) {
  const parity::Case reference("nanovlm_tiles");
  const auto expected = reference.expected();
  const image::Normalization to_unit_range{{0, 0, 0}, {1, 1, 1}, 1.0 / 255.0};
  int64_t num_compared = 0;
  const auto samples = reference.samples();
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto prefix = fmt::format("sample.{}.unrounded_", i);
    if (!expected.contains(prefix + "tiles")) continue;
    const at::Tensor tiles = samples[i].pixel_values.index_select(0, expected.tensor(prefix + "tiles"));
    const at::Tensor difference = image::normalize_pixels(tiles, to_unit_range) - expected.tensor(prefix + "pixels");
    EXPECT_LE(difference.abs().max().item<float>(), 0.50001 / 255);
    num_compared += tiles.size(0);
  }
  EXPECT_EQ(num_compared, 3);  // one for each split image
}

TEST(NanovlmImageProcessor, RespectsMaxPixels) {
  Config config = make_config({{"vit_img_size", 16}, {"max_img_size", 64}, {"resize_to_max_side_len", true}});
  const auto count_cells = [&](int64_t max_pixels) {
    return ImageProcessor(config, max_pixels).compute_grid({48, 64}).num_cells();
  };
  EXPECT_EQ(count_cells(12 * 256), 12);
  EXPECT_EQ(count_cells(12 * 256 - 1), 9);
  EXPECT_EQ(count_cells(256), 1);
  EXPECT_THAT(get_error_message([&] { count_cells(255); }, ExitCode::kUsage),
              AllOf(HasSubstr("data.image_max_pixels"), HasSubstr("256 pixels")));
}

struct NanovlmMistake {
  const char* name;
  const char* parity_case;
  void (*edit)(nlohmann::json& config);
  std::vector<std::string> expected_messages;
};

class NanovlmRefuses : public testing::TestWithParam<NanovlmMistake> {};

TEST_P(NanovlmRefuses, InvalidConfig) {
  const CheckpointCopy copy(GetParam().parity_case);
  copy.edit("config.json", GetParam().edit);
  const auto message = get_error_message([&] {
    load_weights(*build_model(copy.path(), at::kCPU, at::kFloat), copy.path());
    load_processor(copy.path(), {});
  });
  for (const auto& expected : GetParam().expected_messages) EXPECT_THAT(message, HasSubstr(expected));
}

// An edited copy has sorted keys and therefore other ids of its extra tokens.
INSTANTIATE_TEST_SUITE_P(
    Mistakes, NanovlmRefuses,
    testing::Values(
        NanovlmMistake{"Tower",
                       "nanovlm_tiles",
                       [](auto& config) { config["vit_model_type"] = "facebook/dinov2-base"; },
                       {"config.json", "vit_model_type facebook/dinov2-base", "SigLIP"}},
        NanovlmMistake{"TextModel",
                       "nanovlm_tiles",
                       [](auto& config) { config["lm_model_type"] = "Qwen/Qwen3-0.6B"; },
                       {"lm_model_type Qwen/Qwen3-0.6B", "Llama"}},
        NanovlmMistake{"ClassToken",
                       "nanovlm_tiles",
                       [](auto& config) { config["vit_cls_flag"] = true; },
                       {"vit_cls_flag", "false"}},
        NanovlmMistake{
            "Dropout", "nanovlm_tiles", [](auto& config) { config["lm_dropout"] = 0.1; }, {"lm_dropout is 0.1"}},
        NanovlmMistake{"UnknownKey",
                       "nanovlm_tiles",
                       [](auto& config) { config["vit_architecture"] = "x"; },
                       {"vit_architecture"}},
        NanovlmMistake{"MissingKey",
                       "nanovlm_tiles",
                       [](auto& config) { config.erase("lm_n_heads"); },
                       {"\"lm_n_heads\" is missing"}},
        NanovlmMistake{
            "HeadSize", "nanovlm_tiles", [](auto& config) { config["lm_n_heads"] = 5; }, {"lm_hidden_dim 32", "5"}},
        NanovlmMistake{"PixelShuffle",
                       "nanovlm_tiles",
                       [](auto& config) { config["mp_pixel_shuffle_factor"] = 3; },
                       {"4 patches", "mp_pixel_shuffle_factor 3"}},
        NanovlmMistake{"ImageTokens",
                       "nanovlm_tiles",
                       [](auto& config) { config["mp_image_token_length"] = 64; },
                       {"mp_image_token_length is 64", "4 tokens"}},
        NanovlmMistake{"ImageTokensOfTheFirstRelease",
                       "nanovlm_images_first",
                       [](auto& config) { config["IMAGE_TOKEN_LENGTH"] = 49; },
                       {"IMAGE_TOKEN_LENGTH is 49", "4 tokens"}},
        NanovlmMistake{"LongestSide",
                       "nanovlm_tiles",
                       [](auto& config) { config["max_img_size"] = 100; },
                       {"max_img_size 100", "32"}},
        NanovlmMistake{"CellsWithoutToken",
                       "nanovlm_tiles",
                       [](auto& config) { config["max_img_size"] = 128; },
                       {"max_img_size 128", "4 x 4 tiles", "r1c4"}},
        NanovlmMistake{"NoImageToken",
                       "nanovlm_tiles",
                       [](auto& config) { config["vlm_extra_tokens"].erase("image_token"); },
                       {"vlm_extra_tokens has no image_token"}},
        NanovlmMistake{"NoExtraTokens",
                       "nanovlm_tiles",
                       [](auto& config) { config.erase("vlm_extra_tokens"); },
                       {"max_img_size", "vlm_extra_tokens"}},
        NanovlmMistake{"ChatTemplate",
                       "nanovlm_tiles",
                       [](auto& config) { config["lm_chat_template"] = "{{ messages }}"; },
                       {"lm_chat_template", "writes no token after an answer", "data.chat_template"}},
        NanovlmMistake{"SyntaxOfChatTemplate",
                       "nanovlm_tiles",
                       [](auto& config) { config["lm_chat_template"] = "{% for message in messages %}"; },
                       {"config.json (lm_chat_template):1"}},
        NanovlmMistake{"ShapesOfWeights",
                       "nanovlm_tiles",
                       [](auto& config) { config["vit_inter_dim"] = 48; },
                       {"vision_encoder.blocks.0.mlp.fc1.weight has shape [64, 32], but the config requires [48, 32]"}},
        NanovlmMistake{"MissingWeights",
                       "nanovlm_tiles",
                       [](auto& config) { config["lm_n_blocks"] = 3; },
                       {"missing: decoder.blocks.2.attn.out_proj.weight"}},
        NanovlmMistake{"Vocabulary",
                       "nanovlm_untied",
                       [](auto& config) { config["lm_vocab_size"] = 384; },
                       {"decoder.head.weight", "[384, 32]"}}),
    [](const auto& instance) { return instance.param.name; });

TEST(Nanovlm, MissingTokenizerIsRefusedWithAHint) {
  const CheckpointCopy copy("nanovlm_tiles");
  std::filesystem::remove(copy.path() / "tokenizer.json");
  EXPECT_THAT(get_error_message([&] { load_processor(copy.path(), {}); }),
              AllOf(HasSubstr(copy.path().string()), HasSubstr("download the tokenizer.json of"),
                    HasSubstr("HuggingFaceTB/SmolLM2-360M-Instruct")));
}

TEST(Nanovlm, ExtraTokensHaveTheirIdsInTheOrderOfTheConfig) {
  const auto processor = parity::Case("nanovlm_tiles").load_processor();
  EXPECT_EQ(processor->tokenizer().vocab_size(), 390 + 11);
  EXPECT_EQ(processor->tokenizer().token_to_id("<|image|>"), 390);
  EXPECT_EQ(processor->tokenizer().token_to_id("<|global_image|>"), 391);
  EXPECT_EQ(processor->tokenizer().token_to_id("<row_1_col_1>"), 392);
  EXPECT_EQ(processor->tokenizer().token_to_id("<row_3_col_3>"), 400);
  EXPECT_TRUE(processor->tokenizer().is_special(400));
  const auto untied_processor = parity::Case("nanovlm_untied").load_processor();
  EXPECT_EQ(untied_processor->tokenizer().vocab_size(), 385);
  EXPECT_EQ(untied_processor->tokenizer().token_to_id("<|image|>"), 380);
}

TEST(Nanovlm, ChatTemplateCanBeOverridden) {
  const CheckpointCopy copy("nanovlm_tiles");
  copy.edit("config.json", [](auto& config) { config.erase("lm_chat_template"); });
  ProcessorSettings settings;
  settings.chat_template = "chatml";
  EXPECT_EQ(load_processor(copy.path(), settings)->end_of_turn_id(), 2);
  const auto first_release = parity::Case("nanovlm_images_first").load_processor();
  EXPECT_EQ(first_release->end_of_turn_id(), 0);  // <|endoftext|>
}

/// The release of June 2025.
TEST(Nanovlm, ImageIsOneTileWithoutLongestSide) {
  const CheckpointCopy copy("nanovlm_tiles");
  copy.edit("config.json", [](auto& config) { config.erase("max_img_size"); });
  const auto processor = load_processor(copy.path(), copy.origin().processor_settings());
  const auto sample = data::make_sample(*processor, copy.origin().records().at(1), 1);
  EXPECT_EQ(sample.pixel_values.sizes(), (at::IntArrayRef{1, 3, 32, 32}));
  ASSERT_EQ(sample.image_token_positions.size(), 4U);
  const int64_t first_position = sample.image_token_positions.front();
  EXPECT_EQ(sample.image_token_positions.back(), first_position + 3);
  EXPECT_EQ(
      processor->tokenizer().decode(std::vector(sample.token_ids.begin(), sample.token_ids.begin() + first_position),
                                    /*skip_special_tokens=*/false),
      "<|im_start|>user\n");
  const auto shape = compute_sample_shape(copy.path(), {.images = 1, .text_tokens = 99});
  EXPECT_EQ(shape.tokens, 99 + 4);
  EXPECT_EQ(shape.pixel_rows, 1);
}

TEST(Nanovlm, SampleLengthIsLimitedByPositions) {
  const CheckpointCopy copy("nanovlm_tiles");
  copy.edit("config.json", [](auto& config) { config["lm_max_position_embeddings"] = 40; });
  const auto processor = load_processor(copy.path(), copy.origin().processor_settings());
  try {
    data::make_sample(*processor, copy.origin().records().at(1), 1);
    FAIL() << "no error";
  } catch (const data::SampleError& error) {
    EXPECT_EQ(error.reason(), "too long");
    EXPECT_THAT(error.what(), HasSubstr("lm_max_position_embeddings (40)"));
  }
}

class NanovlmCheckpoint : public testing::TestWithParam<const char*> {
 protected:
  const parity::Case case_{GetParam()};
  const parity::TemporaryFolder saved_;
  io::CheckpointTensors save_and_read(at::ScalarType dtype) const {
    save_checkpoint(*case_.load_model(dtype), case_.checkpoint(), saved_.path(), io::kDefaultMaxShardBytes);
    return io::CheckpointTensors(saved_.path());
  }
};

TEST_P(NanovlmCheckpoint, IsSavedBitwiseEqual) {
  const auto actual = save_and_read(at::kFloat);
  const io::CheckpointTensors expected(case_.checkpoint());
  EXPECT_THAT(actual.names(), UnorderedElementsAreArray(expected.names()));
  for (const auto& name : expected.names()) EXPECT_TRUE(at::equal(actual.tensor(name), expected.tensor(name))) << name;
}

TEST_P(NanovlmCheckpoint, KeepsRotaryFrequenciesInFp32AndTheConfigsKeys) {
  const auto actual = save_and_read(at::kBFloat16);
  EXPECT_EQ(actual.tensor("MP.proj.weight").scalar_type(), at::kBFloat16);
  const auto name = "decoder.rotary_embd.inv_freq";
  EXPECT_TRUE(at::equal(actual.tensor(name), io::CheckpointTensors(case_.checkpoint()).tensor(name)));
  EXPECT_EQ(io::read_json(saved_.path() / "config.json"), io::read_json(case_.checkpoint() / "config.json"));
}

TEST_P(NanovlmCheckpoint, SyntheticSampleHasSizeOfActualSample) {
  const CheckpointCopy copy(GetParam());
  const auto sample = copy.origin().samples().at(std::string(GetParam()) == "nanovlm_tiles" ? 1 : 0);
  const int64_t text = sample.tokens() - std::ssize(sample.image_token_positions);
  const auto shape =
      compute_sample_shape(copy.path(), {.images = 1, .image_width = 70, .image_height = 53, .text_tokens = 99});
  EXPECT_EQ(shape.image_tokens, std::ssize(sample.image_token_positions));
  EXPECT_EQ(shape.pixel_rows, sample.pixel_values.size(0));
  const int64_t markers = std::string(GetParam()) == "nanovlm_images_first" ? 0 : shape.pixel_rows;
  EXPECT_EQ(shape.tokens - 99, shape.image_tokens + markers);
  EXPECT_GT(text, markers);
}

INSTANTIATE_TEST_SUITE_P(Cases, NanovlmCheckpoint,
                         testing::Values("nanovlm_images_first", "nanovlm_tiles", "nanovlm_untied"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(Nanovlm, TiedOutputMayBeStoredTwice) {
  const CheckpointCopy copy("nanovlm_tiles");
  const io::CheckpointTensors tensors(copy.path());
  io::NamedTensors tensors_and_copy;
  for (const auto& name : tensors.names()) tensors_and_copy.emplace_back(name, tensors.tensor(name).clone());
  tensors_and_copy.emplace_back("decoder.token_embedding.weight", tensors.tensor("decoder.head.weight").clone());
  io::write_safetensors(copy.path() / "model.safetensors", tensors_and_copy);
  const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
  load_weights(*model, copy.path());
  EXPECT_TRUE(at::equal(model->output_weight(), tensors_and_copy.back().second));
  EXPECT_EQ(model->get_checkpoint_tensor_name("decoder.token_embedding.weight"), "decoder.token_embedding.weight");
}

TEST(NanoVlmProcessor, PreviewsShowTheTiles) {
  const parity::Case reference("nanovlm_tiles");
  const auto processor = reference.load_processor();
  int64_t overviews = 0;
  for (const auto& record : reference.records()) {
    const auto sample = processor->process(record, 0);
    int64_t row = 0;
    for (const MediaPreview& preview : processor->preview_media(record, sample)) {
      overviews += preview.is_overview ? 1 : 0;
      const int64_t side = preview.tile_height;
      for (int64_t top = 0; top < preview.pixels.size(1); top += side) {
        for (int64_t left = 0; left < preview.pixels.size(2); left += side) {
          EXPECT_TRUE(at::equal(preview.pixels.narrow(1, top, side).narrow(2, left, side), sample.pixel_values[row++]));
        }
      }
    }
    EXPECT_EQ(row, sample.pixel_values.defined() ? sample.pixel_values.size(0) : 0) << record.id;
  }
  EXPECT_GT(overviews, 0);
}

TEST(Registry, ConfigWithoutModelTypeIsRefusedWithAHint) {
  const CheckpointCopy copy("nanovlm_tiles");
  copy.edit("config.json", [](auto& config) { config.erase("vit_hidden_dim"); });
  EXPECT_THAT(get_error_message([&] { build_model(copy.path(), at::kMeta, at::kFloat); }),
              AllOf(HasSubstr("\"model_type\" is missing"), HasSubstr("nanoVLM"), HasSubstr("vit_hidden_dim")));
}

}  // namespace
}  // namespace vlmtrain::models::nanovlm
