#include "vlmtrain/io/dataset_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ReadDataset : public TemporaryFolderTest {
 protected:
  std::vector<Record> read(std::string_view content) const { return read_dataset(put("train.llava.json", content)); }

  Record read_one(std::string_view record) const {
    std::vector<Record> records = read(fmt::format("[{}]", record));
    EXPECT_EQ(records.size(), 1);
    return records.at(0);
  }

  // The record with these turns, given as JSON, and one listed image.
  Record read_with_turns(std::string_view turns) const {
    return read_one(fmt::format(R"({{"image": "a.jpg", "conversations": [{}]}})", turns));
  }

  std::string get_error(std::string_view content) const {
    return get_error_message([&] { read(content); });
  }
};

constexpr std::string_view kText = R"({"conversations": [{"from":"human","value":"Q"},{"from":"gpt","value":"A"}]})";

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
    const Record record = read_one(fmt::format("{{{} {}", absent_key, kText.substr(1)));
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

TEST_F(ReadDataset, EscapesControlCharactersInNames) {
  const Record record = read_one(R"({"id": "a\u001b[2J\nb", "task": "t\r", "messages": [{"role":"user","content":"Q"},
      {"role":"assistant","content":"A"}]})");
  EXPECT_EQ(record.id, "a\\x1b[2J\\nb");
  EXPECT_EQ(record.task, "t");
  const auto file = put("caf\xE9\n.json", fmt::format("[{}, 5]", kText));
  const auto records = read_dataset(file);
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].id, "caf\\xe9\\n:0");
  EXPECT_EQ(records[1].id, "caf\\xe9\\n:1");
}

TEST_F(ReadDataset, RefusesANulInAPath) {
  const std::string turns = R"("conversations": [{"from":"human","value":"Q"},{"from":"gpt","value":"A"}])";
  EXPECT_EQ(read_one(R"({"image": "a.jpg\u0000.png", )" + turns + "}").problem, "image 1 has a NUL in its path");
  EXPECT_EQ(read_one(R"({"videos": ["a", "\u0000"], )" + turns + "}").problem, "video 2 has a NUL in its path");
  EXPECT_EQ(read_one(R"({"messages": [{"role":"user","content":[{"type":"image","path":"x\u0000"}]},
      {"role":"assistant","content":"A"}]})")
                .problem,
            "image 1 has a NUL in its path");
}

