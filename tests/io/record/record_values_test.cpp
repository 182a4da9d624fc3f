#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/dataset/record_files.h"
#include "io/record/record_reader.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Record read_record(std::string_view value) {
  return RecordReader({}, "").read(RecordJson::parse(value), "r");
}

Record read_with_question(std::string_view keys, std::string_view question = "Q") {
  return read_record(
      fmt::format(R"({{{}, "conversations": [{{"from": "human", "value": "{}"}}, {{"from": "gpt", "value": "A"}}]}})",
                  keys, question));
}

Record read_with_turn(std::string_view keys, std::string_view record_keys = R"("id": 1)") {
  return read_record(fmt::format(
      R"({{{}, "messages": [{{"role": "user", {}}}, {{"role": "assistant", "content": "A"}}]}})", record_keys, keys));
}

TEST(RecordValues, NoValueIsDroppedForItsType) {
  const auto alpaca = [](std::string_view keys) {
    return read_record(fmt::format(R"({{"instruction": "I", "output": 42, {}}})", keys));
  };
  EXPECT_EQ(alpaca(R"("input": 21)").turns.at(0).text, "I\n21");
  EXPECT_EQ(alpaca(R"("input": "21")").turns.at(0).text, "I\n21");
  EXPECT_EQ(alpaca(R"("input": true)").turns.at(1).text, "42");
  EXPECT_EQ(alpaca(R"("input": null)").turns.at(0).text, "I");
  EXPECT_THAT(alpaca(R"("input": ["x"])").problem, HasSubstr("its \"input\" is neither"));
  EXPECT_THAT(alpaca(R"("history": {"q": "a"})").problem, HasSubstr("its \"history\" is not a list"));
  EXPECT_THAT(alpaca(R"("history": "q")").problem, HasSubstr("its \"history\" is not a list"));
  EXPECT_EQ(alpaca(R"("history": {})").problem, "");

  EXPECT_EQ(read_with_question(R"("system": ["Be brief.", "Be kind."])").turns.at(0).text, "Be brief.\nBe kind.");
  EXPECT_EQ(read_with_question(R"("system": [{"type": "text", "text": "Be brief."}])").turns.at(0).text, "Be brief.");
  EXPECT_EQ(read_with_question(R"("system": 5)").turns.at(0).text, "5");
  EXPECT_EQ(read_with_question(R"("system": [""])").turns.at(0).role, Role::kUser);
  EXPECT_THAT(read_with_question(R"("system": {"text": "Be brief."})").problem, HasSubstr("\"system\" is neither"));

  EXPECT_EQ(read_with_question(R"("id": 1.5)").id, "1.5");
  EXPECT_EQ(read_with_question(R"("id": {"$oid": "ab"})").id, R"({"$oid": "ab"})");
  EXPECT_EQ(read_with_question(R"("id": "")").id, "r");
  EXPECT_EQ(read_with_question(R"("task": 3)").task, "3");
  EXPECT_THAT(read_with_turn(R"("value": "Q", "content": "R")").problem, HasSubstr("which differ"));
  EXPECT_EQ(read_with_turn(R"("value": null, "content": "R")").turns.at(0).text, "R");
  EXPECT_THAT(read_with_turn(R"("from": "gpt", "content": "R")").problem, HasSubstr("keep one"));
}

TEST(RecordValues, BlankValuesAreNotMedia) {
  for (const std::string_view keys :
       {R"("image": "")", R"("image": [""])", R"("images": [null])", R"("image": {"bytes": null, "path": null})",
        R"("image": null, "images": [])", R"("images": [{"bytes": null, "path": null}])", R"("video": "")",
        R"("videos": [])", R"("volume": "")"}) {
    const Record record = read_with_question(keys);
    EXPECT_EQ(record.problem, "") << keys;
    EXPECT_THAT(record.images, IsEmpty()) << keys;
    EXPECT_THAT(record.videos, IsEmpty()) << keys;
    EXPECT_THAT(record.notices, IsEmpty()) << keys;
  }
  EXPECT_THAT(read_with_question(R"("image": "p.png", "images": [])").images, ElementsAre("p.png"));
  EXPECT_THAT(read_with_question(R"("image": "p.png", "images": ["p.png"])").images, ElementsAre("p.png"));
  EXPECT_THAT(read_with_question(R"("image": "p.png", "video": "")").images, ElementsAre("p.png"));
  EXPECT_THAT(read_with_question(R"("images": [null, "p.png"])").images, ElementsAre("p.png"));
}

