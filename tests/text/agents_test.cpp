#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <utility>
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
          turn.loss_weight = value.get<bool>() ? 1 : 0;
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
    turns[1].loss_weight = 0;
    const RenderedChat chat = load_golden_template(name).render(turns, false);
    ASSERT_EQ(chat.answers.size(), 1U) << name;
    EXPECT_EQ(chat.text.substr(chat.answers[0].begin, chat.answers[0].end - chat.answers[0].begin),
              "Second.<|im_end|>");
  }
}

ChatTemplate make_agent_template(const std::string& source, TemplateSettings settings = {}) {
  return {{.jinja_source = source, .name = "agent.jinja", .is_checkpoint_default = true},
          std::move(settings),
          load_golden_tokenizer("qwen2")};
}

constexpr const char* kCallOfZoom = R"([{"type": "function", "function": {"name": "zoom", "arguments": {}}}])";

/// A question, a call of a tool with `text`, the output of the tool, and an answer.
std::vector<Turn> make_call_turns(const std::string& text = "") {
  return {{Role::kUser, "What is it?"},
          {.role = Role::kAssistant, .text = text, .fields = {{.name = "tool_calls", .json = kCallOfZoom}}},
          {Role::kTool, "fur"},
          {Role::kAssistant, "A cat."}};
}

std::vector<std::string> get_label_texts(const ChatTemplate& chat_template, const std::vector<Turn>& turns,
                                         const std::vector<io::TemplateValue>& variables = {}) {
  const RenderedChat chat = chat_template.render(turns, false, variables);
  std::vector<std::string> texts;
  for (const TextSpan& span : chat.answers) texts.push_back(chat.text.substr(span.begin, span.end - span.begin));
  return texts;
}

constexpr const char* kPrompt = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST(Agents, NullContentIsNoKeyOfTheMessage) {
  std::vector<Turn> turns = make_call_turns();
  turns[1].has_content = false;
  const ChatTemplate chat_template = make_agent_template(
      std::string("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if 'content' not in m %}(no key)"
                  "{% endif %}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}<|im_end|>\n{% endfor %}") +
      kPrompt);
  EXPECT_THAT(chat_template.render(turns, false).text, HasSubstr("assistant\n(no key)zoom<|im_end|>"));
}

TEST(Agents, ReasoningHasTheNameThatTheTemplateReads) {
  for (const std::string read_name : {"reasoning_content", "thinking"}) {
    const ChatTemplate chat_template = make_agent_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m." + read_name + " %}<think>{{ m." + read_name +
        " }}</think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}" + kPrompt);
    for (const std::string name : {"reasoning_content", "thinking", "reasoning"}) {
      const std::vector<Turn> turns{
          {Role::kUser, "How many?"},
          {.role = Role::kAssistant, .text = "Two.", .fields = {{.name = name, .json = "\"One, two.\""}}}};
      EXPECT_THAT(get_label_texts(chat_template, turns), ElementsAre("<think>One, two.</think>Two.<|im_end|>"))
          << name << " read as " << read_name;
    }
  }
}

TEST(Agents, GenerationBlocksOfAnswersThatAreNotLearnedHaveNoLabels) {
  const ChatTemplate chat_template = make_agent_template(
      std::string(
          "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
          "<think>\n</think>\n{{ m.content }}<|im_end|>\n{% endgeneration %}{% else %}{{ m.content }}<|im_end|>\n"
          "{% endif %}{% endfor %}") +
      kPrompt);
  std::vector<Turn> turns{
      {Role::kUser, "Q"}, {Role::kAssistant, "First."}, {Role::kUser, "R"}, {Role::kAssistant, "Second."}};
  turns[1].loss_weight = 0;
  EXPECT_THAT(get_label_texts(chat_template, turns), ElementsAre("<think>\n</think>\nSecond.<|im_end|>\n"));
}

TEST(Agents, AnswersEndWithTheEosTokenThatFollowsOtherSpecialTokens) {
  const std::string source =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|><|endoftext|>\n{% endfor %}";
  const std::vector<Turn> turns{
      {Role::kUser, "Q"}, {Role::kAssistant, "One."}, {Role::kUser, "R"}, {Role::kAssistant, "Two."}};
  EXPECT_THAT(get_label_texts(make_agent_template(source + kPrompt, {.eos_tokens = {"<|endoftext|>"}}), turns),
              ElementsAre("One.<|im_end|><|endoftext|>", "Two.<|im_end|><|endoftext|>"));
  EXPECT_THAT(get_label_texts(make_agent_template(source + kPrompt, {.eos_tokens = {"<|im_end|>"}}), turns),
              ElementsAre("One.<|im_end|>", "Two.<|im_end|>"));
}

