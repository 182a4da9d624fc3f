#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/dataset_test.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ObjectMarksTest : public ReadDataset {
 protected:
  Record read_record(const std::string& record, const RecordSettings& settings = {}) const {
    return open_records(put("train.json", "[" + record + "]"), settings)->at(0);
  }

  /// Reads a record with an image, unless `fields` lists images, a user turn and an answer.
  Record read(const std::string& question, const std::string& answer, const std::string& fields,
              const RecordSettings& settings = {}) const {
    const char* const images = fields.find("\"images\"") == std::string::npos ? R"("images": ["a.jpg"], )" : "";
    return read_record(fmt::format(R"({{{}"messages": [{{"role": "user", "content": "<image>{}"}},
                                       {{"role": "assistant", "content": "{}"}}]{}}})",
                                   images, question, answer, fields),
                       settings);
  }

  static std::string get_text(const Record& record, const TextRange& range, size_t turn) {
    return record.turns[turn].text.substr(range.begin, range.end - range.begin);
  }
};

TEST_F(ObjectMarksTest, ReadsSwiftsObjects) {
  const Record record = read("Find <ref-object>", "<bbox> and <bbox>",
                             R"(, "objects": {"ref": ["sheep"], "bbox": [[1, 2.5, 30, 40], [5, 6]]})");
  EXPECT_EQ(record.problem, "");
  ASSERT_EQ(record.objects.size(), 3);
  EXPECT_EQ(record.objects[0].name, "sheep");
  EXPECT_EQ(get_text(record, record.objects[0].range, 0), "<ref-object>");
  EXPECT_THAT(record.objects[1].coordinates, ElementsAre(1, 2.5, 30, 40));
  EXPECT_EQ(record.objects[1].turn_index, 1);
  EXPECT_EQ(record.objects[1].unit, CoordinateUnit::kAbsolute);
  EXPECT_THAT(record.objects[2].coordinates, ElementsAre(5, 6));
  EXPECT_EQ(get_text(record, record.objects[2].range, 1), "<bbox>");
  EXPECT_THAT(record.notices, IsEmpty());
}

TEST_F(ObjectMarksTest, ReadsUnitsAndImages) {
  const auto get_unit = [&](const std::string& type) {
    return read("?", "<bbox>", R"(, "objects": {"bbox": [[0, 0, 1, 1]], "bbox_type": ")" + type + "\"}")
        .objects.at(0)
        .unit;
  };
  EXPECT_EQ(get_unit("real"), CoordinateUnit::kAbsolute);
  EXPECT_EQ(get_unit("norm1"), CoordinateUnit::kNormalized1);
  EXPECT_EQ(get_unit("norm1000"), CoordinateUnit::kNormalized1000);
  const Record record = read("<image>?", "<bbox><bbox>",
                             R"(, "images": ["a.jpg", "b.jpg"], "objects": {"bbox": [[0, 0, 1, 1],
                             [0, 0, 2, 2]], "image_id": [1, 0]})");
  EXPECT_EQ(record.problem, "");
  EXPECT_EQ(record.objects.at(0).image_index, 1);
  EXPECT_EQ(record.objects.at(1).image_index, 0);
}

TEST_F(ObjectMarksTest, ReadsPlainListsOfBoxes) {
  for (const char* fields :
       {R"(, "bbox": [1, 2, 3, 4])", R"(, "bboxes": [[1, 2, 3, 4]])", R"(, "boxes": [[1, 2, 3, 4]])"}) {
    const Record record = read("?", "<bbox>", fields);
    EXPECT_EQ(record.problem, "");
    ASSERT_EQ(record.objects.size(), 1) << fields;
    EXPECT_THAT(record.objects[0].coordinates, ElementsAre(1, 2, 3, 4));
  }
}

