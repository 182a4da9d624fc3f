#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "io/record/keys/key_rules.h"
#include "io/record/record_reader.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Record read(std::string_view record, const RecordSettings& settings = {}) {
  return RecordReader(settings, "").read(RecordJson::parse(record), "r");
}

/// Returns a record of a question and its answer with these keys.
Record read_with_keys(std::string_view keys, const RecordSettings& settings = {}) {
  return read(fmt::format(R"({{"question": "Q", "answer": "A", {}}})", keys), settings);
}

/// Returns a record whose assistant turn has these keys.
Record read_with_answer_keys(std::string_view keys, const RecordSettings& settings = {}) {
  return read(fmt::format(R"({{"conversations": [{{"from": "human", "value": "Q"}},
                              {{"from": "gpt", "value": "A", {}}}]}})",
                          keys),
              settings);
}

/// Returns a record whose user turn has this content.
Record read_with_content(std::string_view content, std::string_view keys = R"("id": "x")") {
  return read(fmt::format(R"({{{}, "messages": [{{"role": "user", "content": {}}},
                              {{"role": "assistant", "content": "A"}}]}})",
                          keys, content));
}

std::string get_first_text(const Record& record) {
  EXPECT_EQ(record.problem, "");
  return record.problem.empty() ? record.turns.front().text : "";
}

auto has_key_and_suggestion(std::string_view key) {
  return AllOf(HasSubstr(fmt::format("\"{}\"", key)), HasSubstr("data.ignore_keys"));
}

TEST(RecordKeys, SwitchesOfAnswersAreRead) {
  for (const std::string_view keys :
       {R"("weight": 0)", R"("train": false)", R"("training": false)", R"("loss": false)", R"("loss": 0.0)",
        R"("mask": true)", R"("masked": 1)", R"("loss_mask": 0)", R"("train": "false")"}) {
    const std::string key(keys.substr(1, keys.find('"', 1) - 1));
    const Record record = read_with_answer_keys(keys);
    EXPECT_EQ(record.problem, "") << keys;
    EXPECT_EQ(record.turns.at(1).loss_weight, 0) << keys;
    EXPECT_EQ(read_with_answer_keys(keys, {.ignore_keys = {key}}).turns.at(1).loss_weight, 1) << keys;
  }
  for (const std::string_view keys : {R"("weight": 1)", R"("train": true)", R"("mask": false)", R"("loss": null)"}) {
    EXPECT_EQ(read_with_answer_keys(keys).turns.at(1).loss_weight, 1) << keys;
  }
}

TEST(RecordKeys, OtherLossMasksAreProblems) {
  for (const std::string_view keys : {R"("weight": 2)", R"("weight": -1)", R"("loss": "some")",
                                      R"("train_detail": [{"begin_offset": 0, "end_offset": 3, "train": false}])"}) {
    const std::string_view key = keys.substr(1, keys.find('"', 1) - 1);
    const Record record = read_with_answer_keys(keys);
    EXPECT_THAT(record.problem, AllOf(has_key_and_suggestion(key), HasSubstr("turn 2 has"),
                                      HasSubstr("not true, false or a number from 0 to 1")));
    EXPECT_EQ(read_with_answer_keys(keys, {.ignore_keys = {std::string(key)}}).problem, "") << key;
  }
  for (const std::string_view keys :
       {R"("loss_mask": [1, 0])", R"("loss_scale": 0.1)", R"("assistant_masks": [0, 1])", R"("weight": 0)",
        R"("weight": 0.25)", R"("train": false)", R"("kto_tag": false)"}) {
    EXPECT_THAT(read_with_keys(keys).problem, HasSubstr("data.ignore_keys")) << keys;
  }
}