TEST(RecordValues, MediaOfTurnsAreRead) {
  const Record with_placeholder = read_with_turn(R"("content": "See <image>?", "image": "p.png")");
  EXPECT_EQ(with_placeholder.problem, "");
  EXPECT_THAT(with_placeholder.images, ElementsAre("p.png"));
  EXPECT_EQ(with_placeholder.turns.at(0).text, "See <image>?");
  const Record without_placeholder = read_with_turn(R"("content": "Compare.", "images": ["p.png", "q.png"])");
  EXPECT_EQ(without_placeholder.turns.at(0).text, "<image><image>\nCompare.");
  EXPECT_THAT(without_placeholder.images, ElementsAre("p.png", "q.png"));
  EXPECT_THAT(read_with_turn(R"("content": "Q", "video": "v.mp4")").videos, ElementsAre("v.mp4"));
  EXPECT_TRUE(read_with_turn(R"("content": "Q", "volume": "v.nii")").images.at(0).is_volume);
  EXPECT_THAT(read_with_turn(R"("content": "<image><image>", "image": "p.png")").problem,
              HasSubstr("turn 1 has 2 <image> placeholders"));
  EXPECT_THAT(read_with_turn(R"("content": "Q", "images": ["p.png"])", R"("images": ["p.png"])").images,
              ElementsAre("p.png"))
      << "the record's list repeats those of the turns";
  const Record two_turns = read_record(R"({"conversations": [
      {"from": "human", "value": "Q", "image": "a.png"}, {"from": "gpt", "value": "A"},
      {"from": "human", "value": "R", "image": "b.png"}, {"from": "gpt", "value": "B"}]})");
  EXPECT_THAT(two_turns.images, ElementsAre("a.png", "b.png"));
  EXPECT_EQ(two_turns.turns.at(2).text, "<image>\nR");
  EXPECT_THAT(read_record(R"({"conversations": [{"from": "human", "value": "Q"},
                          {"from": "gpt", "value": "A", "image": "a.png"}]})")
                  .problem,
              HasSubstr("turn 2 is the assistant's and has an image"));
}

TEST(RecordValues, AListThatRepeatsTheBlocksIsReadOnce) {
  const std::string_view block = R"("content": [{"type": "image", "image": "p.png"}, {"type": "text", "text": "Q"}])";
  EXPECT_THAT(read_with_turn(block, R"("images": ["p.png"])").images, ElementsAre("p.png"));
  EXPECT_THAT(read_with_turn(block, R"("image": "p.png")").images, ElementsAre("p.png"));
  EXPECT_THAT(read_with_turn(R"("content": [{"type": "image", "image": "p.png"}, {"type": "image"}])",
                             R"("images": ["p.png", "q.png"])")
                  .images,
              ElementsAre("p.png", "q.png"));
  EXPECT_THAT(read_with_turn(block, R"("images": ["q.png"])").problem,
              HasSubstr("has 0 <image> placeholders for 1 image"));
}

TEST(RecordValues, APlaceholderInsideASentenceIsText) {
  const auto is_word = [](const Record& record) {
    EXPECT_EQ(record.problem, "");
    return record.problem.empty() && !record.turns.at(0).literal_placeholder_offsets.empty();
  };
  const Record word = read_with_turn(R"("content": "What does the <image> tag do?")");
  EXPECT_TRUE(is_word(word));
  EXPECT_THAT(word.turns.at(0).literal_placeholder_offsets, ElementsAre(14));
  EXPECT_THAT(find_placeholders(word.turns.at(0)), IsEmpty());
  EXPECT_THAT(word.notices, SizeIs(1));
  EXPECT_TRUE(is_word(read_with_turn(R"("content": "Is <video> a word?")")));
  const Record block = read_with_turn(
      R"("content": [{"type": "image", "image": "p.png"}, {"type": "text", "text": "<image> is a tag, <image> is."}])");
  EXPECT_TRUE(is_word(block));
  EXPECT_THAT(find_placeholders(block.turns.at(0)), ElementsAre(MediaPlaceholder{.begin = 0, .is_video = false}));
  EXPECT_THAT(block.turns.at(0).literal_placeholder_offsets, ElementsAre(7, 25));
  EXPECT_THAT(block.notices, IsEmpty()) << "the blocks have the media";
  const Record answer = read_record(R"({"conversations": [{"from": "human", "value": "Which tag?"},
                                     {"from": "gpt", "value": "Write <image> there."}]})");
  EXPECT_EQ(answer.problem, "");
  EXPECT_THAT(answer.turns.at(1).literal_placeholder_offsets, ElementsAre(6));
  EXPECT_THAT(read_with_question(R"("id": 1)", "<image>\\nQ").problem,
              HasSubstr("has 1 <image> placeholder for 0 images"))
      << "the placeholder of a missing image";
  EXPECT_THAT(read_with_question(R"("image": "p.png")", "The <image> and <image> there").problem,
              HasSubstr("has 2 <image> placeholders"));
}