TEST_F(ObjectMarksTest, MarksWithoutObjectsAreText) {
  const Record record = read("What is <bbox>?", "HTML", "");
  EXPECT_EQ(record.problem, "");
  EXPECT_THAT(record.objects, IsEmpty());
}

TEST_F(ObjectMarksTest, BadObjectsAreProblems) {
  const auto expect_problem = [&](const std::string& answer, const std::string& objects, const char* problem) {
    EXPECT_THAT(read("?", answer, ", \"objects\": " + objects).problem, HasSubstr(problem));
  };
  expect_problem("<bbox>", R"({"bbox": [[0, 0, 1, 1], [0, 0, 2, 2]]})", "1 marks <bbox> for 2 boxes");
  expect_problem("<bbox><bbox>", R"({"bbox": [[0, 0, 1, 1]]})", "2 marks <bbox> for 1 boxes");
  expect_problem("<bbox><ref-object>", R"({"bbox": [[0, 0, 1, 1]]})", "1 marks <ref-object> for 0 names");
  expect_problem("<bbox>", R"({"bbox": [[0, 0, 1]]})", "write [x1, y1, x2, y2]");
  expect_problem("<bbox>", R"({"bbox": [[0, 0, "1", 1]]})", "write [x1, y1, x2, y2]");
  expect_problem("<bbox>", R"({"bbox": [[10, 20, 5, 5]]})", "not [x, y, width, height]");
  expect_problem("<bbox>", R"({"bbox": [[0, 0, 1, 1]], "bbox_type": "inches"})", "\"bbox_type\" is \"inches\"");
  expect_problem("<bbox>", R"({"bbox": [[0, 0, 1, 1]], "image_id": 1})", "a box of image 1, but 1 image");
  expect_problem("<bbox>", R"({"bbox": [[0, 0, 1, 1]], "image_id": "a"})", "\"image_id\"");
  expect_problem("<bbox>", R"({"bbox": "here"})", "write a list of them");
  expect_problem("<bbox>", R"([1])", "\"objects\" is");
  expect_problem("<bbox>", R"({"boxes": [[0, 0, 1, 1]]})", "\"objects\" has \"boxes\", which is not read");
  expect_problem("<bbox>", R"({"bbox": [[0.1, 0.2, 0.3, 0.4]]})", "seems to be in fractions of the image");
  expect_problem("<bbox>", R"({"bbox": [[0, 0, 5, 5]]}, "bboxes": [[1, 2, 3, 4]])",
                 "boxes under \"objects\" and \"bboxes\"");
}

TEST_F(ObjectMarksTest, ListsMayHaveTheirUnit) {
  const Record record = read("?", "<bbox>", R"(, "bbox": [10, 20, 100, 50], "bbox_type": "norm1000")");
  ASSERT_EQ(record.objects.size(), 1) << record.problem;
  EXPECT_EQ(record.objects[0].unit, CoordinateUnit::kNormalized1000);
  EXPECT_THAT(record.notices, IsEmpty());
}

TEST_F(ObjectMarksTest, MarksInToolCallsAreProblems) {
  const Record record = read_record(R"({"images": ["a.jpg"], "objects": {"bbox": [[1, 2, 3, 4]]}, "messages": [
      {"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function",
      "function": {"name": "zoom", "arguments": {"box": "<bbox>"}}}]}]})");
  EXPECT_THAT(record.problem, HasSubstr("in \"tool_calls\", where marks are not replaced"));
}

