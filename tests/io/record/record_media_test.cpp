#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class RecordMasks : public TemporaryFolderTest {
 protected:
  /// Reads a record with one image and `masks`, given as JSON.
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

/// Data sets for other purposes may use the key "mask" for other values. Their records stay usable.
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
              AllOf(HasSubstr("is for image 1"), HasSubstr("has 1")));
  EXPECT_THAT(problem(R"("mask": {"path": "a.png", "value": "x"})"), HasSubstr("whole number"));
  EXPECT_THAT(problem(R"("mask": {"size": [2, 3], "counts": [6], "value": 1})"), HasSubstr("remove it"));
  EXPECT_THAT(problem(R"("mask": {"size": [2, 3], "counts": [1, 4]})"), AllOf(HasSubstr("mask 1"), HasSubstr("5")));
}

class RecordVolumes : public TemporaryFolderTest {
 protected:
  /// Reads a record whose question starts with `placeholders`. `fields` are further keys as JSON.
  Record read_with_fields(std::string_view fields, std::string_view placeholders = "") const {
    const auto path = put("train.json", fmt::format(R"([{{{}, "conversations": [
        {{"from": "human", "value": "{}Which side?"}}, {{"from": "gpt", "value": "left"}}]}}])",
                                                    fields, placeholders));
    return open_records(path, {.image_root = "root"})->at(0);
  }
};

TEST_F(RecordVolumes, UseImagePlaceholders) {
  const Record record = read_with_fields(
      R"("volumes": ["a.nii.gz", "b.nii"], "modality": ["T1w", "FLAIR"], "subject_id": "sub-01", "task_type": "T2")",
      "<image> and <image>\\n");
  EXPECT_EQ(record.problem, "");
  ASSERT_THAT(record.images, SizeIs(2));
  EXPECT_EQ(record.images[0].path, "root/a.nii.gz");
  EXPECT_TRUE(record.images[0].is_volume);
  EXPECT_EQ(record.images[0].modality, "T1w");
  EXPECT_EQ(record.images[1].modality, "FLAIR");
  EXPECT_THAT(record.subject_ids, ElementsAre("sub-01"));
  EXPECT_EQ(record.task, "T2");
}

TEST_F(RecordVolumes, WithoutPlaceholdersPrecedeTheFirstQuestion) {
  const Record record = read_with_fields(R"("volume": "a.nii", "modality": "T1w")");
  EXPECT_EQ(record.problem, "");
  EXPECT_THAT(record.turns[0].text, HasSubstr("<image>"));
  EXPECT_EQ(record.images.at(0).modality, "T1w");
}

TEST_F(RecordVolumes, AreImagesThatAreNamedLikeNifti) {
  const Record record = read_with_fields(R"("images": ["a.png", "b.NII.GZ"], "modality": "bold")");
  ASSERT_THAT(record.images, SizeIs(2));
  EXPECT_FALSE(record.images[0].is_volume);
  EXPECT_EQ(record.images[0].modality, "");
  EXPECT_TRUE(record.images[1].is_volume);
  EXPECT_EQ(record.images[1].modality, "bold");
}

TEST_F(RecordVolumes, MayBeContentBlocks) {
  const auto path = put("train.json", R"([{"subject_id": 7, "messages": [
      {"role": "user", "content": [{"type": "volume", "volume": "a.nii"}, {"type": "text", "text": "Which side?"}]},
      {"role": "assistant", "content": "left"}]}])");
  const Record record = open_records(path, {})->at(0);
  EXPECT_EQ(record.problem, "");
  EXPECT_TRUE(record.images.at(0).is_volume);
  EXPECT_THAT(record.subject_ids, ElementsAre("7"));
}

TEST_F(RecordVolumes, ThatCannotBeAssignedAreProblems) {
  EXPECT_THAT(read_with_fields(R"("image": "a.png", "volume": "b.nii")").problem, HasSubstr("images and volumes"));
  EXPECT_THAT(read_with_fields(R"("volumes": ["a.nii", "b.nii"])", "<image>").problem,
              AllOf(HasSubstr("1 <image> placeholder for 2 volumes"), HasSubstr("each volume")));
  EXPECT_THAT(read_with_fields(R"("volumes": ["a.nii", "b.nii", "c.nii"], "modality": ["T1w", "T2w"])").problem,
              HasSubstr("2 modalities for 3 volumes"));
  EXPECT_THAT(read_with_fields(R"("volume": "a.nii", "modality": {"name": "T1w"})").problem, HasSubstr("\"modality\""));
}

/// Other data sets use these keys with another meaning.
TEST_F(RecordVolumes, FieldsWithOtherMeaningsAreIgnored) {
  const Record record =
      read_with_fields(R"("image": "a.png", "volume": 12.5, "modality": {"name": "CT"}, "subject_id": [[1]])");
  EXPECT_EQ(record.problem, "");
  EXPECT_FALSE(record.images.at(0).is_volume);
  EXPECT_THAT(record.subject_ids, IsEmpty());
}

}  // namespace
}  // namespace vlmtrain::io