TEST(RecordKeys, ValuesThatChangeNothingAreNotReported) {
  for (const std::string_view keys :
       {R"("weight": 1)", R"("weight": 1.0)", R"("weight": null)", R"("train": true)", R"("training": true)",
        R"("loss": true)", R"("mask": false)", R"("masked": 0)", R"("tool_calls": [])", R"("tool_calls": null)",
        R"("function_call": {"name": null, "arguments": null})", R"("reasoning_content": "")", R"("unknown": null)",
        R"("unknown": "")", R"("unknown": [])", R"("unknown": {})", R"("images": [])", R"("thinking": [null])"}) {
    const Record record = read_with_answer_keys(keys);
    EXPECT_EQ(record.problem, "") << keys;
    EXPECT_THAT(record.notices, IsEmpty()) << keys;
  }
  for (const std::string_view keys :
       {R"("tools": [])", R"("tools": "[]")", R"("tools": null)", R"("system_prompt": "")", R"("image_path": null)",
        R"("weight": 1)", R"("train": true)", R"("kto_tag": true)", R"("audio": [])", R"("chat_template_kwargs": {})",
        R"("chosen": null)"}) {
    const Record record = read_with_keys(keys);
    EXPECT_EQ(record.problem, "") << keys;
    EXPECT_THAT(record.notices, IsEmpty()) << keys;
  }
  EXPECT_EQ(read(R"({"messages": [{"role": "user", "content": "Q", "weight": 0, "train": false},
                                  {"role": "assistant", "content": "A"}]})")
                .problem,
            "")
      << "only answers are learned";
}

TEST(RecordKeys, OtherToolsReasoningAndSystemTextsAreProblems) {
  for (const std::string_view keys :
       {R"("function_call": {"name": "f", "arguments": "{}"})", R"("thought": "I count.")", R"("system": "Be brief.")",
        R"("tools": [{"name": "f"}])"}) {
    const std::string_view key = keys.substr(1, keys.find('"', 1) - 1);
    EXPECT_THAT(read_with_answer_keys(keys).problem, AllOf(HasSubstr("turn 2"), has_key_and_suggestion(key)));
  }
  for (const std::string_view keys :
       {R"("functions": [{"name": "f"}])", R"("reasoning": "I count.")", R"("tool_calls": [{"name": "f"}])",
        R"("system_prompt": "Be brief.")", R"("system_message": ["Be brief."])"}) {
    const std::string_view key = keys.substr(1, keys.find('"', 1) - 1);
    EXPECT_THAT(read_with_keys(keys).problem, has_key_and_suggestion(key));
    EXPECT_EQ(read_with_keys(keys, {.ignore_keys = {std::string(key)}}).problem, "");
  }
  EXPECT_THAT(read_with_keys(R"("system_prompt": "S")").problem, HasSubstr("data.columns={system: system_prompt}"));
}

TEST(RecordKeys, UnreadAnswersAreProblemsWithoutAFinalAnswer) {
  const std::string_view turns = R"("conversations": [{"from": "human", "value": "P"}, {"from": "gpt", "value": "B"},
                                                      {"from": "human", "value": "Q"}])";
  EXPECT_THAT(read(fmt::format(R"({{{}, "chosen": {{"from": "gpt", "value": "A"}}}})", turns)).problem,
              has_key_and_suggestion("chosen"));
  const Record sft = read_with_keys(R"("chosen": "A", "rejected": "B")");
  EXPECT_EQ(sft.problem, "");
  EXPECT_THAT(sft.notices, SizeIs(2));
}

