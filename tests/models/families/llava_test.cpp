#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "models/llava/model.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

struct LlavaMistake {
  const char* name;
  const char* parity_case;
  const char* file;
  void (*edit)(nlohmann::json& config);
  std::vector<std::string> expected_messages;
};

/// Sets the path of the tower: the original layout's case has it in a sibling folder, which a copy
/// lacks.
void set_tower_path(const CheckpointCopy& copy) {
  copy.edit("config.json", [&](auto& config) {
    if (!config.contains("mm_vision_tower")) return;
    config["mm_vision_tower"] = (copy.origin().checkpoint() / "../tower").string();
  });
}

class LlavaRefuses : public testing::TestWithParam<LlavaMistake> {};

TEST_P(LlavaRefuses, InvalidFiles) {
  const CheckpointCopy copy(GetParam().parity_case);
  set_tower_path(copy);
  copy.edit(GetParam().file, GetParam().edit);
  const auto message = get_error_message([&] {
    build_model(copy.path(), at::kMeta, at::kFloat);
    load_processor(copy.path(), {});
  });
  for (const auto& expected : GetParam().expected_messages) EXPECT_THAT(message, HasSubstr(expected));
}

INSTANTIATE_TEST_SUITE_P(
    Mistakes, LlavaRefuses,
    testing::Values(LlavaMistake{"Tower",
                                 "llava_clip_llama",
                                 "config.json",
                                 [](auto& c) { c["vision_config"]["model_type"] = "pixtral"; },
                                 {"config.json", "pixtral", "siglip_vision_model"}},
                    LlavaMistake{"TextModel",
                                 "llava_clip_llama",
                                 "config.json",
                                 [](auto& c) { c["text_config"]["model_type"] = "gemma"; },
                                 {"config.json", "gemma", "qwen2"}},
                    LlavaMistake{"FeatureLayer",
                                 "llava_clip_llama",
                                 "config.json",
                                 [](auto& c) { c["vision_feature_layer"] = -5; },
                                 {"vision_feature_layer -5", "3 blocks"}},
                    LlavaMistake{"SeveralFeatureLayers",
                                 "llava_clip_llama",
                                 "config.json",
                                 [](auto& c) {
                                   c["vision_feature_layer"] = {-2, -1};
                                 },
                                 {"vision_feature_layer", "2 layers"}},
                    LlavaMistake{"Strategy",
                                 "llava_clip_llama",
                                 "config.json",
                                 [](auto& c) { c["vision_feature_select_strategy"] = "cls"; },
                                 {"vision_feature_select_strategy cls", "full"}},
                    LlavaMistake{"ImageToken",
                                 "llava_clip_llama",
                                 "config.json",
                                 [](auto& c) { c["image_token_index"] = 3; },
                                 {"image_token_index is 3", "tokenizer.json"}},
                    LlavaMistake{"ImageTokenBeyondTheVocabulary",
                                 "llava_clip_llama",
                                 "config.json",
                                 [](auto& c) { c["image_token_index"] = 470; },
                                 {"image_token_index 470", "470"}},
                    LlavaMistake{"ImageSize",
                                 "llava_clip_llama",
                                 "preprocessor_config.json",
                                 [](auto& c) { c["crop_size"] = 48; },
                                 {"preprocessor_config.json", "48 x 48", "40 x 40"}},
                    LlavaMistake{"TokensOfAnImage",
                                 "llava_clip_llama",
                                 "processor_config.json",
                                 [](auto& c) { c["patch_size"] = 10; },
                                 {"processor_config.json", "patch_size 10", "16 tokens", "produces 25"}},
                    LlavaMistake{"SlidingWindow",
                                 "llava_clip_mistral",
                                 "config.json",
                                 [](auto& c) { c["text_config"]["sliding_window"] = 0; },
                                 {"sliding_window is 0"}},
                    LlavaMistake{"SlidingWindowOfQwen2",
                                 "llava_siglip_qwen2",
                                 "config.json",
                                 [](auto& c) {
                                   c["text_config"]["use_sliding_window"] = true;
                                   c["text_config"]["max_window_layers"] = 1;
                                 },
                                 {"use_sliding_window"}},
                    LlavaMistake{"Projector",
                                 "llava_original",
                                 "config.json",
                                 [](auto& c) { c["mm_projector_type"] = "linear"; },
                                 {"mm_projector_type linear", "mlp2x_gelu"}},
                    LlavaMistake{"AspectRatio",
                                 "llava_original",
                                 "config.json",
                                 [](auto& c) { c["image_aspect_ratio"] = "anyres"; },
                                 {"image_aspect_ratio anyres", "pad"}},
                    LlavaMistake{"ImageStart",
                                 "llava_original",
                                 "config.json",
                                 [](auto& c) { c["mm_use_im_start_end"] = true; },
                                 {"mm_use_im_start_end"}},
                    LlavaMistake{"UnknownTower",
                                 "llava_original",
                                 "config.json",
                                 [](auto& c) { c["mm_vision_tower"] = "someone/else"; },
                                 {"mm_vision_tower someone/else", "openai/clip-vit-large-patch14-336"}},
                    LlavaMistake{"TowerOfOtherWidth",
                                 "llava_original",
                                 "config.json",
                                 [](auto& c) { c["mm_vision_tower"] = "openai/clip-vit-large-patch14-336"; },
                                 {"mm_hidden_size is 32", "1024"}}),
    [](const auto& instance) { return instance.param.name; });

