#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/dataset_test.h"
#include "io/temporary_folder.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(ReadDataset, ReadsLlava) {
  const Record record = read_one(R"({"id": "x-1", "image": "images/a.jpg", "answer_type": "OPEN", "conversations": [
      {"from": "system", "value": "Be brief."},
      {"from": "human", "value": "<image>\nWhere?"}, {"from": "gpt", "value": "Left"},
      {"from": "human", "value": "How many?"}, {"from": "gpt", "value": 3}]})");
  EXPECT_EQ(record.problem, "");
  EXPECT_EQ(record.id, "x-1");
  EXPECT_EQ(record.task, "OPEN");
  EXPECT_EQ(record.answer_type, "OPEN");
  EXPECT_EQ(record.location, "line 1");
  EXPECT_THAT(record.images, ElementsAre("images/a.jpg"));
  ASSERT_EQ(record.turns.size(), 5);
  EXPECT_EQ(record.turns[0].role, Role::kSystem);
  EXPECT_EQ(record.turns[1].role, Role::kUser);
  EXPECT_EQ(record.turns[1].text, "<image>\nWhere?");
  EXPECT_EQ(record.turns[4].role, Role::kAssistant);
  EXPECT_EQ(record.turns[4].text, "3");
}

TEST_F(ReadDataset, ReadsListsOfImagesAndNone) {
  EXPECT_THAT(read_one(R"({"image": ["a", "b"], "conversations": [{"from":"human","value":"<image><image>Q"},
                      {"from":"gpt","value":"A"}]})")
                  .images,
              ElementsAre("a", "b"));
  for (const char* absent_key : {"", R"("image": null,)", R"("images": [],)"}) {
    const Record record = read_one(fmt::format("{{{} {}", absent_key, kTextRecord.substr(1)));
    EXPECT_EQ(record.problem, "");
    EXPECT_THAT(record.images, IsEmpty());
    EXPECT_EQ(record.id, "train.llava:0");
    EXPECT_EQ(record.task, "");
  }
}

TEST_F(ReadDataset, ReadsShareGpt) {
  const Record record = read_one(R"({"images": ["a", "b"], "system": "S", "conversations": [
      {"from": "user", "value": "<image>Q"}, {"from": "assistant", "value": "A"},
      {"from": "user", "value": "<image>R"}, {"from": "assistant", "value": true}]})");
  EXPECT_EQ(record.problem, "");
  ASSERT_EQ(record.turns.size(), 5);
  EXPECT_EQ(record.turns[0].role, Role::kSystem);
  EXPECT_EQ(record.turns[0].text, "S");
  EXPECT_EQ(record.turns[4].text, "true");
  EXPECT_THAT(record.images, ElementsAre("a", "b"));
}

TEST_F(ReadDataset, ReadsMessagesWithContentBlocks) {
  const Record record = read_one(R"({"images": ["listed.png"], "messages": [
      {"role": "user", "content": [{"type": "text", "text": "Compare "}, {"type": "image"},
                                   {"type": "image_url", "image_url": {"url": "file:///data/b.png"}},
                                   {"type": "image", "image": "c.png"}, {"type": "image_url", "image_url": "d.png"}]},
      {"role": "assistant", "content": [{"type": "text", "text": "Same"}]}]})");
  EXPECT_EQ(record.problem, "");
  EXPECT_EQ(record.turns.at(0).text, "Compare <image><image><image><image>");
  EXPECT_EQ(record.turns.at(1).text, "Same");
  EXPECT_THAT(record.images, ElementsAre("listed.png", "/data/b.png", "c.png", "d.png"));
}