TEST(RecordKeys, MediaUnderKeysThatAreNotReadAreProblems) {
  for (const std::string_view keys :
       {R"("image_path": "p.png")", R"("img": "p.png")", R"("image_url": "https://x/p.png")",
        R"("picture": {"path": "p"})", R"("photo": ["p.png"])", R"("scan": "a/b.JPEG")",
        R"("view": {"bytes": null, "path": "p.png"})", R"("file_name": "p.webp")",
        R"("encoded": "data:image/png;base64,AAAA")", R"("image_1": "p.png")", R"("img2": "p.png")"}) {
    const std::string_view key = keys.substr(1, keys.find('"', 1) - 1);
    EXPECT_THAT(read_with_keys(keys).problem, AllOf(HasSubstr("an image"), has_key_and_suggestion(key)));
    EXPECT_EQ(read_with_keys(keys, {.ignore_keys = {std::string(key)}}).problem, "") << key;
  }
  EXPECT_THAT(read_with_keys(R"("img": "p.png")").problem, HasSubstr("data.columns={image: img}"));
  EXPECT_THAT(read_with_keys(R"("photo": ["p.png"])").problem, HasSubstr("data.columns={images: photo}"));
  EXPECT_THAT(read_with_keys(R"("image_1": "p.png", "image_2": "q.png")").problem, HasSubstr("under \"images\""));
  EXPECT_THAT(read_with_keys(R"("clip": "a.mp4")").problem, HasSubstr("data.columns={video: clip}"));
  EXPECT_THAT(read_with_keys(R"("video_path": "clips/a")").problem, has_key_and_suggestion("video_path"));
  EXPECT_THAT(read_with_keys(R"("audio_path": "a.wav")").problem, has_key_and_suggestion("audio_path"));
  EXPECT_THAT(read_with_keys(R"("image": "a.png", "image_2": "b.png")").problem, has_key_and_suggestion("image_2"));
  EXPECT_THAT(read(R"({"img": "p.png", "conversations": [{"from": "human", "value": "<image>\nQ"},
                      {"from": "gpt", "value": "A"}]})")
                  .problem,
              has_key_and_suggestion("img"))
      << "instead of a placeholder without an image";
  EXPECT_THAT(read(R"({"img": "p.png", "caption": "C"})").problem, has_key_and_suggestion("img"));
}

TEST(RecordKeys, ExtraMediaKeysAreNotices) {
  for (const std::string_view keys :
       {R"("image": "a.png", "image_path": "data/a.png")", R"("images": ["a.png"], "depth": "a_depth.png")",
        R"("video": "a.mp4", "thumbnail": "a.jpg")"}) {
    const Record record = read_with_keys(keys);
    EXPECT_EQ(record.problem, "") << keys;
    EXPECT_THAT(record.notices, SizeIs(1)) << keys;
  }
  for (const std::string_view keys : {R"("page": "https://x/a.png")", R"("remark": "see a.png")", R"("img": 3)"}) {
    EXPECT_EQ(read_with_keys(keys).problem, "") << keys;
  }
  EXPECT_THAT(read_with_keys(R"("img": "p.png")", {.columns = {{"image", "img"}}}).images, ElementsAre("p.png"));
}

TEST(RecordKeys, OtherKeysAreNoticesOncePerKind) {
  const Record record = read(R"({"id": 3, "source": "s", "quality": [1, 2], "weight": 72.5, "volume": 3,
      "messages": [{"role": "user", "name": "Ann", "content": [{"type": "text", "text": "Q", "lang2": "en"}]},
                   {"role": "assistant", "name": "Bob", "content": "A"}]})");
  EXPECT_EQ(record.problem, "");
  const Notice quality{.kind = "key \"quality\" of a record", .example = "[1, 2]"};
  const Notice name{.kind = "key \"name\" of a turn", .example = "\"Ann\""};
  const Notice block{.kind = "key \"lang2\" of a content block of type \"text\"", .example = "\"en\""};
  const Notice weight{.kind = "key \"weight\" of a record", .example = "72.5"};
  const Notice volume{.kind = "key \"volume\" of a record", .example = "3"};
  EXPECT_THAT(record.notices, testing::UnorderedElementsAre(quality, name, block, weight, volume));
  const Record both = read(R"({"question": "Q", "messages": [{"role": "user", "content": "R"},
                               {"role": "assistant", "content": "A"}], "category": ["x"], "task": {"x": 1}})");
  EXPECT_THAT(both.notices, SizeIs(3)) << "an unused question, and a category and a task that are not text";
  EXPECT_THAT(read_with_keys(R"("images": [{"path": "a.png", "crop": [0, 0, 2, 2]}])").notices, SizeIs(1));
  const Record long_value = read_with_keys(fmt::format(R"("blob": "{}")", std::string(100'000, 'x')));
  EXPECT_LT(long_value.notices.at(0).example.size(), 200);
}

TEST(RecordKeys, OrdinaryRecordsOfPublishedDataSetsAreNotReported) {
  for (const std::string_view record :
       {R"({"id": "000", "image": "a.jpg", "data_source": "coco", "conversations": [
            {"from": "human", "value": "<image>\nQ"}, {"from": "gpt", "value": "A"}]})",
        R"({"images": [{"bytes": null, "path": "a.png"}], "source": "s", "texts": [
            {"user": "Q", "assistant": "A", "source": "ai2d"}]})",
        R"({"images": ["a.png"], "messages": [
            {"role": "user", "content": [{"index": null, "text": "Q", "type": "text"}, {"index": 0, "text": null, "type": "image"}]},
            {"role": "assistant", "content": [{"index": null, "text": "A", "type": "text"}]}]})",
        R"({"image": "a.jpg", "question_id": 3, "question": "Q", "answer": "A", "answer_type": "CLOSED"})",
        R"({"image": "a.jpg", "width": 3, "height": 4, "conversations": [
            {"from": "human", "value": "<image>\nQ"}, {"from": "gpt", "value": "A"}]})"}) {
    const Record read_record = read(record);
    EXPECT_EQ(read_record.problem, "") << record;
    EXPECT_THAT(read_record.notices, IsEmpty()) << record;
  }
}

