#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/adapter_folder.h"
#include "models/checkpoints/auxiliary_files.h"
#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Key;
using testing::Not;

/// Returns the id that transformers gives to the next added token.
int64_t find_next_id(const nlohmann::json& tokenizer) {
  int64_t next_id = 0;
  for (const auto& [token, id] : tokenizer.at("model").at("vocab").items())
    next_id = std::max(next_id, id.get<int64_t>() + 1);
  for (const auto& token : tokenizer.at("added_tokens")) next_id = std::max(next_id, token.at("id").get<int64_t>() + 1);
  return next_id;
}

/// Adds a token to tokenizer.json.
void add_token(nlohmann::json& tokenizer, int64_t id, const std::string& content) {
  tokenizer["added_tokens"].push_back({{"id", id},
                                       {"content", content},
                                       {"special", true},
                                       {"normalized", false},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false}});
}

/// Adapter whose tokenizer, image processor and generation config differ from its base's.
class AdapterFiles : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    adapter_.edit("tokenizer.json", [&](auto& content) {
      box_id_ = find_next_id(content);
      add_token(content, box_id_, "<box>");
    });
    adapter_.edit("generation_config.json", [&](auto& content) { content["eos_token_id"] = {1, box_id_}; });
  }

  ProcessorSettings make_settings() const {
    ProcessorSettings settings;
    settings.chat_template_folder = adapter_.path();
    return settings;
  }
  std::unique_ptr<Processor> processor() const { return load_processor(adapter_.base(), make_settings()); }

  int64_t box_id_ = 0;
  const AdapterFolder adapter_{GetParam()};
};

TEST_P(AdapterFiles, OverrideFilesOfBase) {
  const auto adapted_processor = processor();
  EXPECT_EQ(adapted_processor->tokenizer().token_to_id("<box>"), box_id_);
  EXPECT_EQ(load_processor(adapter_.path(), {})->tokenizer().token_to_id("<box>"), box_id_);
  EXPECT_THAT(load_eos_token_ids(adapter_.base(), *adapted_processor, adapter_.path()), Contains(box_id_));
  EXPECT_THAT(load_eos_token_ids(adapter_.path(), *adapted_processor), Contains(box_id_));
  EXPECT_THAT(load_eos_token_ids(adapter_.base(), *adapted_processor), Not(Contains(box_id_)));
  EXPECT_NE(compute_sample_shape_key(adapter_.base(), make_settings()), compute_sample_shape_key(adapter_.base(), {}));
  // The files written by a resumed run and by a merge.
  const BaseWeights base_weights(adapter_.base(), adapter_.path());
  EXPECT_THAT(base_weights.files().at("tokenizer.json"), HasSubstr("<box>"));
  EXPECT_THAT(base_weights.files().at("generation_config.json"), HasSubstr(std::to_string(box_id_)));
  const auto merged = adapter_.merge();
  EXPECT_EQ(load_processor(merged, {})->tokenizer().token_to_id("<box>"), box_id_);
  EXPECT_THAT(io::read_file(merged / "generation_config.json"), HasSubstr(std::to_string(box_id_)));
}

TEST_P(AdapterFiles, DamagedFileIsNamedWithItsPath) {
  io::write_file(adapter_.path() / "tokenizer.json", "{");
  EXPECT_THAT(get_error_message([&] { processor(); }), HasSubstr((adapter_.path() / "tokenizer.json").string()));
}

INSTANTIATE_TEST_SUITE_P(Families, AdapterFiles,
                         testing::Values("qwen2_5_vl_video", "llava_siglip_qwen2", "llava_clip_llama"),
                         [](const auto& member) { return std::string(member.param); });

class AuxiliaryFiles : public testing::Test {
 protected:
  std::map<std::string, std::string> merge_files(const std::map<std::string, std::string>& base,
                                                 const std::map<std::string, std::string>& adapter) const {
    for (const auto& [name, files] : {std::pair{"base", &base}, std::pair{"adapter", &adapter}}) {
      const auto folder = folder_.path() / name;
      std::filesystem::remove_all(folder);
      std::filesystem::create_directories(folder);
      for (const auto& [file, content] : *files) io::write_file(folder / file, content);
    }
    return merge_auxiliary_files(folder_.path() / "base", folder_.path() / "adapter");
  }

  const parity::TemporaryFolder folder_;
};

TEST_F(AuxiliaryFiles, TokenizerFilesComeFromOneFolder) {
  const auto files = merge_files({{"tokenizer.json", "1"}, {"added_tokens.json", "1"}, {"merges.txt", "1"}},
                                 {{"tokenizer.json", "2"}, {"tokenizer_config.json", "2"}});
  EXPECT_THAT(files, AllOf(Contains(std::pair{"tokenizer.json", "2"}), Contains(Key("tokenizer_config.json")),
                           Not(Contains(Key("added_tokens.json"))), Not(Contains(Key("merges.txt")))));
}