TEST_F(ReadDataset, ReadsVideosOfAllFormats) {
  const Record llava = read_one(R"({"video": "a.mp4", "conversations": [
      {"from": "human", "value": "<video>\nWhat?"}, {"from": "gpt", "value": "A car"}]})");
  EXPECT_EQ(llava.problem, "");
  EXPECT_THAT(llava.videos, ElementsAre("a.mp4"));
  EXPECT_THAT(llava.images, IsEmpty());
  EXPECT_EQ(llava.turns.at(0).text, "<video>\nWhat?");

  const Record share_gpt =
      read_one(R"({"videos": ["a.mp4", "file:///data/frames"], "images": ["c.png"], "conversations": [
      {"from": "human", "value": "<video><image><video>?"}, {"from": "gpt", "value": "A"}]})");
  EXPECT_EQ(share_gpt.problem, "");
  EXPECT_THAT(share_gpt.videos, ElementsAre("a.mp4", "/data/frames"));
  EXPECT_THAT(share_gpt.images, ElementsAre("c.png"));

  const Record messages = read_one(R"({"videos": ["listed.mp4"], "messages": [{"role": "user", "content": [
      {"type": "video"}, {"type": "image", "image": "i.png"}, {"type": "video", "video": "b.avi", "fps": 1},
      {"type": "video", "path": "c"}, {"type": "video", "url": "d"}, {"type": "video_url", "video_url": {"url": "e"}},
      {"type": "text", "text": "?"}]}, {"role": "assistant", "content": "A"}]})");
  EXPECT_EQ(messages.problem, "");
  EXPECT_EQ(messages.turns.at(0).text, "<video><image><video><video><video><video>?");
  EXPECT_THAT(messages.videos, ElementsAre("listed.mp4", "b.avi", "c", "d", "e"));
  EXPECT_THAT(messages.images, ElementsAre("i.png"));
}

TEST_F(ReadDataset, TreatsImagePlaceholdersAsVideosWithoutImages) {
  const Record record = read_one(R"({"video": ["a", "b"], "conversations": [
      {"from": "human", "value": "<image>\nFirst?"}, {"from": "gpt", "value": "A"},
      {"from": "human", "value": "And <image>?"}, {"from": "gpt", "value": "B"}]})");
  EXPECT_EQ(record.problem, "");
  EXPECT_EQ(record.turns.at(0).text, "<video>\nFirst?");
  EXPECT_EQ(record.turns.at(2).text, "And <video>?");
  EXPECT_THAT(record.images, IsEmpty());
  EXPECT_THAT(record.videos, ElementsAre("a", "b"));
}

TEST_F(ReadDataset, AddsMissingVideoPlaceholdersAfterImages) {
  const std::string turns = R"({"from":"human","value":"Q"},{"from":"gpt","value":"A"})";
  const Record record =
      read_one(fmt::format(R"({{"videos": ["a", "b"], "image": "c", "conversations": [{}]}})", turns));
  EXPECT_EQ(record.problem, "");
  EXPECT_EQ(record.turns.at(0).text, "<image><video><video>\nQ");
  EXPECT_THAT(record.videos, ElementsAre("a", "b"));
  const Record only_image_placeholder = read_one(R"({"video": "a", "image": "c", "conversations": [
      {"from":"human","value":"Q <image>"},{"from":"gpt","value":"A"}]})");
  EXPECT_EQ(only_image_placeholder.problem, "");
  EXPECT_EQ(only_image_placeholder.turns.at(0).text, "<video>\nQ <image>");
}

TEST_F(ReadDataset, PrependsMissingPlaceholders) {
  const Record record = read_one(R"({"image": ["a", "b"], "conversations": [{"from":"system","value":"S"},
                                {"from":"human","value":"Q"},{"from":"gpt","value":"A"}]})");
  EXPECT_EQ(record.problem, "");
  EXPECT_EQ(record.turns.at(1).text, "<image><image>\nQ");
}

TEST_F(ReadDataset, ReadsIdsAndTasks) {
  EXPECT_EQ(read_one(R"({"id": 42, "conversations": []})").id, "42");
  EXPECT_EQ(read_one(R"({"id": "", "conversations": []})").id, "train.llava:0");
  EXPECT_EQ(read_one(R"({"id": 1.5, "conversations": []})").id, "1.5");
  EXPECT_EQ(read_one(R"({"id": null, "kind": "k", "category": "c"})").task, "k");
  EXPECT_EQ(read_one(R"({"task": 3, "category": " c "})").task, "3");
  EXPECT_EQ(read_one(R"({"kind": 3, "category": " c "})").task, "c");
}

