#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

#include "text/test_data.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {
namespace {

using nlohmann::ordered_json;
using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;

/// agents.golden.json of scripts/make_agent_goldens.py.
const ordered_json& read_golden() {
  static const ordered_json golden = io::read_ordered_json(get_data_path("agents.golden.json"));
  return golden;
}

const Tokenizer& load_golden_tokenizer(const std::string& name) {
  static std::map<std::string, Tokenizer> tokenizers;
  const auto it = tokenizers.find(name);
  if (it != tokenizers.end()) return it->second;
  return tokenizers.emplace(name, Tokenizer::from_file(get_data_path(name + ".tokenizer.json"))).first->second;
}

ChatTemplate load_golden_template(const std::string& name) {
  const ordered_json& golden_template = read_golden().at("templates").at(name);
  return {{.jinja_source = golden_template.at("source"), .name = name, .is_checkpoint_default = true},
          {},
          load_golden_tokenizer(golden_template.at("tokenizer"))};
}

Role parse_golden_role(const std::string& name) {
  if (name == "tool") return Role::kTool;
  return name == "user" ? Role::kUser : Role::kAssistant;
}

/// A conversation of the golden file, as a record has it.
struct Conversation {
  std::vector<Turn> turns;
  std::vector<io::TemplateValue> variables;

  explicit Conversation(const ordered_json& conversation) {
    for (const ordered_json& message : conversation.at("messages")) {
      Turn& turn = turns.emplace_back(Turn{.role = parse_golden_role(message.at("role")), .text = {}});
      for (const auto& [key, value] : message.items()) {
        if (key == "content") {
          turn.has_content = !value.is_null();
          if (value.is_string()) turn.text = value;
        } else if (key == "loss") {
          turn.is_learned = value;
        } else if (key != "role") {
          turn.fields.push_back({.name = key, .json = value.dump()});
        }
      }
    }
    if (conversation.contains("tools")) variables.push_back({.name = "tools", .json = conversation.at("tools").dump()});
  }
};

std::vector<TextSpan> parse_spans(const ordered_json& spans) {
  std::vector<TextSpan> result;
  for (const auto& span : spans) result.push_back({span.at(0), span.at(1)});
  return result;
}

TEST(Agents, TextsAndLabelsEqualTheReference) {
  size_t num_conversations = 0;
  for (const ordered_json& entry : read_golden().at("entries")) {
    SCOPED_TRACE(entry.at("template").get<std::string>() + ", " + entry.at("conversation").get<std::string>());
    const ChatTemplate chat_template = load_golden_template(entry.at("template"));
    const Conversation conversation(read_golden().at("conversations").at(entry.at("conversation").get<std::string>()));
    const auto render = [&] { return chat_template.render(conversation.turns, false, conversation.variables); };
    ++num_conversations;
    if (!entry.contains("labels")) {
      EXPECT_THROW(render(), UserError);
      continue;
    }
    const RenderedChat chat = render();
    EXPECT_EQ(chat.text, entry.at("text").get<std::string>());
    EXPECT_EQ(chat.answers, parse_spans(entry.at("labels")));
  }
  EXPECT_GE(num_conversations, 60U);
}

TEST(Agents, OmittedPartsAreNotices) {
  const auto get_notices = [](const std::string& name, const std::string& conversation) {
    const Conversation agent(read_golden().at("conversations").at(conversation));
    return load_golden_template(name).render(agent.turns, false, agent.variables).notices;
  };
  EXPECT_THAT(get_notices("tags", "reasoning"),
              ElementsAre(Field(&io::Notice::kind, "reasoning that the chat template omits")));
  EXPECT_THAT(get_notices("reasoning", "reasoning twice"),
              ElementsAre(Field(&io::Notice::kind, "reasoning that the chat template omits")))
      << "of the first answer";
  EXPECT_THAT(get_notices("no_tools", "unused tools"),
              Contains(Field(&io::Notice::kind, "tools that the chat template omits")));
}

TEST(Agents, OmittedCallsAreErrors) {
  const Conversation agent(read_golden().at("conversations").at("one call"));
  try {
    load_golden_template("no_tools").render(agent.turns, false, agent.variables);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("turn 2: the chat template omits the call of the tool read_text"));
  }
}

TEST(Agents, AnswersThatAreNotLearnedHaveNoLabels) {
  for (const std::string name : {"tags", "generation"}) {
    std::vector<Turn> turns{
        {Role::kUser, "Q"}, {Role::kAssistant, "First."}, {Role::kUser, "R"}, {Role::kAssistant, "Second."}};
    turns[1].is_learned = false;
    const RenderedChat chat = load_golden_template(name).render(turns, false);
    ASSERT_EQ(chat.answers.size(), 1U) << name;
    EXPECT_EQ(chat.text.substr(chat.answers[0].begin, chat.answers[0].end - chat.answers[0].begin),
              "Second.<|im_end|>");
  }
}

}  // namespace
}  // namespace vlmtrain::text