TEST(RecordKeys, BlocksWithExtraContentAreProblems) {
  EXPECT_THAT(read_with_content(R"([{"type": "image", "image": "p.png", "text": "T"}])").problem,
              has_key_and_suggestion("text"));
  EXPECT_THAT(read_with_content(R"([{"type": "text", "text": "T", "image": "p.png"}])").problem,
              HasSubstr("\"image\" too"));
  EXPECT_THAT(read_with_content(R"([{"type": "text", "text": null, "content": "T"}])").problem,
              has_key_and_suggestion("content"));
  EXPECT_THAT(read_with_content(R"([{"type": "image", "image": "p.png", "url": "q.png"}])").problem,
              HasSubstr("two files"));
  for (const std::string_view key : {"video_start", "video_end"}) {
    EXPECT_THAT(read_with_content(fmt::format(R"([{{"type": "video", "video": "p.mp4", "{}": 2}}])", key)).problem,
                has_key_and_suggestion(key));
  }
  for (const std::string_view key : {"max_pixels", "fps", "nframes", "resized_height"}) {
    const Record record = read_with_content(fmt::format(R"([{{"type": "video", "video": "p.mp4", "{}": 2}}])", key));
    EXPECT_EQ(record.problem, "") << key << ": transformers ignores it too";
    EXPECT_THAT(record.notices, SizeIs(1)) << key;
  }
  EXPECT_THAT(
      read_with_content(R"([{"type": "image", "index": 1}, {"type": "text", "text": "Q"}])", R"("images": ["p.png"])")
          .problem,
      HasSubstr("\"index\": 1"));
}

TEST(RecordKeys, Base64IsDecoded) {
  const auto get_bytes = [](const Record& record) {
    EXPECT_EQ(record.problem, "");
    return record.problem.empty() ? *record.images.at(0).bytes : "";
  };
  for (const std::string_view block :
       {R"({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}})",
        R"({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}})",
        R"({"type": "image", "base64": "aGk="})", R"({"type": "image", "image_base64": "aGk="})",
        R"({"type": "image", "image": {"data": "aGk="}})"}) {
    EXPECT_EQ(get_bytes(read_with_content(fmt::format("[{}]", block))), "hi") << block;
  }
  const std::string png = "iVBORw0KGgo" + std::string(69, 'A');
  EXPECT_THAT(get_bytes(read_with_keys(fmt::format(R"("image": "{}")", png))), HasSubstr("PNG"));
  EXPECT_EQ(get_bytes(read_with_keys(R"("image_base64": "data:image/png;base64,aGk=")",
                                     {.columns = {{"image", "image_base64"}}})),
            "hi");
  EXPECT_THAT(read_with_content(R"([{"type": "image", "base64": "a!"}])").problem, HasSubstr("are invalid"));
}