TEST_F(ReadDataset, ReadsQuestionsAndAnswers) {
  const Record plain = read_one(R"({"image": "a.jpg", "question": "Where?", "answer": 3, "task_type": " T2 "})");
  EXPECT_EQ(plain.problem, "");
  EXPECT_EQ(plain.task, "T2");
  ASSERT_EQ(plain.turns.size(), 2);
  EXPECT_EQ(plain.turns[0].text, "<image>\nWhere?");
  EXPECT_EQ(plain.turns[1].text, "3");

  const Record alpaca = read_one(R"({"system": "S", "instruction": "I", "input": "J", "output": "O",
                                "history": [["Q", "A"]]})");
  EXPECT_EQ(alpaca.problem, "");
  ASSERT_EQ(alpaca.turns.size(), 5);
  EXPECT_EQ(alpaca.turns[0].text, "S");
  EXPECT_EQ(alpaca.turns[1].text, "Q");
  EXPECT_EQ(alpaca.turns[2].text, "A");
  EXPECT_EQ(alpaca.turns[3].text, "I\nJ");
  EXPECT_EQ(alpaca.turns[4].text, "O");
  EXPECT_EQ(read_one(R"({"instruction": "I", "input": "", "output": "O"})").turns.at(0).text, "I");
  EXPECT_EQ(read_one(R"({"instruction": "", "input": "J", "output": "O"})").turns.at(0).text, "J");

  const Record cauldron = read_one(R"({"images": [{"bytes": null, "path": "a.png"}, {"path": "b.png"}],
      "texts": [{"user": "Q", "assistant": "A", "source": "s"}, {"user": "R", "assistant": "B"}]})");
  EXPECT_EQ(cauldron.problem, "");
  EXPECT_THAT(cauldron.images, ElementsAre("a.png", "b.png"));
  ASSERT_EQ(cauldron.turns.size(), 4);
  EXPECT_EQ(cauldron.turns[0].text, "<image><image>\nQ");
  EXPECT_EQ(cauldron.turns[3].text, "B");

  EXPECT_THAT(read_one(R"({"question": "Q"})").problem, HasSubstr("has no \"answer\""));
  EXPECT_THAT(read_one(R"({"question": null, "answer": "A"})").problem, HasSubstr("has no \"question\""));
  EXPECT_THAT(read_one(R"({"texts": 3})").problem, HasSubstr("\"texts\" is not a list"));
  EXPECT_THAT(read_one(R"({"texts": [3]})").problem, HasSubstr("an entry that is not an object"));
  EXPECT_THAT(read_one(R"({"output": "O", "input": "", "history": [["Q"]]})").problem, HasSubstr("\"history\""));
  EXPECT_THAT(read_one(R"({"texts": []})").problem, HasSubstr("is empty"));
}

TEST_F(ReadDataset, ReportsInvalidTurns) {
  const auto problem = [&](std::string_view turns) { return read_with_turns(turns).problem; };
  const std::string user = R"({"from":"human","value":"<image>Q"})";
  const std::string assistant = R"({"from":"gpt","value":"A"})";
  EXPECT_EQ(problem(user + "," + assistant), "");
  EXPECT_THAT(problem(""), HasSubstr("is empty: a question and its answer are expected"));
  EXPECT_THAT(problem("3"), HasSubstr("turn 1 is not a JSON object"));
  EXPECT_THAT(problem(R"({"value":"Q"})"), HasSubstr("turn 1 has no role"));
  EXPECT_THAT(problem(user + R"(,{"from":"bot","value":"A"})"), HasSubstr("turn 2 has the unknown role \"bot\""));
  EXPECT_THAT(problem(user + R"(,{"from":"gpt"})"), HasSubstr("turn 2 is empty"));
  EXPECT_THAT(problem(user + R"(,{"from":"gpt","value":null})"), HasSubstr("turn 2 is empty"));
  EXPECT_THAT(problem(user + R"(,{"from":"gpt","value":" \n"})"), HasSubstr("turn 2 is empty"));
  EXPECT_THAT(problem(user + R"(,{"from":"gpt","value":{}})"), HasSubstr("turn 2: its text is neither"));
  EXPECT_THAT(problem(user), HasSubstr("no assistant turn"));
  EXPECT_THAT(problem(assistant), HasSubstr("turn 1 should be the user's"));
  EXPECT_THAT(problem(user + "," + user), HasSubstr("turn 2 should be the assistant's"));
  EXPECT_THAT(problem(user + "," + assistant + "," + assistant), HasSubstr("turn 3 should be the user's"));
  EXPECT_THAT(problem(user + "," + assistant + R"(,{"from":"system","value":"S"})"), HasSubstr("turn 3 should be"));
  EXPECT_THAT(problem(R"({"from":"human","value":"Q"},{"from":"gpt","value":"<image>"})"),
              HasSubstr("turn 2 is the assistant's and has an image"));
  EXPECT_THAT(read_one(R"({"id": 1})").problem, HasSubstr("no \"conversations\" and no \"messages\""));
}

