// Tests the types of Arrow and Parquet other than strings, numbers, lists and structs. Each is
// converted to its meaning or reported by name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/dataset/record_files.h"
#include "io/parquet_test.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ParquetTypes : public ParquetTest {
 protected:
  static RecordJson read_row(const std::string& name, int64_t index) {
    RecordJson row = open_row_file(golden_path(name))->read(0, /*include_media_bytes=*/true)->row(index);
    replace_unsupported_cells(row);
    return row;
  }
};

TEST_F(ParquetTypes, ReadsViewTypes) {
  const auto records = open_records(golden_path("views.parquet"), {});
  const Record first = records->at(0), second = records->at(1);
  EXPECT_EQ(first.problem, "");
  EXPECT_EQ(*first.images.at(0).bytes, "picture 0") << "binary_view";
  EXPECT_EQ(first.turns.at(1).text, "A2") << "large_list_view";
  EXPECT_EQ(second.turns.at(0).text, "<image>\nQ1") << "string_view";
  EXPECT_EQ(second.turns.at(1).text, "A1") << "dictionary";
  EXPECT_EQ(read_row("views.parquet", 0)["subject_id"], RecordJson({"s", "t"})) << "list_view";
  EXPECT_EQ(read_row("views.parquet", 1)["subject_id"], nullptr);
}

TEST_F(ParquetTypes, ParsesNestedJsonCells) {
  const auto columns = open_records(golden_path("json_columns.parquet"), {.image_root = "/root"});
  EXPECT_EQ(columns->at(0).problem, "");
  EXPECT_EQ(columns->at(0).id, "text");
  EXPECT_EQ(columns->at(1).id, "3");
  EXPECT_EQ(columns->at(1).turns.at(1).text, "A");
  EXPECT_THAT(columns->at(1).images, ElementsAre("/root/a.png")) << "a struct without bytes";
  EXPECT_EQ(columns->at_without_media_bytes(1).images, columns->at(1).images) << "the same without bytes";
  EXPECT_THAT(columns->at(2).problem,
              HasSubstr("its column \"messages\" has the type arrow.json and is not valid JSON at line 1, column"));

  const auto contents = open_records(golden_path("json_contents.parquet"), {});
  EXPECT_EQ(contents->at(0).problem, "");
  EXPECT_EQ(contents->at(0).turns.at(0).text, "Q");
  EXPECT_EQ(contents->at(0).turns.at(1).text, "A") << "blocks";
  EXPECT_EQ(contents->at(1).turns.at(0).text, "1.5");
  EXPECT_EQ(contents->at(1).turns.at(1).text, "B");
}

TEST_F(ParquetTypes, ConvertsScalarTypes) {
  const RecordJson row = read_row("values.parquet", 0);
  EXPECT_EQ(row["question"], 1.5) << "half float";
  EXPECT_EQ(row["answer"], "12.50") << "decimal";
  EXPECT_EQ(row["id"], "30313233-3435-3637-3839-616263646566") << "arrow.uuid";
  EXPECT_EQ(row["task"], "1970-01-02") << "date";
  EXPECT_EQ(row["kind"], true) << "arrow.bool8";
  EXPECT_EQ(row["left"], (RecordJson{{"a", 1}, {"b", 2}})) << "map";
  EXPECT_EQ(row["none"], nullptr);
  const RecordJson empty = read_row("values.parquet", 1);
  for (const auto& [column, value] : empty.items()) EXPECT_EQ(value, nullptr) << column;
}

TEST_F(ParquetTypes, ReportsUnsupportedTypes) {
  const Record unused = open_records(golden_path("values.parquet"), {})->at(0);
  EXPECT_EQ(unused.problem, "");
  EXPECT_THAT(unused.notices,
              testing::Contains(Notice{.kind = "column \"length\" of the type duration[s]", .example = ""}));
  EXPECT_THAT(open_records(golden_path("values.parquet"), {})->at(1).notices,
              testing::Not(testing::Contains(testing::Field(&Notice::kind, HasSubstr("length")))));

  const auto problem = [](const std::string& name, const RecordSettings& settings = {}) {
    return open_records(golden_path(name), settings)->at(0).problem;
  };
  EXPECT_THAT(problem("durations.parquet"),
              AllOf(HasSubstr("its column \"answer\" has the type duration[ms], which is not supported"),
                    HasSubstr("write it as text")));
  EXPECT_THAT(problem("tensors.parquet"), HasSubstr("extension<arrow.fixed_shape_tensor"));
  EXPECT_THAT(problem("values.parquet", {.columns = {{"answer", "length"}}}), HasSubstr("its column \"length\""));
}

TEST_F(ParquetTypes, RunLengthsMayBeBytes) {
  const Record record = open_records(golden_path("run_lengths.parquet"), {})->at(0);
  EXPECT_EQ(record.mask_problem, "");
  ASSERT_EQ(record.masks.size(), 1);
  EXPECT_THAT(record.masks[0].rle.value().counts, ElementsAre(16));
}

TEST(RowValues, AreResolvedWithinListsAndObjects) {
  RecordJson row{
      {"a", {{"b", {make_special_cell(SpecialCellKind::kJsonText, R"({"c": [1, null]})"), 2}}}},
      {"d", make_special_cell(SpecialCellKind::kUnsupportedType, "duration[s]")},
      {"e",
       {make_special_cell(SpecialCellKind::kJsonText, "["), make_special_cell(SpecialCellKind::kJsonText, "\xff")}},
      {"f", RecordJson::binary({1, 2})}};
  const auto unsupported_cells = replace_unsupported_cells(row);
  EXPECT_EQ(row["a"]["b"][0]["c"], RecordJson({1, nullptr}));
  EXPECT_EQ(row["d"], nullptr);
  EXPECT_EQ(row["e"], RecordJson({nullptr, nullptr}));
  EXPECT_TRUE(row["f"].is_binary());
  ASSERT_EQ(unsupported_cells.size(), 2);
  EXPECT_EQ(unsupported_cells[0].column, "d");
  EXPECT_EQ(unsupported_cells[0].type, "duration[s]");
  EXPECT_EQ(unsupported_cells[1].column, "e");
  EXPECT_THAT(replace_unsupported_cells(row), IsEmpty());
}

}  // namespace
}  // namespace vlmtrain::io
