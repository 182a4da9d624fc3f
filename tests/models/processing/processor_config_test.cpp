#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/llava/processor.h"
#include "models/processing/preprocessor_config.h"
#include "parity/tiny_preset.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

/// transformers writes as many tokens as processor_config.json says, so another number than the
/// model's is an error.
TEST(ProcessorConfig, OtherTokenCountsAreRefused) {
  const std::pair<const char*, const char*> keys[]{{"smolvlm-tiny", "image_seq_len"},
                                                   {"smolvlm2-tiny", "image_seq_len"},
                                                   {"gemma-3-tiny", "image_seq_length"},
                                                   {"internvl3-tiny", "image_seq_length"}};
  for (const auto& [preset, key] : keys) {
    const parity::TinyPreset model(preset);
    const auto file = model.checkpoint() / "processor_config.json";
    json config = std::filesystem::exists(file) ? io::read_json(file) : json::object();
    config[key] = 7;
    io::write_file(file, config.dump());
    EXPECT_THAT(get_error_message([&] { load_processor(model.checkpoint(), {}); }),
                AllOf(HasSubstr("processor_config.json"), HasSubstr(key), HasSubstr("7")))
        << preset;
  }
}

/// Older files have a number under `size`; results of transformers 5.24.
TEST(ProcessorConfig, SizeMayBeANumber) {
  const auto read_settings = [](const char* type, const json& changes) {
    json config{{"image_processor_type", type}, {"size", 336}};
    config.update(changes);
    return llava::read_image_processor_settings(PreprocessorConfig(config, "preprocessor_config.json"));
  };
  EXPECT_EQ(read_settings("CLIPImageProcessor", json::object()).shortest_edge, 336);
  EXPECT_EQ(read_settings("CLIPImageProcessor", {{"default_to_square", false}}).shortest_edge, 336);
  const auto square_settings = read_settings("CLIPImageProcessor", {{"default_to_square", true}});
  EXPECT_FALSE(square_settings.shortest_edge);
  EXPECT_EQ(square_settings.resized_size, (image::ImageSize{336, 336}));
  EXPECT_EQ(read_settings("SiglipImageProcessor", json::object()).shortest_edge, 336);
  EXPECT_EQ(read_settings("SiglipImageProcessor", {{"default_to_square", true}}).resized_size,
            (image::ImageSize{336, 336}));
}

}  // namespace
}  // namespace vlmtrain::models
