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

TEST_F(ReadDataset, EscapesControlCharactersInNames) {
  const Record record = read_one(R"({"id": "a\u001b[2J\nb", "task": "t\r", "messages": [{"role":"user","content":"Q"},
      {"role":"assistant","content":"A"}]})");
  EXPECT_EQ(record.id, "a\\x1b[2J\\nb");
  EXPECT_EQ(record.task, "t");
  const auto file = put("caf\xE9\n.json", fmt::format("[{}, 5]", kTextRecord));
  const auto records = read_dataset(file);
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].id, "caf\\xe9\\n:0");
  EXPECT_EQ(records[1].id, "caf\\xe9\\n:1");
}

TEST_F(ReadDataset, RefusesANulInAPath) {
  const std::string turns = R"("conversations": [{"from":"human","value":"Q"},{"from":"gpt","value":"A"}])";
  EXPECT_EQ(read_one(R"({"image": "a.jpg\u0000.png", )" + turns + "}").problem, "image 1 has a NUL byte in its path");
  EXPECT_EQ(read_one(R"({"videos": ["a", "\u0000"], )" + turns + "}").problem, "video 2 has a NUL byte in its path");
  EXPECT_EQ(read_one(R"({"messages": [{"role":"user","content":[{"type":"image","path":"x\u0000"}]},
      {"role":"assistant","content":"A"}]})")
                .problem,
            "image 1 has a NUL byte in its path");
}

TEST_F(ReadDataset, DeepNestingIsAProblemOfItsRecord) {
  const std::string deep = "{\"a\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  const auto lines = read(fmt::format("{}\n{}\n{}\n", kTextRecord, deep, kTextRecord));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_THAT(lines[1].problem, HasSubstr("more than 200 nested lists and objects"));
  EXPECT_TRUE(lines[2].problem.empty());
  EXPECT_THAT(get_error(fmt::format("[{}, {}]", kTextRecord, deep)),
              HasSubstr("more than 200 nested lists and objects"));
  EXPECT_THAT(get_error(std::string(200'000, '[')), HasSubstr("more than 200 nested lists and objects"));
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
  const std::vector<Record> records = read(fmt::format("\n{}\r\n\n  {}", kTextRecord, kTextRecord));
  ASSERT_EQ(records.size(), 2);
  EXPECT_EQ(records[0].location, "line 2");
  EXPECT_EQ(records[1].location, "line 4");
  EXPECT_EQ(records[1].id, "train.llava:1");
  EXPECT_EQ(records[1].problem, "");
  EXPECT_EQ(read_dataset(put("a.jsonl", fmt::format("\xEF\xBB\xBF[{}]", kTextRecord))).size(), 1);
}

TEST_F(ReadDataset, ReportsLinesOfArrayRecords) {
  const std::vector<Record> records =
      read(fmt::format("[\n{},\n{{\n\"id\": \"a ] , }} \\\" b\"}}, 3\n,\n{}\n]\n", kTextRecord, kTextRecord));
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
  const std::vector<Record> records = read(fmt::format("{}\n{{\"id\": 1,, }}\n{}\n", kTextRecord, kTextRecord));
  ASSERT_EQ(records.size(), 3);
  EXPECT_EQ(records[1].location, "line 2");
  EXPECT_EQ(records[1].id, "train.llava:1");
  EXPECT_THAT(records[1].problem, AllOf(HasSubstr("not valid JSON"), HasSubstr("column 10")));
  EXPECT_EQ(records[2].problem, "");
  EXPECT_THAT(read(fmt::format("{{\n{}\n", kTextRecord)).at(0).problem, HasSubstr("not valid JSON"));
}

TEST_F(ReadDataset, RefusesBrokenArrays) {
  EXPECT_THAT(get_error(fmt::format("[{},\n{}", kTextRecord, kTextRecord)),
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
  const std::vector<Record> records =
      read(fmt::format("[{},\n{{\n\"a\": \"\xFF\"}},\n3 4, {}]", kTextRecord, kTextRecord));
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
  const uint64_t version_hash = records->version_hash();
  EXPECT_EQ(open_records(folder() / "a.jsonl", {})->version_hash(), version_hash);
  EXPECT_NE(open_records(folder() / "a.jsonl", {.image_root = "elsewhere"})->version_hash(), version_hash);
  EXPECT_NE(open_records(folder() / "a.jsonl", {.columns = {{"question", "q"}}})->version_hash(), version_hash);
  put("a.jsonl", std::string(kLine) + " ");
  EXPECT_THAT(get_error_message([&] { (void)records->at(0); }, ExitCode::kFailed),
              HasSubstr("a.jsonl: changed during the run"));
  EXPECT_NE(open_records(folder() / "a.jsonl", {})->version_hash(), version_hash);
  std::filesystem::remove(folder() / "a.jsonl");
  EXPECT_THAT(get_error_message([&] { (void)records->at(0); }, ExitCode::kFailed), HasSubstr("cannot be read"));
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
    EXPECT_EQ(records->at_without_media_bytes(5).location, "part-10.jsonl, line 3");
    EXPECT_NE(records->version_hash(), 0U);
  }
  EXPECT_EQ(open_records(folder() / "part-2*", {})->at(0).location, "line 2");
}

TEST_F(OpenRecords, RefusesPathsWithoutFiles) {
  EXPECT_THAT(get_error("none-*.jsonl"), HasSubstr("none-*.jsonl: matches no file"));
  EXPECT_THAT(get_error("no-folder/*.jsonl"), HasSubstr("no-folder/*.jsonl: matches no file"));
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
  EXPECT_THAT(read_first("b.jsonl", settings).problem, HasSubstr("none of the fields of data.columns"));
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
    EXPECT_THAT(get_problem(path), HasSubstr("image 1 is outside the image folder")) << path;
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
    uint64_t version_hash() const override { return 5; }
  };
  const auto all = std::make_shared<Blocks>();
  const SubsetRecords subset(all, {1, 4, 5, 9});
  EXPECT_THAT(subset.block_starts(), ElementsAre(0, 1, 3));
  EXPECT_THAT(SubsetRecords(all, {4, 1}).block_starts(), IsEmpty());
  EXPECT_NE(subset.version_hash(), SubsetRecords(all, {1, 4, 5, 8}).version_hash());
}

TEST_F(ReadDataset, RefusesOtherFiles) {
  EXPECT_THAT(get_error(""), HasSubstr("is empty"));
  EXPECT_THAT(get_error(" \n"), HasSubstr("is empty"));
  EXPECT_THAT(get_error("id,question"), HasSubstr("neither a JSON array nor JSON Lines"));
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
              HasSubstr("under \"train\", \"test\""));
  EXPECT_THAT(get_error(fmt::format("{{\"7\": {0}, \"8\": {0}}}", kRecord)),
              HasSubstr("a record under each of its keys"));
  EXPECT_THAT(get_error(R"({"a": {"root": "x", "annotation": "a.jsonl", "repeat_time": 1}})"), HasSubstr("InternVL"));
  EXPECT_THAT(get_error(R"({"a": {"file_name": "a.json", "formatting": "sharegpt"}})"), HasSubstr("LLaMA-Factory"));
  EXPECT_THAT(get_error(R"({"a": {"annotation_path": "a.json", "data_path": "x"}})"), HasSubstr("Qwen-VL"));
  EXPECT_EQ(read(kRecord).at(0).problem, "") << "a single record is valid";
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

}  // namespace
}  // namespace vlmtrain::io
