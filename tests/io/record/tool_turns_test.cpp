#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>
#include <string_view>

#include "io/record/record_reader.h"
#include "io/record/turns.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

/// Reads a record with these turns and these other keys.
Record read_turns(std::string_view turns, std::string_view keys = "") {
  return RecordReader({}, "").read(RecordJson::parse(fmt::format(R"({{{} "messages": [{}]}})", keys, turns)), "r");
}

constexpr std::string_view kCallAndOutput =
    R"({"role": "user", "content": "Q"},
       {"role": "assistant", "content": null, "reasoning_content": "I look.", "tool_calls": [
         {"type": "function", "function": {"name": "zoom", "arguments": {"y": 2, "x": 1}}}]},
       {"role": "tool", "tool_call_id": "c1", "name": "zoom", "content": "a cat"},
       {"role": "assistant", "content": "A cat."})";

TEST(ToolTurns, MessagesKeepTheirFieldsInOrder) {
  const Record record =
      read_turns(kCallAndOutput, R"("tools": [{"type": "function", "function": {"name": "zoom", "a": 1}}],)");
  EXPECT_EQ(record.problem, "");
  EXPECT_THAT(record.notices, IsEmpty());
  ASSERT_THAT(record.turns, SizeIs(4));
  const Turn& call = record.turns[1];
  EXPECT_FALSE(call.has_content);
  EXPECT_TRUE(has_answer_fields(call));
  EXPECT_THAT(call.fields,
              ElementsAre(TemplateValue{"tool_calls", R"([{"type":"function","function":{"name":"zoom","arguments":)"
                                                      R"({"y":2,"x":1}}}])"},
                          TemplateValue{"reasoning_content", R"("I look.")"}));
  EXPECT_EQ(record.turns[2].role, Role::kTool);
  EXPECT_THAT(record.turns[2].fields,
              ElementsAre(TemplateValue{"tool_call_id", R"("c1")"}, TemplateValue{"name", R"("zoom")"}));
  EXPECT_THAT(record.template_variables,
              ElementsAre(TemplateValue{"tools", R"([{"type":"function","function":{"name":"zoom","a":1}}])"}));
}

TEST(ToolTurns, OtherTrainersFormsBecomeMessages) {
  const Record record = RecordReader({}, "").read(
      RecordJson::parse(R"({"tools": "[{\"name\": \"zoom\", \"parameters\": {}}]", "conversations": [
          {"from": "human", "value": "Q"},
          {"from": "function_call", "value": "{\"name\": \"zoom\", \"arguments\": {\"x\": 1}}"},
          {"from": "function_call", "value": "{\"name\": \"crop\"}"},
          {"from": "observation", "value": "a cat"},
          {"from": "gpt", "value": "A cat."}]})"),
      "r");
  EXPECT_EQ(record.problem, "");
  ASSERT_THAT(record.turns, SizeIs(4)) << "consecutive calls are one turn";
  EXPECT_THAT(
      record.turns[1].fields,
      ElementsAre(TemplateValue{"tool_calls", R"([{"type":"function","function":{"name":"zoom","arguments":{"x":1}}},)"
                                              R"({"type":"function","function":{"name":"crop","arguments":{}}}])"}));
  EXPECT_THAT(
      record.template_variables,
      ElementsAre(TemplateValue{"tools", R"([{"type":"function","function":{"name":"zoom","parameters":{}}}])"}));
}

TEST(ToolTurns, TemplateArgumentsBecomeVariables) {
  const std::string_view turns = R"({"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"})";
  EXPECT_THAT(read_turns(turns, R"("chat_template_kwargs": {"enable_thinking": false},)").template_variables,
              ElementsAre(TemplateValue{"enable_thinking", "false"}));
  EXPECT_THAT(read_turns(turns, R"("chat_template_kwargs": {"messages": [1]},)").problem, HasSubstr("\"messages\""));
  EXPECT_THAT(read_turns(turns, R"("chat_template_kwargs": [1],)").problem, HasSubstr("is not an object"));
}

TEST(ToolTurns, BadToolsAreProblems) {
  const std::string_view turns = R"({"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"})";
  EXPECT_THAT(read_turns(turns, R"("tools": "[{",)").problem,
              AllOf(HasSubstr("\"tools\" is not JSON"), HasSubstr("line 1")));
  EXPECT_THAT(read_turns(turns, R"("tools": "zoom",)").problem, HasSubstr("\"tools\" is not JSON"));
  EXPECT_THAT(read_turns(turns, R"("tools": [3],)").problem, HasSubstr("not a list of objects"));
  EXPECT_THAT(read_turns(R"({"role": "user", "content": "Q"}, {"role": "tool", "content": "a cat"},
                      {"role": "assistant", "content": "A"})")
                  .problem,
              AllOf(HasSubstr("turn 2 is the output of a tool"), HasSubstr("no tool call")));
  EXPECT_THAT(read_turns(R"({"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"},
                      {"role": "tool", "content": "a cat"}, {"role": "assistant", "content": "B"})")
                  .problem,
              HasSubstr("turn 3 is the output of a tool"));
  EXPECT_THAT(read_turns(R"({"role": "user", "content": "Q"}, {"role": "tool_call", "content": "zoom"})").problem,
              HasSubstr("turn 2: its tool call is not JSON"));
  EXPECT_THAT(
      read_turns(R"({"role": "user", "content": "Q"}, {"role": "tool_call", "content": {"function": "zoom"}})").problem,
      HasSubstr("not an object with \"name\""));
  EXPECT_THAT(
      read_turns(R"({"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", "tool_calls": {"a": 1}})")
          .problem,
      HasSubstr("\"tool_calls\" is not a list"));
  EXPECT_THAT(
      read_turns(
          R"({"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", "reasoning_content": ["x"]})")
          .problem,
      HasSubstr("\"reasoning_content\" is not a string"));
}

TEST(ToolTurns, CallsInTheTextPrecedeOutputsToo) {
  EXPECT_EQ(
      read_turns(R"({"role": "user", "content": "Q"}, {"role": "assistant", "content": "<tool_call>{}</tool_call>"},
                    {"role": "tool", "content": "a"}, {"role": "tool", "content": "b"},
                    {"role": "assistant", "content": "A"})")
          .problem,
      "");
}

TEST(ToolTurns, FieldsOfOtherRolesAreNotices) {
  const Record record = read_turns(R"({"role": "user", "content": "Q", "reasoning_content": "x", "name": "Ann"},
                                {"role": "assistant", "content": "A", "tool_call_id": "1"})");
  EXPECT_EQ(record.problem, "");
  EXPECT_THAT(record.notices, SizeIs(3));
}

}  // namespace
}  // namespace vlmtrain::io
