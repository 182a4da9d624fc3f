#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/captured_log.h"
#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kTextOnlyTemplate =
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('No system text, please.') }}{% endif %}"
    "{{ m.role }}:{% for part in m.content %}{{ part.text if part.type == 'text' }}{% endfor %}<end_of_utterance>"
    "{% endfor %}";

class TemplateRefuses : public testing::Test {
 protected:
  TemplateRefuses() { io::write_file(copy_.path() / "chat_template.jinja", kTextOnlyTemplate); }

  std::string get_error(const io::Record& record) const {
    try {
      load_processor(copy_.path(), copy_.origin().processor_settings())->process_headers(record, 0);
    } catch (const data::SampleError& error) {
      EXPECT_EQ(error.reason(), "refused by the chat template");
      return error.what();
    }
    return "taken";
  }

  const CheckpointCopy copy_{"mixed_batch"};
  const std::vector<io::Record> records_ = copy_.origin().records();
};

TEST_F(TemplateRefuses, ReportsRaisedException) {
  io::Record record = records_.at(0);
  EXPECT_EQ(get_error(record), "taken");
  record.turns.insert(record.turns.begin(), {io::Role::kSystem, "Be brief."});
  EXPECT_THAT(get_error(record), AllOf(HasSubstr("sample words"), HasSubstr("No system text, please.")));
}

TEST_F(TemplateRefuses, ReportsMissingImages) {
  EXPECT_THAT(get_error(records_.at(1)), AllOf(HasSubstr("sample square"), HasSubstr("writes 0 of its 1 images")));
}

/// The order of ProcessorMixin.get_processor_dict in transformers 5.24.0, then of its tokenizers.
TEST(CheckpointChatTemplate, FollowsSearchOrderOfTransformers) {
  const CheckpointCopy copy("mixed_batch");
  const auto get_source_name = [&copy](const std::string& template_name) {
    ProcessorSettings settings;
    settings.chat_template = template_name;
    const auto processor = load_processor(copy.path(), settings);
    return processor->chat_template().source().name;
  };
  const std::string jinja = io::read_file(copy.path() / "chat_template.jinja");
  std::filesystem::create_directory(copy.path() / "additional_chat_templates");
  io::write_file(copy.path() / "additional_chat_templates" / "brief.jinja", jinja);
  io::write_file(copy.path() / "chat_template.json", nlohmann::json{{"chat_template", jinja}}.dump());
  copy.edit("processor_config.json", [&jinja](auto& config) { config["chat_template"] = jinja; });
  EXPECT_THAT(get_source_name("auto"), testing::EndsWith("processor_config.json"));
  EXPECT_THAT(get_source_name("brief"), testing::EndsWith("additional_chat_templates/brief.jinja"));
  copy.edit("processor_config.json", [](auto& config) { config.erase("chat_template"); });
  EXPECT_THAT(get_source_name("auto"), testing::EndsWith("chat_template.json"));
  std::filesystem::remove(copy.path() / "chat_template.json");
  EXPECT_THAT(get_source_name("auto"), testing::EndsWith("chat_template.jinja"));
  std::filesystem::remove(copy.path() / "chat_template.jinja");
  std::filesystem::remove_all(copy.path() / "additional_chat_templates");
  copy.edit("tokenizer_config.json", [&jinja](auto& config) {
    config["chat_template"] = {{{"name", "default"}, {"template", jinja}}, {{"name", "rag"}, {"template", jinja}}};
  });
  EXPECT_THAT(get_source_name("auto"), testing::EndsWith("tokenizer_config.json"));
  EXPECT_THAT(get_source_name("rag"), testing::EndsWith("tokenizer_config.json (rag)"));
  copy.edit("tokenizer_config.json", [](auto& config) { config.erase("chat_template"); });
  EXPECT_EQ(get_source_name("auto"), "smolvlm");
}