TEST_F(ObjectMarksTest, FindsCoordinatesInTexts) {
  const RecordSettings settings{.boxes = {.unit = CoordinateUnit::kNormalized1000}};
  const Record record =
      read("What is in [10, 20, 30, 40.5]?", R"({\"bbox_2d\": [1,2,3,4]} (5,6),(7,8) [9, 9])", "", settings);
  EXPECT_EQ(record.problem, "");
  ASSERT_EQ(record.objects.size(), 3);
  EXPECT_THAT(record.objects[0].coordinates, ElementsAre(10, 20, 30, 40.5));
  EXPECT_EQ(record.objects[0].unit, CoordinateUnit::kNormalized1000);
  EXPECT_EQ(get_text(record, record.objects[0].number_ranges[3], 0), "40.5");
  EXPECT_THAT(record.objects[1].coordinates, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(record.objects[2].coordinates, ElementsAre(5, 6, 7, 8));
  EXPECT_EQ(get_text(record, record.objects[2].range, 1), "(5,6),(7,8)");
}

TEST_F(ObjectMarksTest, CoordinatesBelongToTheImageBeforeThem) {
  const RecordSettings settings{.boxes = {.unit = CoordinateUnit::kAbsolute}};
  const Record record =
      read("[1, 1, 2, 2] <image> [3, 3, 4, 4]", "[5, 5, 6, 6]", R"(, "images": ["a.jpg", "b.jpg"])", settings);
  ASSERT_EQ(record.objects.size(), 3) << record.problem;
  EXPECT_EQ(record.objects[0].image_index, 0);
  EXPECT_EQ(record.objects[1].image_index, 1);
  EXPECT_EQ(record.objects[2].image_index, 1);
}

TEST_F(ObjectMarksTest, PatternsCanNameTheirGroups) {
  const RecordSettings settings{
      .boxes = {.unit = CoordinateUnit::kAbsolute, .pattern = R"(<point y=(?<y>\d+) x=(?<x>\d+)>)"}};
  const Record record = read("?", "<point y=7 x=3>", "", settings);
  ASSERT_EQ(record.objects.size(), 1) << record.problem;
  EXPECT_THAT(record.objects[0].coordinates, ElementsAre(3, 7));
}

TEST_F(ObjectMarksTest, BadPatternsAreUsageErrors) {
  const auto expect_error = [&](const BoxSettings& boxes, const char* message) {
    try {
      read("?", "!", "", {.boxes = boxes});
      FAIL() << message;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  };
  expect_error({.pattern = "(1)(2)"}, "needs data.boxes.in");
  expect_error({.unit = CoordinateUnit::kAbsolute, .pattern = "(1"}, "invalid regular expression");
  expect_error({.unit = CoordinateUnit::kAbsolute, .pattern = "(1)(2)(3)"}, "has 3 groups");
  expect_error({.unit = CoordinateUnit::kAbsolute, .pattern = "(?<a>1)(?<b>2)"}, "name its groups x1, y1, x2 and y2");
  expect_error({.unit = CoordinateUnit::kAbsolute, .pattern = "(?<x2>1)(?<y2>2)"}, "name its groups");
}

TEST_F(ObjectMarksTest, GroupsOutsideOfTheMatchAreProblems) {
  const RecordSettings settings{.boxes = {.unit = CoordinateUnit::kAbsolute, .pattern = R"((?=(\d+),(\d+)))"}};
  EXPECT_THAT(read("?", "11,12 ok", "", settings).problem, HasSubstr("a group outside of its match"));
}

TEST_F(ObjectMarksTest, CoordinatesThatAreNotRewrittenAreProblems) {
  const RecordSettings settings{.boxes = {.unit = CoordinateUnit::kAbsolute}};
  const Record record = read_record(R"({"images": ["a.jpg"], "messages": [{"role": "user", "content": "<image>?"},
      {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "zoom",
      "arguments": {"box": [1, 2, 3, 4]}}}]}]})",
                                    settings);
  EXPECT_THAT(record.problem, HasSubstr("coordinates in \"tool_calls\""));
  const Record video = read_record(R"({"videos": ["a.mp4"], "messages": [{"role": "user", "content": "<video>?"},
      {"role": "assistant", "content": "[1, 2, 3, 4]"}]})",
                                   settings);
  EXPECT_THAT(video.problem, HasSubstr("coordinates of a video"));
}

}  // namespace
}  // namespace vlmtrain::io
