#include <gtest/gtest.h>

#include <filesystem>

#include "parity/case.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::parity {
namespace {

/// Conversation of data/chats.json, and a checkpoint folder with its template.
class Chat {
 public:
  explicit Chat(const nlohmann::json& json) : json_(json), case_(json.at("case").get<std::string>()) {
    for (const auto& entry : std::filesystem::directory_iterator(case_.checkpoint())) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("chat_template")) std::filesystem::copy(entry.path(), folder_.path() / name);
    }
    const std::string file = json.at("file"), jinja = json.at("template");
    io::write_file(folder_.path() / file,
                   file.ends_with(".json") ? nlohmann::json{{"chat_template", jinja}}.dump() : jinja);
    if (jinja.find("bos_token") != std::string::npos) {
      auto config = io::read_json(folder_.path() / "tokenizer_config.json");
      config["bos_token"] = "<s>";
      io::write_file(folder_.path() / "tokenizer_config.json", config.dump());
    }
  }

  std::string name() const { return json_.at("name").get<std::string>() + ": " + json_.at("turns").dump(); }
  const std::filesystem::path& folder() const { return folder_.path(); }
  std::string jinja() const { return json_.at("template"); }

  io::Record record() const {
    io::Record record;
    record.id = "chat";
    for (const auto& image : json_.at("images")) record.images.emplace_back(case_.images() / image.get<std::string>());
    if (json_.at("system").is_string()) record.turns.push_back({io::Role::kSystem, json_.at("system")});
    for (const auto& turn : json_.at("turns")) {
      const bool is_user_turn = record.turns.empty() || record.turns.back().role != io::Role::kUser;
      record.turns.push_back({is_user_turn ? io::Role::kUser : io::Role::kAssistant, turn});
    }
    return record;
  }

  void expect_equal(const models::Processor& processor) const {
    const auto sample = processor.process_headers(record(), 0);
    EXPECT_EQ(sample.token_ids, json_.at("ids").get<std::vector<int64_t>>()) << name();
    std::vector<int64_t> label_ids;
    for (size_t i = 0; i < sample.token_ids.size(); ++i) {
      if (sample.label_mask[i] != 0) label_ids.push_back(sample.token_ids[i]);
    }
    EXPECT_EQ(label_ids, json_.at("label_ids").get<std::vector<int64_t>>()) << name();
    const auto& appended = json_.at("appended");
    EXPECT_EQ(processor.chat_template().omits_last_end_of_turn(), appended.is_string()) << name();
    if (appended.is_string()) {
      EXPECT_EQ(processor.chat_template().end_of_turn_token(), appended.get<std::string>());
    }
  }

  std::unique_ptr<models::Processor> load_processor(const std::filesystem::path& folder,
                                                    const std::string& chat_template = "auto") const {
    auto settings = case_.processor_settings();
    settings.chat_template = chat_template;
    return models::load_processor(folder, settings);
  }

  const Case& origin() const { return case_; }

 private:
  nlohmann::json json_;
  Case case_;
  TemporaryFolder folder_;
};

nlohmann::json read_chats() {
  return io::read_json(source_folder() / "tests/parity/data/chats.json");
}

TEST(ChatParity, CheckpointTemplateMatchesTransformers) {
  size_t num_chats = 0;
  for (const auto& json : read_chats()) {
    const Chat chat(json);
    const auto processor = chat.load_processor(chat.folder());
    EXPECT_TRUE(processor->chat_template().source().is_checkpoint_default);
    chat.expect_equal(*processor);
    ++num_chats;
  }
  EXPECT_GT(num_chats, 70U);
}

/// A saved checkpoint has the template that training used, even if it came from outside.
TEST(ChatParity, SavedCheckpointUsesTrainingTemplate) {
  std::string previous_name;
  for (const auto& json : read_chats()) {
    if (json.at("name") == previous_name) continue;
    previous_name = json.at("name");
    const Chat chat(json);
    const TemporaryFolder folder;
    const auto file = folder.path() / "given.jinja";
    io::write_file(file, chat.jinja());
    const auto training_processor = chat.load_processor(chat.origin().checkpoint(), file.string());
    const auto& chat_template = training_processor->chat_template().source();
    models::BaseWeights base(chat.origin().checkpoint());
    if (!chat_template.is_checkpoint_default) base.set_chat_template(chat_template.jinja_source);
    const auto out = folder.path() / "saved";
    std::filesystem::create_directory(out);
    models::save_checkpoint(*chat.origin().load_model(), {.base = &base}, out, int64_t{1} << 30);
    const auto saved_processor = chat.load_processor(out);
    EXPECT_TRUE(saved_processor->chat_template().source().is_checkpoint_default) << previous_name;
    EXPECT_FALSE(std::filesystem::exists(out / "chat_template.json")) << previous_name;
    const auto record = chat.record();
    EXPECT_EQ(saved_processor->process_headers(record, 0).token_ids,
              training_processor->process_headers(record, 0).token_ids)
        << previous_name;
    EXPECT_EQ(saved_processor->process_headers(record, 0).label_mask,
              training_processor->process_headers(record, 0).label_mask)
        << previous_name;
  }
}

}  // namespace
}  // namespace vlmtrain::parity