TEST(CheckpointChatTemplate, IgnoredTemplateIsNamed) {
  const CheckpointCopy copy("mixed_batch");
  const std::string jinja = io::read_file(copy.path() / "chat_template.jinja");
  const auto load_and_capture_log = [&copy] {
    const CapturedLog log;
    load_processor(copy.path(), {});
    return log.text();
  };
  io::write_file(copy.path() / "chat_template.json", nlohmann::json{{"chat_template", jinja}}.dump());
  EXPECT_EQ(load_and_capture_log(), "");
  io::write_file(copy.path() / "chat_template.json", nlohmann::json{{"chat_template", "{# new #}" + jinja}}.dump());
  EXPECT_THAT(load_and_capture_log(),
              AllOf(HasSubstr("chat_template.jinja: differs"), HasSubstr("chat_template.json, which is used")));
}

TEST(CheckpointChatTemplate, UnreadableTemplateIsAnError) {
  const CheckpointCopy copy("mixed_batch");
  const auto file = copy.path() / "chat_template.jinja";
  std::filesystem::remove(file);
  std::filesystem::create_symlink("nowhere", file);
  EXPECT_THAT(get_error_message([&] { load_processor(copy.path(), {}); }),
              AllOf(HasSubstr("chat_template.jinja"), HasSubstr("link")));
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  EXPECT_THAT(get_error_message([&] { load_processor(copy.path(), {}); }), HasSubstr("chat_template.jinja: is a"));
  std::filesystem::remove(file);
  for (const char* content : {"[]", "{}"}) {
    io::write_file(copy.path() / "chat_template.json", content);
    EXPECT_THAT(get_error_message([&] { load_processor(copy.path(), {}); }), HasSubstr("chat_template.json: "));
  }
}

TEST(CheckpointChatTemplate, SavedFilesHoldOnlyTheTrainingTemplate) {
  const CheckpointCopy copy("mixed_batch");
  io::write_file(copy.path() / "chat_template.jinja", "old");
  io::write_file(copy.path() / "chat_template.json", R"({"chat_template": "old"})");
  io::write_file(copy.path() / "processor_config.json", R"({"chat_template": "old", "image_seq_len": 4})");
  copy.edit("tokenizer_config.json", [](auto& config) { config["chat_template"] = "old"; });
  copy.edit("config.json", [](auto& config) { config["lm_chat_template"] = "old"; });
  std::filesystem::create_directory(copy.path() / "additional_chat_templates");
  io::write_file(copy.path() / "additional_chat_templates" / "brief.jinja", "old");
  BaseWeights base(copy.path());
  base.set_chat_template("new");
  EXPECT_EQ(base.files().at("chat_template.jinja"), "new");
  for (const auto& [name, content] : base.files()) EXPECT_THAT(content, testing::Not(HasSubstr("old"))) << name;
  EXPECT_FALSE(base.files().contains("chat_template.json"));
  EXPECT_FALSE(base.files().contains("additional_chat_templates/brief.jinja"));
  EXPECT_EQ(nlohmann::json::parse(base.files().at("processor_config.json")), nlohmann::json({{"image_seq_len", 4}}));
}

TEST(CheckpointChatTemplate, SavedFilesStayUnchangedIfAllAgree) {
  const CheckpointCopy copy("mixed_batch");
  const std::string jinja = io::read_file(copy.path() / "chat_template.jinja");
  const auto get_files = [&copy, &jinja] {
    BaseWeights base(copy.path());
    base.set_chat_template(jinja);
    return base.files();
  };
  EXPECT_EQ(get_files(), BaseWeights(copy.path()).files());
  copy.edit("tokenizer_config.json", [&jinja](auto& config) {
    config["chat_template"] = {{{"name", "rag"}, {"template", "x"}}, {{"name", "default"}, {"template", jinja}}};
  });
  std::filesystem::create_directory(copy.path() / "additional_chat_templates");
  io::write_file(copy.path() / "additional_chat_templates" / "brief.jinja", "brief");
  EXPECT_EQ(get_files(), BaseWeights(copy.path()).files());
  EXPECT_EQ(get_files().at("additional_chat_templates/brief.jinja"), "brief");
  copy.edit("tokenizer_config.json", [](auto& config) { config["chat_template"] = "stale"; });
  EXPECT_FALSE(nlohmann::json::parse(get_files().at("tokenizer_config.json")).contains("chat_template"));
}

