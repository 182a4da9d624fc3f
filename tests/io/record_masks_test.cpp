#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "vlmtrain/io/dataset_file.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class RecordMasks : public TemporaryFolderTest {
 protected:
  /// With one picture, and `masks` as JSON.
  Record read_with_masks(std::string_view masks) const {
    const auto path = put("train.json", fmt::format(R"([{{"image": "a.png", {}, "conversations": [
        {{"from": "human", "value": "Show it."}}, {{"from": "gpt", "value": "<SEG>"}}]}}])",
                                                    masks));
    return open_records(path, {.image_root = "root"})->at(0);
  }
};

TEST_F(RecordMasks, ArePathsObjectsAndRunLengths) {
  const Record single_mask = read_with_masks(R"("mask": "m.png")");
  EXPECT_EQ(single_mask.problem, "");
  EXPECT_EQ(single_mask.mask_problem, "");
  ASSERT_THAT(single_mask.masks, SizeIs(1));
  EXPECT_EQ(single_mask.masks[0], (MaskSource{.file = "root/m.png"}));

  const Record many_masks =
      read_with_masks(R"("masks": ["m.png", {"path": "n.png", "value": 3, "structure": "liver", "image": 0},
      {"size": [2, 3], "counts": [1, 5], "label": "bone"}, {"rle": {"size": [2, 3], "counts": [6]}},
      {"segmentation": {"size": [2, 3], "counts": [0, 6]}}])");
  EXPECT_EQ(many_masks.mask_problem, "");
  ASSERT_THAT(many_masks.masks, SizeIs(5));
  EXPECT_EQ(many_masks.masks[1], (MaskSource{.file = "root/n.png", .value = 3, .structure = "liver"}));
  EXPECT_EQ(many_masks.masks[2],
            (MaskSource{.rle = Rle{.height = 2, .width = 3, .counts = {1, 5}}, .structure = "bone"}));
  EXPECT_EQ(many_masks.masks[3].rle->counts, (std::vector<int64_t>{6}));
  EXPECT_EQ(many_masks.masks[4].rle->counts, (std::vector<int64_t>{0, 6}));
}

TEST_F(RecordMasks, MayBeAbsent) {
  EXPECT_THAT(read_with_masks(R"("id": "a")").masks, IsEmpty());
  EXPECT_THAT(read_with_masks(R"("mask": null)").masks, IsEmpty());
}

/// A record of another family's data set may call something else "mask": it stays usable.
TEST_F(RecordMasks, MaskProblemsDoNotAffectTheRecord) {
  const auto problem = [this](std::string_view masks) {
    const Record record = read_with_masks(masks);
    EXPECT_EQ(record.problem, "");
    EXPECT_THAT(record.masks, IsEmpty());
    return record.mask_problem;
  };
  EXPECT_THAT(problem(R"("mask": 7)"), AllOf(HasSubstr("mask 1 is neither a path"), HasSubstr("frPyObjects")));
  EXPECT_THAT(problem(R"("masks": ["a.png", {"segmentation": [[1, 2, 3, 4, 5, 6]]}])"), HasSubstr("mask 2"));
  EXPECT_THAT(problem(R"("mask": "a.png", "masks": ["b.png"])"), HasSubstr("keep one"));
  EXPECT_THAT(problem(R"("mask": {"path": "a.png", "image": 1})"),
              AllOf(HasSubstr("lies in picture 1"), HasSubstr("has 1")));
  EXPECT_THAT(problem(R"("mask": {"path": "a.png", "value": "x"})"), HasSubstr("whole number"));
  EXPECT_THAT(problem(R"("mask": {"size": [2, 3], "counts": [6], "value": 1})"), HasSubstr("take it out"));
  EXPECT_THAT(problem(R"("mask": {"size": [2, 3], "counts": [1, 4]})"), AllOf(HasSubstr("mask 1"), HasSubstr("5")));
}

}  // namespace
}  // namespace vlmtrain::io