TEST_F(ReadDataset, DeepNestingIsAProblemOfItsRecord) {
  const std::string deep = "{\"a\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  const auto lines = read(fmt::format("{}\n{}\n{}\n", kText, deep, kText));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_THAT(lines[1].problem, HasSubstr("more than 200 lists and objects stand in each other"));
  EXPECT_TRUE(lines[2].problem.empty());
  EXPECT_THAT(get_error(fmt::format("[{}, {}]", kText, deep)), HasSubstr("more than 200 lists and objects"));
  EXPECT_THAT(get_error(std::string(200'000, '[')), HasSubstr("more than 200 lists and objects"));
}

TEST_F(ReadDataset, ProblemsQuoteAtMostALine) {
  const std::string long_text(100'000, 'x');
  EXPECT_LT(read_one(fmt::format(R"({{"messages": [{{"role":"{}","content":"Q"}}]}})", long_text)).problem.size(),
            300U);
  EXPECT_LT(read_one(fmt::format(R"({{"messages": [{{"role":"user","content":[{{"type":"{}"}}]}}]}})", long_text))
                .problem.size(),
            300U);
}

TEST_F(ReadDataset, ReadsJsonLinesByContent) {
  const std::vector<Record> records = read(fmt::format("\n{}\r\n\n  {}", kText, kText));
  ASSERT_EQ(records.size(), 2);
  EXPECT_EQ(records[0].location, "line 2");
  EXPECT_EQ(records[1].location, "line 4");
  EXPECT_EQ(records[1].id, "train.llava:1");
  EXPECT_EQ(records[1].problem, "");
  EXPECT_EQ(read_dataset(put("a.jsonl", fmt::format("\xEF\xBB\xBF[{}]", kText))).size(), 1);
}

TEST_F(ReadDataset, ReportsLinesOfArrayRecords) {
  const std::vector<Record> records =
      read(fmt::format("[\n{},\n{{\n\"id\": \"a ] , }} \\\" b\"}}, 3\n,\n{}\n]\n", kText, kText));
  ASSERT_EQ(records.size(), 4);
  EXPECT_EQ(records[0].location, "line 2");
  EXPECT_EQ(records[1].location, "line 3");
  EXPECT_EQ(records[1].id, "a ] , } \" b");
  EXPECT_EQ(records[2].location, "line 4");
  EXPECT_EQ(records[2].problem, "is not a JSON object");
  EXPECT_EQ(records[3].location, "line 6");
  EXPECT_EQ(records[3].id, "train.llava:3");
  EXPECT_THAT(read(" [ ] "), IsEmpty());
}

TEST_F(ReadDataset, ReportsBrokenLinesAndContinues) {
  const std::vector<Record> records = read(fmt::format("{}\n{{\"id\": 1,, }}\n{}\n", kText, kText));
  ASSERT_EQ(records.size(), 3);
  EXPECT_EQ(records[1].location, "line 2");
  EXPECT_EQ(records[1].id, "train.llava:1");
  EXPECT_THAT(records[1].problem, AllOf(HasSubstr("not valid JSON"), HasSubstr("column 10")));
  EXPECT_EQ(records[2].problem, "");
  EXPECT_THAT(read(fmt::format("{{\n{}\n", kText)).at(0).problem, HasSubstr("not valid JSON"));
}

TEST_F(ReadDataset, RefusesBrokenArrays) {
  EXPECT_THAT(get_error(fmt::format("[{},\n{}", kText, kText)),
              AllOf(HasSubstr("train.llava.json"), HasSubstr("line 2")));
  EXPECT_THAT(get_error("[{\"a\": 1}\n{\"b\": 1}]"), HasSubstr("line 2, column 1"));
  EXPECT_THAT(get_error("[\n{\"a\": 1},\n]"), HasSubstr("line 3, column 1"));
  EXPECT_THAT(get_error("[{\"a\": 1}} {\"b\": 1}]"), HasSubstr("column 10"));
  EXPECT_THAT(get_error("[{\"a\": 1]}"), HasSubstr("column 9"));
  EXPECT_THAT(get_error("[{}] x"), HasSubstr("column 6"));
  EXPECT_THAT(get_error("["), HasSubstr("line 1"));
  EXPECT_THAT(get_error("[\"a\\"), HasSubstr("line 1"));
  EXPECT_THAT(get_error("[{\"a\": [1}]"), HasSubstr("column 10"));
  EXPECT_THAT(get_error("[\"a\\\\\" \"b\"]"), HasSubstr("column 10"));
}

TEST_F(ReadDataset, ARecordThatIsNotJsonDoesNotStopAnArray) {
  const std::vector<Record> records = read(fmt::format("[{},\n{{\n\"a\": \"\xFF\"}},\n3 4, {}]", kText, kText));
  ASSERT_EQ(records.size(), 4);
  EXPECT_EQ(records[0].problem, "");
  EXPECT_EQ(records[1].location, "line 2");
  EXPECT_EQ(records[1].id, "train.llava:1");
  EXPECT_THAT(records[1].problem, HasSubstr("the record is not valid JSON at its line 2, column 7"));
  EXPECT_EQ(records[2].location, "line 4");
  EXPECT_THAT(records[2].problem, HasSubstr("not valid JSON"));
  EXPECT_EQ(records[3].problem, "");
}

TEST_F(ReadDataset, StringsMayHoldBracketsAndBackslashes) {
  const auto records = read(R"([{"id": "a\\"}, {"id": "\\\"}],["}, {"id": "\\\\\" {"}])");
  ASSERT_EQ(records.size(), 3);
  EXPECT_EQ(records[0].id, "a\\");
  EXPECT_EQ(records[1].id, "\\\"}],[");
  EXPECT_EQ(records[2].id, "\\\\\" {");
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
  EXPECT_THAT(read_one(R"({"texts": [3]})").problem, HasSubstr("an entry that is no object"));
  EXPECT_THAT(read_one(R"({"output": "O", "input": "", "history": [["Q"]]})").problem, HasSubstr("\"history\""));
  EXPECT_THAT(read_one(R"({"texts": []})").problem, HasSubstr("is empty"));
}

class OpenRecords : public TemporaryFolderTest {
 protected:
  static constexpr std::string_view kLine = R"({"question": "Q", "answer": "A"})";

  Record read_first(const std::string& path, const RecordSettings& settings) const {
    return open_records(folder() / path, settings)->at(0);
  }
  std::string get_error(const std::string& path) const {
    return get_error_message([&] { open_records(folder() / path, {}); });
  }
};

TEST_F(OpenRecords, ReadsOneRecordAtATime) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += fmt::format("{{\"id\": {}, \"question\": \"Q\", \"answer\": \"A\"}}\n\n", i);
  const auto lines = open_records(put("a.jsonl", text), {});
  ASSERT_EQ(lines->size(), 100);
  for (const int64_t i : {99, 0, 40}) {
    EXPECT_EQ(lines->at(i).id, std::to_string(i));
    EXPECT_EQ(lines->at(i).location, fmt::format("line {}", 2 * i + 1));
  }
  EXPECT_TRUE(lines->block_starts().empty());
}

TEST_F(OpenRecords, DetectsChangedFiles) {
  const auto records = open_records(put("a.jsonl", kLine), {});
  EXPECT_EQ(records->at(0).problem, "");
  const uint64_t stamp = records->stamp();
  EXPECT_EQ(open_records(folder() / "a.jsonl", {})->stamp(), stamp);
  EXPECT_NE(open_records(folder() / "a.jsonl", {.image_root = "elsewhere"})->stamp(), stamp);
  EXPECT_NE(open_records(folder() / "a.jsonl", {.columns = {{"question", "q"}}})->stamp(), stamp);
  put("a.jsonl", std::string(kLine) + " ");
  EXPECT_THAT(get_error_message([&] { (void)records->at(0); }, ExitCode::kFailed),
              HasSubstr("a.jsonl was changed while it is in use"));
  EXPECT_NE(open_records(folder() / "a.jsonl", {})->stamp(), stamp);
  std::filesystem::remove(folder() / "a.jsonl");
  EXPECT_THAT(get_error_message([&] { (void)records->at(0); }, ExitCode::kFailed), HasSubstr("cannot read"));
}

TEST_F(OpenRecords, SeveralFilesAreOneDataSetInNaturalOrder) {
  for (const int number : {10, 2, 1}) {
    put(fmt::format("part-{}.jsonl", number), fmt::format("\n{}\n{}\n", kLine, kLine));
  }
  for (const char* const path : {"part-*.jsonl", "", "part-{10,2,1}.jsonl", "part-?*.jsonl"}) {
    const auto records = open_records(folder() / path, {});
    ASSERT_EQ(records->size(), 6) << path;
    EXPECT_EQ(records->at(0).location, "part-1.jsonl, line 2");
    EXPECT_EQ(records->at(1).id, "part-1:1");
    EXPECT_EQ(records->at(2).location, "part-2.jsonl, line 2");
    EXPECT_EQ(records->at_without_bytes(5).location, "part-10.jsonl, line 3");
    EXPECT_NE(records->stamp(), 0U);
  }
  EXPECT_EQ(open_records(folder() / "part-2*", {})->at(0).location, "line 2");
}

TEST_F(OpenRecords, RefusesPathsWithoutFiles) {
  EXPECT_THAT(get_error("none-*.jsonl"), HasSubstr("none-*.jsonl matches no file"));
  EXPECT_THAT(get_error("no-folder/*.jsonl"), HasSubstr("no-folder/*.jsonl matches no file"));
  EXPECT_THAT(get_error("none.jsonl"), HasSubstr("none.jsonl"));
  EXPECT_THAT(get_error(""), HasSubstr("is a folder without .parquet, .tar, .jsonl files"));
  put("train-1.jsonl", kLine);
  put("test-1.jsonl", kLine);
  EXPECT_THAT(get_error(""), AllOf(HasSubstr("the splits train, test"), HasSubstr("train-*.jsonl")));
  put("a.tar", "");
  EXPECT_THAT(get_error(""), HasSubstr("several formats"));
  put("a[1].jsonl", kLine);
  EXPECT_EQ(open_records(folder() / "a[1].jsonl", {})->size(), 1);
}

TEST_F(OpenRecords, RenamesColumns) {
  const RecordSettings settings{
      .image_root = "", .columns = {{"question", "query"}, {"answer", "label"}, {"image", "photo"}, {"id", "n"}}};
  put("a.jsonl", R"({"n": 7, "query": "Q", "label": "A", "photo": "p.png", "images": ["x"], "messages": [], "id": 1})");
  const Record record = read_first("a.jsonl", settings);
  EXPECT_EQ(record.problem, "");
  EXPECT_EQ(record.id, "7");
  EXPECT_THAT(record.images, ElementsAre("p.png"));
  EXPECT_EQ(record.turns.at(0).text, "<image>\nQ");
  EXPECT_EQ(record.turns.at(1).text, "A");
  put("b.jsonl", kLine);
  EXPECT_THAT(read_first("b.jsonl", settings).problem, HasSubstr("none of the fields that data.columns names"));
  put("c.jsonl", R"({"talk": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}], "texts": 3})");
  EXPECT_EQ(read_first("c.jsonl", {.columns = {{"messages", "talk"}}}).problem, "");
}

TEST_F(OpenRecords, RestrictsPathsToTheImageRoot) {
  std::filesystem::create_directories(folder() / "images/inner");
  put("secret.png", "");
  put("images/inner/a.png", "");
  std::filesystem::create_symlink("../secret.png", folder() / "images/link.png");
  std::filesystem::create_symlink("inner", folder() / "images/other");
  const auto get_problem = [&](const std::string& image) {
    put("a.jsonl", fmt::format(R"({{"image": "{}", "question": "Q", "answer": "A"}})", image));
    EXPECT_EQ(read_first("a.jsonl", {.image_root = folder() / "images"}).problem, "");
    return read_first("a.jsonl", {.image_root = folder() / "images/", .restrict_to_image_root = true}).problem;
  };
  EXPECT_EQ(get_problem("inner/a.png"), "");
  EXPECT_EQ(get_problem("other/a.png"), "");
  EXPECT_EQ(get_problem("inner/../inner/a.png"), "");
  EXPECT_EQ(get_problem("missing.png"), "");
  EXPECT_EQ(get_problem((folder() / "images/inner/a.png").string()), "");
  for (const std::string path :
       {"../secret.png", "link.png", "/etc/passwd", "file:///etc/passwd", "../images2/a.png"}) {
    EXPECT_THAT(get_problem(path), HasSubstr("image 1 lies outside of the folder of images")) << path;
  }
}

TEST(SubsetRecords, KeepsTheBlocksOfTheBase) {
  class Blocks : public Records {
   public:
    int64_t size() const override { return 10; }
    Record at(int64_t index) const override {
      Record record;
      record.id = std::to_string(index);
      return record;
    }
    std::vector<int64_t> block_starts() const override { return {0, 3, 6, 8}; }
    uint64_t stamp() const override { return 5; }
  };
  const auto all = std::make_shared<Blocks>();
  const SubsetRecords subset(all, {1, 4, 5, 9});
  EXPECT_THAT(subset.block_starts(), ElementsAre(0, 1, 3));
  EXPECT_THAT(SubsetRecords(all, {4, 1}).block_starts(), IsEmpty());
  EXPECT_NE(subset.stamp(), SubsetRecords(all, {1, 4, 5, 8}).stamp());
}

TEST_F(ReadDataset, RefusesOtherFiles) {
  EXPECT_THAT(get_error(""), HasSubstr("is empty"));
  EXPECT_THAT(get_error(" \n"), HasSubstr("is empty"));
  EXPECT_THAT(get_error("id,question"), HasSubstr("neither a JSON array nor JSON lines"));
  EXPECT_THAT(get_error("{\n\"data\": []\n}\n"), HasSubstr("one JSON object"));
  EXPECT_THAT(get_error("{\n\"question\": \"Q\",\n\"answer\": \"A\"\n}\n"), HasSubstr("write it on one line"));
  EXPECT_THAT(get_error("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("git lfs pull"));
  EXPECT_THAT(get_error_message([&] { read_dataset(folder() / "none.json"); }), HasSubstr("none.json"));
  EXPECT_THAT(get_error_message([&] { read_dataset(folder()); }), HasSubstr("is a folder"));
}

TEST_F(ReadDataset, ReportsTheKeyOfNestedRecords) {
  constexpr std::string_view kRecord = R"({"image": "a.png", "question": "Q", "answer": "A"})";
  for (const std::string_view form :
       {"{{\"data\": [{}]}}", "{{\"version\": 1,\n\"data\": [{}, 3]\n}}", "{{\"data\": [{}], \"n\": [[1]]}}\n"}) {
    EXPECT_THAT(get_error(fmt::format(fmt::runtime(form), kRecord)),
                AllOf(HasSubstr("is one JSON object"), HasSubstr("under \"data\"")));
  }
  EXPECT_THAT(get_error(fmt::format("{{\"train\": [{0}, {0}], \"test\": [{0}]}}", kRecord)),
              HasSubstr("under \"test\", \"train\""));
  EXPECT_THAT(get_error(fmt::format("{{\"7\": {0}, \"8\": {0}}}", kRecord)),
              HasSubstr("a record under each of its keys"));
  EXPECT_THAT(get_error(R"({"a": {"root": "x", "annotation": "a.jsonl", "repeat_time": 1}})"), HasSubstr("InternVL"));
  EXPECT_THAT(get_error(R"({"a": {"file_name": "a.json", "formatting": "sharegpt"}})"), HasSubstr("LLaMA-Factory"));
  EXPECT_THAT(get_error(R"({"a": {"annotation_path": "a.json", "data_path": "x"}})"), HasSubstr("Qwen-VL"));
  EXPECT_EQ(read(kRecord).at(0).problem, "") << "a record may be alone";
  EXPECT_THAT(read(R"({"images": [{"path": "a.png"}], "prompt": "Q"})").at(0).problem, HasSubstr("data.columns"));
  EXPECT_THAT(read(R"({"dialog": [{"role": "user", "content": "Q"}]})").at(0).problem, HasSubstr("data.columns"));
}

TEST_F(ReadDataset, ReadsJsonAsPythonWritesIt) {
  const std::vector<Record> records = read(R"([{"score": NaN, "image": NaN, "question": "Q", "answer": "A"},
      {"question": "Q", "answer": Infinity, "scores": [-Infinity]}, {"question": "Q", "answer": NaN}])");
  EXPECT_EQ(records.at(0).problem, "");
  EXPECT_EQ(records.at(1).turns.at(1).text, "Infinity");
  EXPECT_THAT(records.at(2).problem, HasSubstr("has no \"answer\""));
  EXPECT_THAT(read("{\"score\": NaN, \"question\" 3}").at(0).problem, HasSubstr("column 27"));
  EXPECT_THAT(get_error("[{\"score\": NaN},\n {\"question\": 3]"), HasSubstr("line 2"));
}

TEST_F(ReadDataset, ReportsInvalidTurns) {
  const auto problem = [&](std::string_view turns) { return read_with_turns(turns).problem; };
  const std::string user = R"({"from":"human","value":"<image>Q"})";
  const std::string assistant = R"({"from":"gpt","value":"A"})";
  EXPECT_EQ(problem(user + "," + assistant), "");
  EXPECT_THAT(problem(""), HasSubstr("is empty: a question and its answer are wanted"));
  EXPECT_THAT(problem("3"), HasSubstr("turn 1 is not a JSON object"));
  EXPECT_THAT(problem(R"({"value":"Q"})"), HasSubstr("turn 1 does not say whose it is"));
  EXPECT_THAT(problem(user + R"(,{"from":"bot","value":"A"})"), HasSubstr("turn 2 has the unknown role \"bot\""));
  EXPECT_THAT(problem(user + R"(,{"from":"gpt"})"), HasSubstr("turn 2 is empty"));
  EXPECT_THAT(problem(user + R"(,{"from":"gpt","value":null})"), HasSubstr("turn 2 is empty"));
  EXPECT_THAT(problem(user + R"(,{"from":"gpt","value":" \n"})"), HasSubstr("turn 2 is empty"));
  EXPECT_THAT(problem(user + R"(,{"from":"gpt","value":{}})"), HasSubstr("turn 2: its text is neither"));
  EXPECT_THAT(problem(user), HasSubstr("no turn of the assistant"));
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
  EXPECT_THAT(problem(R"("image": "a",)", "<image><image>"), HasSubstr("has 2 <image> marks for 1 images"));
  EXPECT_THAT(problem(R"("image": ["a", "b"],)", "<image>"), HasSubstr("has 1 <image> marks for 2 images"));
  EXPECT_THAT(problem("", "<image>"), HasSubstr("has 1 <image> marks for 0 images"));
  EXPECT_THAT(problem(R"("image": "a", "images": ["b"],)", "<image>"), HasSubstr("both \"image\" and \"images\""));
  EXPECT_THAT(problem(R"("image": 3,)", "<image>"), HasSubstr("image 1 is not a path"));
  EXPECT_EQ(problem(R"("image": ["a", ""],)", "<image>"), "") << "an empty text is no image";
  EXPECT_THAT(problem(R"("image": "https://x/a.png",)", "<image>"), HasSubstr("image 1 is a https://"));
  EXPECT_THAT(problem(R"("image": "data:image/png;base64,AA",)", "<image>"), HasSubstr("data:"));
  EXPECT_THAT(problem(R"("audio": "a.wav",)", "Q"), HasSubstr("\"audio\", which is not supported yet"));
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
  EXPECT_THAT(problem(R"("video": "a",)", "<video><video>"), HasSubstr("has 2 <video> marks for 1 videos"));
  EXPECT_THAT(problem("", "<video>"), HasSubstr("has 1 <video> marks for 0 videos"));
  EXPECT_THAT(problem(R"("video": "a",)", "<image><image>"), HasSubstr("has 2 <image> marks for 0 images"));
  EXPECT_THAT(problem(R"("video": "a",)", "<image><video>"), HasSubstr("has 1 <image> marks for 0 images"));
  EXPECT_THAT(problem(R"("video": "a", "videos": ["b"],)", "<video>"), HasSubstr("both \"video\" and \"videos\""));
  EXPECT_THAT(problem(R"("videos": ["a", 3],)", "<video>"), HasSubstr("video 2 is not a path"));
  EXPECT_THAT(problem(R"("video": "https://x/a.mp4",)", "<video>"), HasSubstr("save the video"));
  EXPECT_THAT(problem(R"("videos": ["a", []],)", "<video><video>"), HasSubstr("has 2 <video> marks for 1 videos"));
  EXPECT_THAT(problem(R"("videos": [["0.jpg", 1]],)", "<video>"), HasSubstr("frame 2 of video 1 is not a path"));
  EXPECT_THAT(problem(R"("videos": [["0.jpg", "https://x/1.jpg"]],)", "<video>"), HasSubstr("https://... address"));
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
              AllOf(HasSubstr("video 1 lies outside"), HasSubstr("out.jpg")));
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
  EXPECT_THAT(problem(R"({"type":"image"})"), HasSubstr("has 1 <image> marks for 0 images"));
  EXPECT_THAT(problem(R"({"type":"image","image":3})"), HasSubstr("not a path"));
  EXPECT_THAT(problem(R"({"type":"image_url","image_url":{"detail":"low"}})"), HasSubstr("without \"url\""));
  EXPECT_THAT(problem(R"({"type":"image_url","image_url":{}})"), HasSubstr("has 1 <image> marks for 0 images"));
  EXPECT_THAT(problem(R"({"type":"video"})"), HasSubstr("has 1 <video> marks for 0 videos"));
  EXPECT_THAT(problem(R"({"type":"video","video":3})"), HasSubstr("a video block's video is not a path"));
  EXPECT_THAT(problem(R"({"type":"video","video":[]})"), HasSubstr("has 1 <video> marks for 0 videos"));
  EXPECT_THAT(problem(R"({"type":"image","image":["0.jpg"]})"), HasSubstr("turn 1: an image block is a list"));
}

}  // namespace
}  // namespace vlmtrain::io