TEST(LlavaOriginal, MissingTowerIsNamed) {
  const CheckpointCopy copy("llava_original");
  const auto tower = io::read_json(copy.origin().checkpoint() / "../tower/config.json").at("vision_config");
  copy.edit("config.json", [&](auto& c) {
    c["mm_vision_tower"] = "openai/clip-vit-large-patch14-336";
    c["vision_config"] = tower;
  });
  const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
  EXPECT_THAT(
      get_error_message([&] { load_weights(*model, copy.path()); }),
      AllOf(HasSubstr("openai/clip-vit-large-patch14-336"), HasSubstr("mm_vision_tower"), HasSubstr("config.json")));
}

TEST(LlavaOriginal, SavedCheckpointContainsTower) {
  const parity::Case reference("llava_original");
  const auto model = reference.load_model();
  const parity::TemporaryFolder saved_folder;
  save_checkpoint(*model, reference.checkpoint(), saved_folder.path(), io::kDefaultMaxShardBytes);
  const auto key_map = io::read_checkpoint_tensor_names(saved_folder.path());
  EXPECT_TRUE(std::ranges::any_of(key_map, [](const std::string& name) {
    return name == "model.vision_tower.vision_tower.vision_model.pre_layrnorm.weight";
  }));
  const auto loaded = build_model(saved_folder.path(), at::kCPU, at::kFloat);
  load_weights(*loaded, saved_folder.path());
  for (size_t i = 0; i < model->parameters().all().size(); ++i) {
    EXPECT_TRUE(at::equal(model->parameters().all()[i].tensor, loaded->parameters().all()[i].tensor));
  }
}

TEST(LlavaOriginal, LegacyModelTypeIsDetectedByItsKeys) {
  const CheckpointCopy copy("llava_original");
  set_tower_path(copy);
  copy.edit("config.json", [](auto& c) { c["model_type"] = "llava"; });
  const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
  load_weights(*model, copy.path());
  EXPECT_EQ(model->parameters().count_elements(),
            parity::Case("llava_original").load_model()->parameters().count_elements());
}

TEST(Llava, UnusedWeightsAreNeverTrained) {
  const auto model = build_model(parity::Case("llava_siglip_qwen2").checkpoint(), at::kMeta, at::kFloat);
  EXPECT_TRUE(freeze_parts(*model, {}));
  int64_t num_unused = 0;
  for (const auto& parameter : model->parameters().all()) {
    const bool is_unused = parameter.component == nn::Component::kUnused;
    EXPECT_EQ(parameter.tensor.requires_grad(), !is_unused) << parameter.name;
    num_unused += is_unused;
  }
  EXPECT_EQ(num_unused, 13);  // the last norm and the pooling head
  EXPECT_EQ(model->num_vision_blocks(), 2);
}

TEST(Llava, TiedOutputsAndComputedTablesAreSkipped) {
  const CheckpointCopy copy("llava_siglip_qwen2");
  const auto model = build_model(copy.path(), at::kCPU, at::kFloat);
  const auto file = copy.path() / "model.safetensors";
  io::NamedTensors tensors_and_names;
  {
    const io::SafetensorsFile file_tensors(file);
    for (const auto& name : file_tensors.names())
      tensors_and_names.emplace_back(name, file_tensors.tensor(name).clone());
  }
  const auto embedding = std::ranges::find_if(
      tensors_and_names, [](const auto& tensor) { return tensor.first.ends_with("embed_tokens.weight"); });
  tensors_and_names.emplace_back("language_model.lm_head.weight", embedding->second.clone());
  tensors_and_names.emplace_back("language_model.model.layers.0.self_attn.rotary_emb.inv_freq",
                                 tensors_and_names.front().second);
  io::write_safetensors(file, tensors_and_names);
  load_weights(*model, copy.path());
  tensors_and_names.emplace_back("language_model.model.extra.weight", tensors_and_names.front().second);
  io::write_safetensors(file, tensors_and_names);
  EXPECT_THAT(get_error_message([&] { load_weights(*model, copy.path()); }),
              HasSubstr("unexpected: language_model.model.extra.weight"));
}