/// A template that ends calls with a token of their own, and repeats the name of the tool after it.
constexpr const char* kOwnCallEnd =
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>{{ messages[loop.index0 - "
    "1].tool_calls[0].function.name }}"
    "\n{{ m.content }}<|im_end|>{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}"
    "call {{ c.function.name }}{% endfor %}{{ '<|endoftext|>' if m.tool_calls else '<|im_end|>' }}{% endif %}{% endfor "
    "%}";

TEST(Agents, CallsMayEndWithAnotherToken) {
  const ChatTemplate chat_template =
      make_agent_template(std::string(kOwnCallEnd) + kPrompt, {.eos_tokens = {"<|im_end|>", "<|endoftext|>"}});
  EXPECT_THAT(get_label_texts(chat_template, make_call_turns()),
              ElementsAre("call zoom<|endoftext|>", "A cat.<|im_end|>"));
}

TEST(Agents, TemplatesThatNeedToolsAreLoaded) {
  const ChatTemplate chat_template = make_agent_template(
      std::string("{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% for m in messages %}<|im_start|>"
                  "{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}") +
      kPrompt);
  const std::vector<Turn> turns{{Role::kUser, "Q"}, {Role::kAssistant, "One."}};
  const std::vector<io::TemplateValue> tools{{.name = "tools", .json = R"([{"function": {"name": "zoom"}}])"}};
  EXPECT_THAT(get_label_texts(chat_template, turns, tools), ElementsAre("One.<|im_end|>"));
  EXPECT_THROW(chat_template.render(turns, false), UserError);
}

TEST(Agents, TextNextToCallsIsAStringWhereTheTemplateReadsNoBlocks) {
  const ChatTemplate chat_template = make_agent_template(
      std::string("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{{ m.content }}"
                  "{% for c in m.tool_calls %} call {{ c.function.name }}{% endfor %}{% elif m.content is string %}"
                  "{{ m.content }}{% else %}{% for b in m.content %}{{ b.text }}{% endfor %}{% endif %}<|im_end|>\n"
                  "{% endfor %}") +
      kPrompt);
  EXPECT_THAT(get_label_texts(chat_template, make_call_turns("I look.")),
              ElementsAre("I look. call zoom<|im_end|>", "A cat.<|im_end|>"));
}

TEST(Agents, VariablesOfTheRecordMayChangeTheSpaceBeforeAnswers) {
  const ChatTemplate chat_template = make_agent_template(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think></think>\n{% endif %}"
      "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
      "{{ '<think></think>' if quick }}{% endif %}");
  const std::vector<Turn> turns{{Role::kUser, "Q"}, {Role::kAssistant, "One."}};
  EXPECT_THAT(get_label_texts(chat_template, turns), ElementsAre("One.<|im_end|>"));
  EXPECT_THAT(get_label_texts(chat_template, turns, {{.name = "quick", .json = "true"}}),
              ElementsAre("\nOne.<|im_end|>"));
}

TEST(Agents, AnswersWhoseReasoningIsOmittedAreAnswersOfText) {
  const ChatTemplate chat_template = make_agent_template(
      std::string(
          "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think></think>{% endif %}"
          "{{ m.content }}<|im_end|>\n{% endfor %}") +
      kPrompt);
  const std::vector<Turn> turns{
      {Role::kUser, "How many?"},
      {.role = Role::kAssistant, .text = "Two.", .fields = {{.name = "reasoning", .json = "\"One, two.\""}}}};
  EXPECT_THAT(get_label_texts(chat_template, turns), ElementsAre("Two.<|im_end|>"));
}

/// Returns the text of each answer with its weight: "0.5:Yes."
std::vector<std::string> list_weighted_answers(const RenderedChat& chat) {
  std::vector<std::string> answers;
  for (size_t i = 0; i < chat.answers.size(); ++i) {
    const auto [begin, end] = chat.answers[i];
    answers.push_back(fmt::format("{}:{}", chat.answer_weights.empty() ? 1 : chat.answer_weights[i],
                                  chat.text.substr(begin, end - begin)));
  }
  return answers;
}

TEST(Agents, AnswersHaveTheWeightsOfTheirTurns) {
  for (const std::string name : {"tags", "generation"}) {
    const ChatTemplate chat_template = load_golden_template(name);
    std::vector<Turn> turns{
        {Role::kUser, "Q"}, {Role::kAssistant, "First."}, {Role::kUser, "R"}, {Role::kAssistant, "Second."}};
    EXPECT_TRUE(chat_template.render(turns, false).answer_weights.empty());
    turns[1].loss_weight = 0.5;
    EXPECT_THAT(list_weighted_answers(chat_template.render(turns, false)),
                ElementsAre("0.5:First.<|im_end|>", "1:Second.<|im_end|>"))
        << name;
    turns[3].loss_weight = 0;
    EXPECT_THAT(list_weighted_answers(chat_template.render(turns, false)), ElementsAre("0.5:First.<|im_end|>")) << name;
  }
}

/// Without a text between them, the answers touch.
TEST(Agents, AdjacentAnswersKeepTheirWeights) {
  const ChatTemplate chat_template(
      {.jinja_source = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|im_end|>{% endif %}"
                       "{% endfor %}",
       .name = "answers",
       .is_checkpoint_default = true},
      {}, load_golden_tokenizer("qwen2"));
  std::vector<Turn> turns{
      {Role::kUser, "Q"}, {Role::kAssistant, "First."}, {Role::kUser, ""}, {Role::kAssistant, "Second."}};
  EXPECT_THAT(list_weighted_answers(chat_template.render(turns, false)),
              ElementsAre("1:First.<|im_end|>Second.<|im_end|>"));
  turns[1].loss_weight = 0.25;
  EXPECT_THAT(list_weighted_answers(chat_template.render(turns, false)),
              ElementsAre("0.25:First.<|im_end|>", "1:Second.<|im_end|>"));
  turns[3].loss_weight = 0.25;
  EXPECT_THAT(list_weighted_answers(chat_template.render(turns, false)),
              ElementsAre("0.25:First.<|im_end|>Second.<|im_end|>"));
}

/// A block that begins with text of the template, as with empty reasoning.
TEST(Agents, GenerationBlocksHaveTheWeightsOfTheirAnswers) {
  const ChatTemplate chat_template(
      {.jinja_source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
                       "{% generation %}<think></think>{{ m.content }}<|im_end|>\n{% endgeneration %}"
                       "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
                       "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
       .name = "blocks",
       .is_checkpoint_default = true},
      {}, load_golden_tokenizer("qwen2"));
  std::vector<Turn> turns{
      {Role::kUser, "Q"}, {Role::kAssistant, "First."}, {Role::kUser, "R"}, {Role::kAssistant, "Second."}};
  EXPECT_THAT(list_weighted_answers(chat_template.render(turns, false)),
              ElementsAre("1:<think></think>First.<|im_end|>\n", "1:<think></think>Second.<|im_end|>\n"));
  turns[1].loss_weight = 0.5;
  EXPECT_THAT(list_weighted_answers(chat_template.render(turns, false)),
              ElementsAre("0.5:<think></think>First.<|im_end|>\n", "1:<think></think>Second.<|im_end|>\n"));
  turns[1].loss_weight = 0;
  EXPECT_THAT(list_weighted_answers(chat_template.render(turns, false)),
              ElementsAre("1:<think></think>Second.<|im_end|>\n"));
}

TEST(Agents, TokensHaveTheWeightsOfTheirAnswers) {
  const std::string text = "Q: a A: b Q: c A: d";
  const Encoding encoding = load_golden_tokenizer("qwen2").encode(text);
  const std::vector<TextSpan> answers{{8, 9}, {18, 19}};
  EXPECT_TRUE(compute_label_weights(encoding, text, answers, {}).empty());
  const std::vector<float> weights = compute_label_weights(encoding, text, answers, std::vector<float>{0.5, 1});
  const std::vector<char> mask = compute_label_mask(encoding, text, answers);
  ASSERT_EQ(weights.size(), encoding.ids.size());
  std::vector<float> label_weights;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] != 0) {
      label_weights.push_back(weights[i]);
    } else {
      EXPECT_EQ(weights[i], 0) << i;
    }
  }
  EXPECT_THAT(label_weights, ElementsAre(0.5F, 1.0F));
}

}  // namespace
}  // namespace vlmtrain::text