TEST_F(AuxiliaryFiles, ImageProcessorComesFromEitherFile) {
  const std::string processor_config = R"({"image_processor": {"a": 1}, "video_processor": {"b": 1}})";
  EXPECT_THAT(merge_files({{"processor_config.json", processor_config}}, {{"preprocessor_config.json", "{}"}}),
              AllOf(Contains(Key("preprocessor_config.json")), Not(Contains(Key("processor_config.json")))));
  EXPECT_THAT(merge_files({{"preprocessor_config.json", "{}"}, {"video_preprocessor_config.json", "{}"}},
                          {{"processor_config.json", processor_config}}),
              testing::ElementsAre(std::pair{"processor_config.json", processor_config}));
  EXPECT_THAT(
      merge_files({{"preprocessor_config.json", "{}"}, {"processor_config.json", R"({"image_seq_len": 4})"}},
                  {{"preprocessor_config.json", R"({"a": 1})"}}),
      AllOf(Contains(std::pair{"preprocessor_config.json", R"({"a": 1})"}), Contains(Key("processor_config.json"))));
}

TEST_F(AuxiliaryFiles, OtherFilesAreSelectedSeparately) {
  EXPECT_THAT(merge_files({{"chat_template.json", "{}"}, {"generation_config.json", "1"}, {"tokenizer.json", "1"}},
                          {{"chat_template.jinja", "x"}, {"volume_settings.json", "{}"}}),
              testing::ElementsAre(std::pair{"chat_template.jinja", "x"}, std::pair{"generation_config.json", "1"},
                                   std::pair{"tokenizer.json", "1"}, std::pair{"volume_settings.json", "{}"}));
}

/// Adapter trained after the vocabulary had grown: PEFT stores embedding and output in full.
class AddedVocabularyRows : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kNewRows = 8;

  void SetUp() override {
    auto tensors = adapter_.tensors();
    int64_t rows = 0;
    for (auto& [name, tensor] : tensors) {
      if (!name.ends_with("embed_tokens.weight") && !name.ends_with("lm_head.weight")) continue;
      rows = tensor.size(0);
      tensor = at::cat({tensor, tensor.narrow(0, 0, kNewRows)});
    }
    adapter_.write(tensors);
    first_new_id_ = rows;
    adapter_.edit("tokenizer.json", [&](auto& content) {
      for (int64_t id = find_next_id(content); id < rows; ++id)
        add_token(content, id, fmt::format("<reserved_{}>", id));
      add_token(content, rows, "<new>");
    });
  }

  static nn::LoraSettings settings() {
    std::vector<std::string> modules{"embed_tokens"};
    if (std::string(GetParam()).starts_with("llava_clip")) modules.emplace_back("lm_head");
    return {.rank = 2, .target_modules = {"q_proj"}, .modules_to_save = modules};
  }

  const AdapterFolder adapter_{GetParam(), settings()};
  int64_t first_new_id_ = 0;
};

TEST_P(AddedVocabularyRows, AreLoadedAndMergedWithConfigAndTokenizer) {
  const auto merged = adapter_.merge();
  for (const auto& folder : {adapter_.path(), merged}) {
    EXPECT_EQ(load_model(folder, at::kCPU, at::kFloat)->output_weight().size(0), first_new_id_ + kNewRows);
    EXPECT_EQ(load_processor(folder, {})->tokenizer().token_to_id("<new>"), first_new_id_);
  }
  const auto config = io::read_json(merged / "config.json");
  for (const auto* level : {&config, &config.at("text_config")}) {
    EXPECT_EQ(level->value("vocab_size", first_new_id_ + kNewRows), first_new_id_ + kNewRows);
  }
}

TEST_P(AddedVocabularyRows, RequireTheTokenizer) {
  std::filesystem::remove(adapter_.path() / "tokenizer.json");
  const auto expected = AllOf(HasSubstr("no tokenizer.json"), HasSubstr(std::to_string(first_new_id_ + kNewRows)));
  EXPECT_THAT(get_error_message([&] { adapter_.load(); }), expected);
  EXPECT_THAT(get_error_message([&] { adapter_.merge(); }), expected);
  EXPECT_FALSE(std::filesystem::exists(adapter_.make_path("merged")));
}

TEST_P(AddedVocabularyRows, MayBeMissingInModulesToSave) {
  adapter_.edit("adapter_config.json", [](auto& content) {
    content["modules_to_save"] = nullptr;
    content["ensure_weight_tying"] = false;
  });
  EXPECT_EQ(adapter_.load()->output_weight().size(0), first_new_id_ + kNewRows);
}

INSTANTIATE_TEST_SUITE_P(Families, AddedVocabularyRows,
                         testing::Values("llava_clip_llama", "mixed_batch", "qwen3_vl_images"),
                         [](const auto& member) { return std::string(member.param); });

}  // namespace
}  // namespace vlmtrain::models