TEST(Llava, TokenizerModelAloneIsRefusedWithAHint) {
  const CheckpointCopy copy("llava_clip_llama");
  std::filesystem::rename(copy.path() / "tokenizer.json", copy.path() / "tokenizer.model");
  EXPECT_THAT(get_error_message([&] { load_processor(copy.path(), {}); }),
              AllOf(HasSubstr("tokenizer.model"), HasSubstr("save_pretrained")));
}

class LlavaCase : public testing::TestWithParam<const char*> {
 protected:
  const parity::Case case_{GetParam()};
};

TEST_P(LlavaCase, SyntheticSampleHasShapeOfActualSample) {
  const auto processor = case_.load_processor();
  io::Record record = case_.records().at(0);
  record.images.assign(2, record.images.at(0));
  const std::string question = "How many?";
  record.turns.at(0).text = question;
  const auto compute_actual_shape = [&](size_t images) {
    io::Record image_record = record;
    image_record.images.resize(images);
    for (size_t i = 0; i < images; ++i)
      image_record.turns[0].text = std::string(io::kImagePlaceholder) + "\n" + question;
    if (images == 2)
      image_record.turns[0].text = std::string(io::kImagePlaceholder) + "\n" + image_record.turns[0].text;
    return data::get_sample_shape(processor->process_headers(image_record, 0));
  };
  const auto one_image = compute_actual_shape(1), two_images = compute_actual_shape(2);
  const auto synthetic = compute_sample_shape(case_.checkpoint(), {.images = 1});
  EXPECT_EQ(synthetic.image_tokens, one_image.image_tokens);
  EXPECT_EQ(synthetic.tokens, 256 + one_image.image_tokens);
  EXPECT_EQ(synthetic.pixel_rows, 1);
  EXPECT_EQ(synthetic.row.height, one_image.row.height);
  EXPECT_EQ(synthetic.row.width, one_image.row.width);
  EXPECT_EQ(two_images.image_tokens, 2 * one_image.image_tokens);
}

TEST_P(LlavaCase, MaxPixelsBelowImageSizeIsRefused) {
  auto settings = case_.processor_settings();
  settings.image_max_pixels = 30 * 30;
  EXPECT_THAT(get_error_message([&] { load_processor(case_.checkpoint(), settings); }, ExitCode::kUsage),
              HasSubstr("data.image_max_pixels is 900"));
  EXPECT_THAT(
      get_error_message([&] { compute_sample_shape(case_.checkpoint(), {.image_max_pixels = 900}); }, ExitCode::kUsage),
      HasSubstr("data.image_max_pixels is 900"));
}

INSTANTIATE_TEST_SUITE_P(Cases, LlavaCase,
                         testing::Values("llava_clip_llama", "llava_siglip_qwen2", "llava_clip_mistral",
                                         "llava_original"),
                         [](const auto& instance) { return instance.param; });

TEST(LlavaWeightNames, FollowTheCheckpoint) {
  const std::string parameters[] = {"model.vision_tower.pre_layrnorm.weight",
                                    "model.multi_modal_projector.linear_1.bias", "model.language_model.norm.weight",
                                    "lm_head.weight"};
  const std::vector<std::vector<std::string>> checkpoints{
      {"vision_tower.vision_model.pre_layrnorm.weight", "multi_modal_projector.linear_1.bias",
       "language_model.model.norm.weight", "language_model.lm_head.weight"},
      {"model.vision_tower.vision_model.pre_layrnorm.weight", "model.multi_modal_projector.linear_1.bias",
       "model.language_model.norm.weight", "lm_head.weight"},
      {"vision_tower.pre_layrnorm.weight", "multi_modal_projector.linear_1.bias", "language_model.model.norm.weight",
       "language_model.lm_head.weight"},
      {"model.vision_tower.pre_layrnorm.weight", "model.multi_modal_projector.linear_1.bias",
       "model.language_model.norm.weight", "lm_head.weight"}};
  const auto map_names = [&](const std::vector<std::string>& tensor_names) {
    const auto key_map = llava::make_key_map(llava::CheckpointFormat::kHuggingFace, tensor_names);
    std::vector<std::string> mapped_names;
    for (const auto& parameter : parameters) mapped_names.push_back(key_map.to_checkpoint_key(parameter));
    return mapped_names;
  };
  for (const auto& checkpoint : checkpoints) EXPECT_EQ(map_names(checkpoint), checkpoint);
  EXPECT_EQ(map_names({}), checkpoints.front());
}

}  // namespace
}  // namespace vlmtrain::models
