#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "parity/tiny_preset.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models {
namespace {

using parity::TinyPreset;
using testing::AllOf;
using testing::HasSubstr;

/// Intact files of another kind of checkpoint: the error names the mismatch before any computation.
class ForeignFiles : public testing::TestWithParam<std::string> {
 protected:
  template <class Function>
  static std::string get_error(const Function& function) {
    try {
      function();
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData) << error.what();
      return error.what();
    }
    return "no error";
  }
  std::string get_processor_error() const {
    return get_error([&] { load_processor(preset_.checkpoint(), {}); });
  }

  const TinyPreset preset_{GetParam()};
  const std::filesystem::path config_ = preset_.checkpoint() / "config.json";
};

TEST_P(ForeignFiles, MixtureOfExpertsIsRefused) {
  auto config = io::read_json(config_);
  auto& text = config.contains("text_config") ? config["text_config"] : config;
  text["num_local_experts"] = 8;
  io::write_file(config_, config.dump());
  const std::string error = get_error([&] { build_model(preset_.checkpoint(), at::kMeta, at::kFloat); });
  EXPECT_THAT(error, AllOf(HasSubstr("config.json"), HasSubstr("num_local_experts")));
}

TEST_P(ForeignFiles, AttentionDropoutIsRefused) {
  const auto original = io::read_json(config_);
  for (const char* section : {"text_config", "vision_config"}) {
    auto config = original;
    (config.contains(section) ? config[section] : config)["attention_dropout"] = 0.1;
    io::write_file(config_, config.dump());
    const std::string error = get_error([&] { build_model(preset_.checkpoint(), at::kMeta, at::kFloat); });
    EXPECT_THAT(error, AllOf(HasSubstr("config.json"), HasSubstr("attention_dropout"))) << section;
  }
}

TEST_P(ForeignFiles, ProcessorOfAnotherFamilyIsRefused) {
  const auto file = preset_.checkpoint() / "preprocessor_config.json";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "the family has no such file";
  const auto read_processor_type = [](const std::filesystem::path& path) {
    auto type = io::read_json(path).value("image_processor_type", std::string());
    // The fast implementation of the same processor.
    if (type.ends_with("Fast")) type.resize(type.size() - std::string_view("Fast").size());
    return type;
  };
  const std::string own_type = read_processor_type(file);
  int64_t num_others = 0;
  for (const auto& name : TinyPreset::names()) {
    const TinyPreset other_preset(name);
    const auto other_file = other_preset.checkpoint() / "preprocessor_config.json";
    // SmolVLM has Idefics3's model, and its processor except for videos.
    const bool is_same_model = other_preset.family().build == preset_.family().build;
    if (!std::filesystem::exists(other_file) || read_processor_type(other_file) == own_type || is_same_model) continue;
    ++num_others;
    std::filesystem::copy_file(other_file, file, std::filesystem::copy_options::overwrite_existing);
    EXPECT_THAT(get_processor_error(),
                AllOf(HasSubstr("preprocessor_config.json"), HasSubstr(read_processor_type(other_file))))
        << name;
  }
  EXPECT_GT(num_others, 0);
}

TEST_P(ForeignFiles, VocabularyLargerThanEmbeddingsIsRefusedWithAHint) {
  const auto file = preset_.checkpoint() / "tokenizer.json";
  const auto model = build_model(preset_.checkpoint(), at::kMeta, at::kFloat);
  const int64_t rows = model->output_weight().size(0);
  std::string content = io::read_file(file);
  auto num_tokens = text::Tokenizer::from_json(content, file.string()).vocab_size();
  for (; num_tokens <= rows; ++num_tokens) {
    content = text::add_token(content, "<foreign_" + std::to_string(num_tokens) + ">", file.string()).json;
  }
  io::write_file(file, content);
  EXPECT_THAT(get_processor_error(),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("vocab_size"), HasSubstr("model.resize_embeddings")));
}

INSTANTIATE_TEST_SUITE_P(Presets, ForeignFiles, testing::ValuesIn(TinyPreset::names()),
                         [](const auto& instance) { return TinyPreset::make_test_name(instance.param); });

}  // namespace
}  // namespace vlmtrain::models