TEST_F(ReadDataset, ReportsInvalidImages) {
  const auto problem = [&](std::string_view images, std::string_view text) {
    return read_one(
               fmt::format(R"({{{} "conversations":[{{"from":"human","value":"{}"}},{{"from":"gpt","value":"A"}}]}})",
                           images, text))
        .problem;
  };
  EXPECT_EQ(problem(R"("image": "a",)", "<image>"), "");
  EXPECT_THAT(problem(R"("image": "a",)", "<image><image>"), HasSubstr("has 2 <image> placeholders for 1 image"));
  EXPECT_THAT(problem(R"("image": ["a", "b"],)", "<image>"), HasSubstr("has 1 <image> placeholder for 2 images"));
  EXPECT_THAT(problem("", "<image>"), HasSubstr("has 1 <image> placeholder for 0 images"));
  EXPECT_THAT(problem(R"("image": "a", "images": ["b"],)", "<image>"), HasSubstr("both \"image\" and \"images\""));
  EXPECT_THAT(problem(R"("image": 3,)", "<image>"), HasSubstr("image 1 is not a path"));
  EXPECT_EQ(problem(R"("image": ["a", ""],)", "<image>"), "") << "an empty text is not an image";
  EXPECT_THAT(problem(R"("image": "https://x/a.png",)", "<image>"), HasSubstr("image 1 is an https://"));
  EXPECT_EQ(problem(R"("image": "data:image/png;base64,AAAA",)", "<image>"), "");
  EXPECT_THAT(problem(R"("image": "data:image/png;base64,AA",)", "<image>"), HasSubstr("base64 data AA are invalid"));
  EXPECT_THAT(problem(R"("image": "data:image/svg,<svg>",)", "<image>"), HasSubstr("is not in base64"));
  EXPECT_THAT(problem(R"("audio": "a.wav",)", "Q"), HasSubstr("\"audio\", which is not supported;"));
  EXPECT_EQ(problem(R"("audios": [],)", "Q"), "");
}

TEST_F(ReadDataset, ReportsInvalidVideos) {
  const auto problem = [&](std::string_view videos, std::string_view text) {
    return read_one(
               fmt::format(R"({{{} "conversations":[{{"from":"human","value":"{}"}},{{"from":"gpt","value":"A"}}]}})",
                           videos, text))
        .problem;
  };
  EXPECT_EQ(problem(R"("videos": [],)", "Q"), "");
  EXPECT_THAT(problem(R"("video": "a",)", "<video><video>"), HasSubstr("has 2 <video> placeholders for 1 video"));
  EXPECT_THAT(problem("", "<video>"), HasSubstr("has 1 <video> placeholder for 0 videos"));
  EXPECT_THAT(problem(R"("video": "a",)", "<image><image>"), HasSubstr("has 2 <image> placeholders for 0 images"));
  EXPECT_THAT(problem(R"("video": "a",)", "<image><video>"), HasSubstr("has 1 <image> placeholder for 0 images"));
  EXPECT_THAT(problem(R"("video": "a", "videos": ["b"],)", "<video>"), HasSubstr("both \"video\" and \"videos\""));
  EXPECT_THAT(problem(R"("videos": ["a", 3],)", "<video>"), HasSubstr("video 2 is not a path"));
  EXPECT_THAT(problem(R"("video": "https://x/a.mp4",)", "<video>"), HasSubstr("save the video"));
  EXPECT_THAT(problem(R"("videos": ["a", []],)", "<video><video>"),
              HasSubstr("has 2 <video> placeholders for 1 video"));
  EXPECT_THAT(problem(R"("videos": [["0.jpg", 1]],)", "<video>"), HasSubstr("frame 2 of video 1 is not a path"));
  EXPECT_THAT(problem(R"("videos": [["0.jpg", "https://x/1.jpg"]],)", "<video>"), HasSubstr("https://... URL"));
  EXPECT_THAT(problem(R"("images": ["a.jpg", ["b.jpg"]],)", "<image><image>"),
              AllOf(HasSubstr("image 2 is a list"), HasSubstr("under \"videos\"")));
  EXPECT_THAT(read_with_turns(R"({"from":"human","value":"Q"},{"from":"gpt","value":"<video>"})").problem,
              HasSubstr("turn 2 is the assistant's and has a video"));
}

TEST_F(ReadDataset, AListOfImagesIsAVideo) {
  using Frames = std::vector<std::vector<std::string>>;
  const auto get_frames = [](const Record& record) {
    EXPECT_EQ(record.problem, "");
    Frames all;
    for (const MediaRef& video : record.videos) {
      auto& names = all.emplace_back();
      for (const MediaRef& frame : video.frames) names.push_back(frame.path);
      EXPECT_TRUE(names.empty() || video.path == names.front());
    }
    return all;
  };
  const auto frames = [&](std::string_view videos, std::string_view text) {
    return get_frames(read_one(
        fmt::format(R"({{{}, "conversations": [{{"from": "human", "value": "{}"}}, {{"from": "gpt", "value": "A"}}]}})",
                    videos, text)));
  };
  const Frames one_video{{"b/2.jpg", "a/1.png", "b/2.jpg"}};
  EXPECT_EQ(frames(R"("videos": [["b/2.jpg", "a/1.png", "b/2.jpg"]])", "<video>"), one_video) << "in their order";
  EXPECT_EQ(frames(R"("video": ["b/2.jpg", "a/1.png", "b/2.jpg"])", "<video>"), one_video);
  EXPECT_EQ(frames(R"("video": ["b/2.jpg", "a/1.png", "b/2.jpg"])", "Q"), one_video);
  EXPECT_EQ(frames(R"("videos": [["0.JPG"], "a.mp4", ["1.webp", "file:///x/2.jpeg"]])", "<video><video><video>"),
            (Frames{{"0.JPG"}, {}, {"1.webp", "/x/2.jpeg"}}));
  EXPECT_EQ(frames(R"("video": ["a.mp4", "b.mp4"])", "<video><video>"), (Frames{{}, {}})) << "two videos";
  EXPECT_EQ(get_frames(read_one(R"({"messages": [{"role": "user", "content": [
                {"type": "video", "video": ["0.jpg", "1.jpg"]}, {"type": "text", "text": "Q"}]},
                {"role": "assistant", "content": "A"}]})")),
            (Frames{{"0.jpg", "1.jpg"}}));
}

TEST_F(ReadDataset, FramesStayInTheImageRoot) {
  const auto file = put("frames.json", R"([{"videos": [["in.jpg", "../out.jpg"]], "conversations": [
      {"from": "human", "value": "<video>"}, {"from": "gpt", "value": "A"}]}])");
  EXPECT_EQ(open_records(file, {})->at(0).problem, "");
  EXPECT_THAT(open_records(file, {.restrict_to_image_root = true})->at(0).problem,
              AllOf(HasSubstr("video 1 is outside"), HasSubstr("out.jpg")));
}

TEST_F(ReadDataset, ReportsInvalidBlocks) {
  const auto problem = [&](std::string_view block) {
    return read_one(
               fmt::format(R"({{"messages":[{{"role":"user","content":[{}]}},{{"role":"assistant","content":"A"}}]}})",
                           block))
        .problem;
  };
  EXPECT_EQ(problem(R"({"type":"text","text":5})"), "");
  EXPECT_THAT(problem(""), HasSubstr("turn 1 is empty"));
  EXPECT_THAT(problem(R"("text")"), HasSubstr("turn 1: a content block has no \"type\""));
  EXPECT_EQ(problem(R"({"text":"Q"})"), "");
  EXPECT_THAT(problem(R"({"path":"a.png"})"), HasSubstr("has no \"type\""));
  EXPECT_THAT(problem(R"({"type":"text"})"), HasSubstr("a text block has no \"text\""));
  EXPECT_THAT(problem(R"({"type":"audio","audio":"a"})"), HasSubstr("type \"audio\" is not supported"));
  EXPECT_THAT(problem(R"({"type":"image"})"), HasSubstr("has 1 <image> placeholder for 0 images"));
  EXPECT_THAT(problem(R"({"type":"image","image":3})"), HasSubstr("not a path"));
  EXPECT_THAT(problem(R"({"type":"image_url","image_url":{"detail":"low"}})"), HasSubstr("without \"url\""));
  EXPECT_THAT(problem(R"({"type":"image_url","image_url":{}})"), HasSubstr("has 1 <image> placeholder for 0 images"));
  EXPECT_THAT(problem(R"({"type":"video"})"), HasSubstr("has 1 <video> placeholder for 0 videos"));
  EXPECT_THAT(problem(R"({"type":"video","video":3})"), HasSubstr("a video block's video is not a path"));
  EXPECT_THAT(problem(R"({"type":"video","video":[]})"), HasSubstr("has 1 <video> placeholder for 0 videos"));
  EXPECT_THAT(problem(R"({"type":"image","image":["0.jpg"]})"), HasSubstr("turn 1: an image block is a list"));
}

}  // namespace
}  // namespace vlmtrain::io
