#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "vlmtrain/io/dataset_file.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class RecordVolumes : public TemporaryFolderTest {
 protected:
  /// A question with `placeholders` before it, and `fields` as JSON.
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
  EXPECT_THAT(record.subjects, ElementsAre("sub-01"));
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
  EXPECT_THAT(record.subjects, ElementsAre("7"));
}

TEST_F(RecordVolumes, ThatCannotBeAssignedAreProblems) {
  EXPECT_THAT(read_with_fields(R"("image": "a.png", "volume": "b.nii")").problem, HasSubstr("images and volumes"));
  EXPECT_THAT(read_with_fields(R"("volumes": ["a.nii", "b.nii"])", "<image>").problem,
              AllOf(HasSubstr("1 <image> marks for 2 volumes"), HasSubstr("each volume")));
  EXPECT_THAT(read_with_fields(R"("volumes": ["a.nii", "b.nii", "c.nii"], "modality": ["T1w", "T2w"])").problem,
              HasSubstr("2 modalities for 3 volumes"));
  EXPECT_THAT(read_with_fields(R"("volume": "a.nii", "modality": {"name": "T1w"})").problem, HasSubstr("\"modality\""));
}

/// Other data sets have fields of these names that mean something else.
TEST_F(RecordVolumes, FieldsWithOtherMeaningsAreIgnored) {
  const Record record =
      read_with_fields(R"("image": "a.png", "volume": 12.5, "modality": {"name": "CT"}, "subject_id": [[1]])");
  EXPECT_EQ(record.problem, "");
  EXPECT_FALSE(record.images.at(0).is_volume);
  EXPECT_THAT(record.subjects, IsEmpty());
}

}  // namespace
}  // namespace vlmtrain::io