TEST(EndToken, IsAddedToGenerationConfig) {
  const CheckpointCopy copy("mixed_batch");
  const auto write_end_token = [&copy](int64_t id) {
    BaseWeights base(copy.path());
    base.add_eos_token(id);
    const auto file = base.files().find("generation_config.json");
    return file == base.files().end() ? std::string("no file") : file->second;
  };
  const auto file = copy.path() / "generation_config.json";
  const auto get_end_token_ids = [&](int64_t id) {
    return nlohmann::json::parse(write_end_token(id)).at("eos_token_id");
  };
  io::write_file(file, R"({"eos_token_id": 7, "do_sample": true})");
  EXPECT_EQ(write_end_token(7), R"({"eos_token_id": 7, "do_sample": true})");
  EXPECT_EQ(get_end_token_ids(9), nlohmann::json({7, 9}));
  EXPECT_EQ(nlohmann::json::parse(write_end_token(9)).at("do_sample"), true);
  io::write_file(file, R"({"eos_token_id": [8, 7]})");
  EXPECT_EQ(get_end_token_ids(9), nlohmann::json({8, 7, 9}));
  EXPECT_EQ(write_end_token(7), R"({"eos_token_id": [8, 7]})");
  io::write_file(file, "{}");
  EXPECT_EQ(get_end_token_ids(9), 9);
  std::filesystem::remove(file);
  copy.edit("config.json", [](auto& config) {
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) config.erase(key);
    config["text_config"]["eos_token_id"] = 5;
    config["text_config"]["bos_token_id"] = 1;
    config["pad_token_id"] = 2;
  });
  EXPECT_EQ(write_end_token(5), "no file");
  EXPECT_EQ(nlohmann::json::parse(write_end_token(9)),
            nlohmann::json({{"bos_token_id", 1}, {"eos_token_id", {5, 9}}, {"pad_token_id", 2}}));
}

TEST(GenerationSettings, UnappliedSettingsAreListed) {
  const CheckpointCopy copy("mixed_batch");
  const auto list_unapplied = [&copy](const char* content) {
    io::write_file(copy.path() / "generation_config.json", content);
    return find_unapplied_generation_settings(copy.path());
  };
  EXPECT_THAT(list_unapplied(R"({"eos_token_id": 1, "do_sample": true, "temperature": 0.1, "max_length": 20,
                            "transformers_version": "5.24.0", "pad_token_id": 0})"),
              testing::IsEmpty());
  EXPECT_THAT(
      list_unapplied(R"({"repetition_penalty": 1.0, "num_beams": 1, "no_repeat_ngram_size": 0, "bad_words_ids": null,
                            "suppress_tokens": [], "token_healing": false})"),
      testing::IsEmpty());
  EXPECT_THAT(list_unapplied(R"({"repetition_penalty": 1.05, "num_beams": 4, "suppress_tokens": [3], "new_key": "x"})"),
              testing::ElementsAre("new_key", "num_beams", "repetition_penalty", "suppress_tokens"));
}

TEST(CheckpointChatTemplate, InvalidTemplateIsNamed) {
  const CheckpointCopy copy("mixed_batch");
  io::write_file(copy.path() / "chat_template.jinja", "{% for m in messages %}\n{{ m.content | shout }}{% endfor %}");
  EXPECT_THAT(get_error_message([&] { load_processor(copy.path(), {}); }),
              AllOf(HasSubstr("chat_template.jinja:2"), HasSubstr("shout")));
  ProcessorSettings settings;
  settings.chat_template = "nowhere.jinja";
  EXPECT_THAT(get_error_message([&] { load_processor(copy.path(), settings); }, ExitCode::kUsage),
              HasSubstr("the file nowhere.jinja does not exist"));
}

}  // namespace
}  // namespace vlmtrain::models
