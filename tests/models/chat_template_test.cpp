#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/weights_to_save.h"

namespace vlmtrain::models {
namespace {

using io::message_of;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kTextsOnly =
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('No system text, please.') }}{% endif %}"
    "{{ m.role }}:{% for part in m.content %}{{ part.text if part.type == 'text' }}{% endfor %}<end_of_utterance>"
    "{% endfor %}";

class TemplateRefuses : public testing::Test {
 protected:
  TemplateRefuses() { io::write_file(copy_.path() / "chat_template.jinja", kTextsOnly); }

  std::string refusal_of(const io::Record& record) const {
    try {
      load_processor(copy_.path(), copy_.origin().processor_settings())->outline(record, 0);
    } catch (const data::SampleError& error) {
      EXPECT_EQ(error.reason(), "refused by the chat template");
      return error.what();
    }
    return "taken";
  }

  const CheckpointCopy copy_{"mixed_batch"};
  const std::vector<io::Record> records_ = copy_.origin().records();
};

TEST_F(TemplateRefuses, WhatItRaisesFor) {
  io::Record record = records_.at(0);
  EXPECT_EQ(refusal_of(record), "taken");
  record.turns.insert(record.turns.begin(), {io::Role::kSystem, "Be brief."});
  EXPECT_THAT(refusal_of(record), AllOf(HasSubstr("sample words"), HasSubstr("No system text, please.")));
}

TEST_F(TemplateRefuses, APictureThatItLeavesOut) {
  EXPECT_THAT(refusal_of(records_.at(1)), AllOf(HasSubstr("sample square"), HasSubstr("writes 0 of its 1 images")));
}

TEST(ChatTemplateOfCheckpoint, IsLookedForWhereTransformersDoes) {
  const CheckpointCopy copy("mixed_batch");
  const auto name = [&copy](const std::string& wanted) {
    ProcessorSettings settings;
    settings.chat_template = wanted;
    const auto processor = load_processor(copy.path(), settings);
    return processor->chat_template().source().name;
  };
  const std::string jinja = io::read_file(copy.path() / "chat_template.jinja");
  std::filesystem::create_directory(copy.path() / "additional_chat_templates");
  io::write_file(copy.path() / "additional_chat_templates" / "brief.jinja", jinja);
  io::write_file(copy.path() / "chat_template.json", nlohmann::json{{"chat_template", jinja}}.dump());
  EXPECT_THAT(name("auto"), testing::EndsWith("chat_template.jinja"));
  EXPECT_THAT(name("brief"), testing::EndsWith("additional_chat_templates/brief.jinja"));
  std::filesystem::remove(copy.path() / "chat_template.jinja");
  std::filesystem::remove_all(copy.path() / "additional_chat_templates");
  EXPECT_THAT(name("auto"), testing::EndsWith("chat_template.json"));
  std::filesystem::remove(copy.path() / "chat_template.json");
  copy.edit("tokenizer_config.json", [&jinja](auto& config) {
    config["chat_template"] = {{{"name", "default"}, {"template", jinja}}, {{"name", "rag"}, {"template", jinja}}};
  });
  EXPECT_THAT(name("auto"), testing::EndsWith("tokenizer_config.json"));
  EXPECT_THAT(name("rag"), testing::EndsWith("tokenizer_config.json (rag)"));
  copy.edit("tokenizer_config.json", [](auto& config) { config.erase("chat_template"); });
  EXPECT_EQ(name("auto"), "smolvlm");
}

TEST(ChatTemplateOfCheckpoint, OneThatCannotBeReadIsNotNone) {
  const CheckpointCopy copy("mixed_batch");
  const auto file = copy.path() / "chat_template.jinja";
  std::filesystem::remove(file);
  std::filesystem::create_symlink("nowhere", file);
  EXPECT_THAT(message_of([&] { load_processor(copy.path(), {}); }),
              AllOf(HasSubstr("chat_template.jinja"), HasSubstr("link")));
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  EXPECT_THAT(message_of([&] { load_processor(copy.path(), {}); }), HasSubstr("chat_template.jinja: is a"));
  std::filesystem::remove(file);
  for (const char* content : {"[]", "{}"}) {
    io::write_file(copy.path() / "chat_template.json", content);
    EXPECT_THAT(message_of([&] { load_processor(copy.path(), {}); }), HasSubstr("chat_template.json: "));
  }
}

TEST(ChatTemplateOfCheckpoint, SavedFilesHaveTheOneItWasTrainedWithAndNoOther) {
  const CheckpointCopy copy("mixed_batch");
  std::filesystem::remove(copy.path() / "chat_template.jinja");
  io::write_file(copy.path() / "chat_template.json", R"({"chat_template": "old"})");
  copy.edit("tokenizer_config.json", [](auto& config) { config["chat_template"] = "old"; });
  BaseWeights base(copy.path());
  base.put_chat_template("new");
  EXPECT_EQ(base.files().at("chat_template.jinja"), "new");
  EXPECT_FALSE(base.files().contains("chat_template.json"));
  EXPECT_FALSE(nlohmann::json::parse(base.files().at("tokenizer_config.json")).contains("chat_template"));
}

TEST(ChatTemplateOfCheckpoint, OneThatIsThereForNothingIsNamed) {
  const CheckpointCopy copy("mixed_batch");
  io::write_file(copy.path() / "chat_template.jinja", "{% for m in messages %}\n{{ m.content | shout }}{% endfor %}");
  EXPECT_THAT(message_of([&] { load_processor(copy.path(), {}); }),
              AllOf(HasSubstr("chat_template.jinja:2"), HasSubstr("shout")));
  ProcessorSettings settings;
  settings.chat_template = "nowhere.jinja";
  EXPECT_THAT(message_of([&] { load_processor(copy.path(), settings); }, ExitCode::kUsage),
              HasSubstr("there is no file nowhere.jinja"));
}

}  // namespace
}  // namespace vlmtrain::models