TEST(RecordKeys, BlocksWithoutATypeAreReadByTheirKey) {
  EXPECT_EQ(get_first_text(read_with_content(R"([{"image": "p.png"}, {"text": "Q"}])")), "<image>Q");
  EXPECT_EQ(get_first_text(read_with_content(R"([{"type": null, "video": "p.mp4"}, {"text": 5}])")), "<video>5");
  EXPECT_EQ(get_first_text(read_with_content(R"([{"image_url": {"url": "p.png"}, "text": null}])")), "<image>");
  EXPECT_EQ(get_first_text(read_with_content(
                R"([{"type": "input_text", "text": "Q"}, {"type": "input_image", "image_url": "p.png"}])")),
            "Q<image>");
  EXPECT_EQ(get_first_text(
                read_with_content(R"([{"type": "text", "text": null, "image": null}, {"type": "text", "text": "Q"}])")),
            "Q");
  EXPECT_THAT(read_with_content(R"([{"image": "p.png", "text": "Q"}])").problem, HasSubstr("no \"type\""));
}

TEST(RecordKeys, BoxMarksMustMatchTheBoxes) {
  const auto boxes = [](std::string_view question) {
    return read(fmt::format(
        R"({{"question": "{}", "answer": "A", "objects": {{"ref": ["cat"], "bbox": [[0, 0, 1, 1]]}}}})", question));
  };
  EXPECT_THAT(boxes("Find <ref-object>").problem, has_key_and_suggestion("objects"));
  EXPECT_THAT(boxes("At <bbox>?").problem, has_key_and_suggestion("objects"));
  EXPECT_EQ(boxes("Where?").problem, "");
  EXPECT_THAT(boxes("Where?").notices, SizeIs(1));
}

TEST(RecordKeys, DocumentationNamesEveryKeyThatIsAProblem) {
  std::ifstream file(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "docs/reference/data-formats.md");
  const std::string docs{std::istreambuf_iterator<char>(file), {}};
  for (const KeyScope scope : {KeyScope::kRecord, KeyScope::kTurn, KeyScope::kBlock}) {
    for (const KeyEntry& key : get_key_entries(scope)) {
      if (key.rule == KeyRule::kRead) continue;
      const bool is_listed = docs.find(fmt::format("`{}`", key.name)) != std::string::npos;
      EXPECT_TRUE(is_listed || key.rule == KeyRule::kHarmless) << key.name;
      EXPECT_EQ(key.rule == KeyRule::kHarmless, !key.reason.empty()) << key.name;
      EXPECT_EQ(get_key_rule(scope, key.name), key.rule) << key.name;
    }
  }
}

TEST(RecordKeys, IgnoredKeysAreLeftOutAtEveryDepth) {
  const std::string_view record = R"({"tools": [1], "messages": [
      {"role": "user", "content": [{"type": "image", "image": "p.png", "max_pixels": 9}], "name": "Ann"},
      {"role": "assistant", "content": "A", "weight": 0}]})";
  const Record read_record = read(record, {.ignore_keys = {"tools", "max_pixels", "weight", "name"}});
  EXPECT_EQ(read_record.problem, "");
  EXPECT_THAT(read_record.notices, IsEmpty());
  EXPECT_NE(RecordReader({.ignore_keys = {"tools"}}, "").version_hash(), RecordReader({}, "").version_hash());
}

}  // namespace
}  // namespace vlmtrain::io