TEST(RecordValues, FrameRatesOfListsOfFramesAreRead) {
  constexpr std::string_view kFrames = R"(["0.jpg", "1.jpg"])";
  EXPECT_EQ(read_with_question(fmt::format(R"("video": {}, "fps": 0.5)", kFrames)).videos.at(0).fps, 0.5);
  EXPECT_EQ(read_with_question(fmt::format(R"("videos": [{0}, {0}], "fps": [1, 2])", kFrames)).videos.at(1).fps, 2);
  EXPECT_EQ(read_with_turn(fmt::format(R"("content": [{{"type": "video", "video": {}, "fps": 4}}])", kFrames))
                .videos.at(0)
                .fps,
            4);
  EXPECT_EQ(read_with_turn(fmt::format(R"("content": "Q", "video": {}, "fps": 3)", kFrames)).videos.at(0).fps, 3);
  EXPECT_THAT(read_with_question(fmt::format(R"("video": {}, "fps": "slow")", kFrames)).problem, HasSubstr("\"fps\""));
  EXPECT_THAT(read_with_question(fmt::format(R"("videos": [{}], "fps": [1, 2])", kFrames)).problem,
              HasSubstr("2 entries for 1"));
  EXPECT_EQ(read_with_question(R"("video": "frames/a", "fps": 30)").videos.at(0).fps, 30) << "it may be a folder";
  const Record file = read_with_question(R"("video": "a.mp4", "fps": 30)");
  EXPECT_EQ(file.problem, "");
  EXPECT_THAT(file.notices, SizeIs(1)) << "the file has its own";
}

TEST(RecordValues, TheFirstProblemIsReported) {
  const auto read_turns = [](std::string_view second, std::string_view third, std::string_view keys = "\"id\": 1") {
    return read_record(fmt::format(
        R"({{{}, "messages": [{{"role": "user", "content": "Q"}}, {{"role": "assistant", {}}}, {{"role": "user", {}}}]}})",
        keys, second, third));
  };
  constexpr std::string_view kBadKey = R"("content": "A", "thought": "T")", kBadContent = R"("content": {"x": 1})";
  const Record bad_key_first = read_turns(kBadKey, kBadContent);
  EXPECT_THAT(bad_key_first.problem, HasSubstr("turn 2 has reasoning under \"thought\""));
  EXPECT_THAT(bad_key_first.turns, SizeIs(1)) << "the turns before the problem";
  EXPECT_THAT(read_turns(kBadContent, kBadKey).problem, HasSubstr("turn 2: its text is neither"));
  EXPECT_THAT(read_turns(kBadContent, R"("content": "Q", "foo": 1)").notices, IsEmpty())
      << "keys are checked as far as the record was read";
  constexpr std::string_view kBadBlocks =
      R"("content": [{"type": "text", "text": "A", "caption": "C"}, {"type": "sound"}])";
  EXPECT_THAT(read_turns(kBadBlocks, kBadContent).problem, HasSubstr("\"caption\""));
  EXPECT_THAT(read_turns(kBadKey, kBadContent, R"("system_prompt": "S")").problem, HasSubstr("\"thought\""));
  EXPECT_THAT(read_turns(kBadKey, kBadContent, R"("img": "p.png")").problem, HasSubstr("\"img\""))
      << "a missing image may be the cause of any problem";
}

TEST(RecordValues, ReadsPythonNumbers) {
  const auto value = parse_record_json(R"({"a": NaN, "b": [Infinity, -Infinity, "NaN \" Infinity"], "c": 1})");
  ASSERT_TRUE(value);
  EXPECT_TRUE((*value)["a"].is_null());
  EXPECT_EQ((*value)["b"], RecordJson({"Infinity", "-Infinity", "NaN \" Infinity"}));
  EXPECT_FALSE(parse_record_json(R"({"a": Nan})"));
  EXPECT_FALSE(parse_record_json(R"({"a": NaN)"));
  EXPECT_EQ(zero_non_finite_literals(R"([NaN, -Infinity, "NaN"])"), R"([0.0, -0.000000, "NaN"])");
}

TEST(RecordValues, ReportsOtherJsonValues) {
  EXPECT_THAT(read_record(R"([{"question": "Q", "answer": "A"}])").problem, HasSubstr("is a list of records"));
  EXPECT_THAT(read_record(R"([{"role": "user", "content": "Q"}])").problem, HasSubstr("is a list of turns"));
  EXPECT_THAT(read_record("3").problem, HasSubstr("is not a JSON object"));
}

}  // namespace
}  // namespace vlmtrain::io
