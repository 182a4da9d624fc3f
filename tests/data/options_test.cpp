#include "vlmtrain/data/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::data {
namespace {

using testing::HasSubstr;

class DataOptionsTest : public io::TemporaryFolderTest {
 protected:
  DataOptionsTest() { declare(table_, options_); }

  std::string get_error(const std::string& value) {
    try {
      table_.read("", {value});
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }

  DataOptions options_;
  OptionTable table_;
};

TEST_F(DataOptionsTest, ReadsValues) {
  EXPECT_EQ(options_.on_bad_sample, BadSamplePolicy::kFail);
  table_.read("", {"data.train=a.json", "data.on_bad_sample=skip", "data.image_max_pixels=1000", "data.packing=true",
                   "data.max_images_per_sample=auto", "data.video_fps=0.5", "data.video_max_frames=16"});
  EXPECT_EQ(options_.train.name(), "a.json");
  EXPECT_EQ(options_.on_bad_sample, BadSamplePolicy::kSkip);
  EXPECT_EQ(options_.image_max_pixels, 1000);
  EXPECT_EQ(options_.video_fps, 0.5);
  EXPECT_EQ(options_.video_max_frames, 16);
  EXPECT_FALSE(options_.max_images_per_sample.has_value());
}

TEST_F(DataOptionsTest, SourcesAndSharesRoundTripThroughYaml) {
  table_.read("",
              {"data.train=[{path: 'a, b.json', weight: 0.25, task: vqa}, {path: 7.json, weight: 3, image_root: /d}]",
               "data.task_shares=[{step: 0, shares: {vqa: 1, caption: 0}}, {step: 50, shares: [vqa=1, caption=2]}]"});
  EXPECT_EQ(options_.train.name(), "a, b.json and 1 more source");
  EXPECT_TRUE(options_.train.has_shares());
  const auto yaml = table_.to_yaml();
  DataOptions restored;
  OptionTable table;
  declare(table, restored);
  table.read(put("config.yaml", yaml), {});
  EXPECT_EQ(restored.train.all(), options_.train.all());
  EXPECT_EQ(restored.task_shares.changes(), options_.task_shares.changes());
  ASSERT_EQ(restored.train.all().size(), 2U);
  EXPECT_EQ(restored.train.all()[0], (Source{.path = "a, b.json", .weight = 0.25, .task = "vqa", .image_root = {}}));
  ASSERT_EQ(restored.task_shares.changes().size(), 2U);
  EXPECT_EQ(restored.task_shares.changes()[1].shares[1], std::pair(std::string("caption"), 2.0));
}

TEST_F(DataOptionsTest, RejectsInvalidValues) {
  EXPECT_THAT(get_error("data.train={path: a.json, weights: 1}"), HasSubstr("did you mean weight?"));
  EXPECT_THAT(get_error("data.train={weight: 1}"), HasSubstr("a source has no path"));
  EXPECT_THAT(get_error("data.train=[{path: a.json, weight: -1}]"),
              HasSubstr("greater than 0 and at most 1e+15, not -1"));
  EXPECT_THAT(get_error("data.train=[{path: a.json, weight: .nan}]"), HasSubstr("at most 1e+15, not nan"));
  EXPECT_THAT(get_error("data.train=[{path: a.json, weight: 1, repeat: 2}]"), HasSubstr("both weight and repeat"));
  EXPECT_THAT(get_error("data.train=[{path: a.json, weight: 1}, b.json]"), HasSubstr("give each one"));
  EXPECT_THAT(get_error("data.train=[[a.json]]"), HasSubstr("a source is a path"));
  EXPECT_THAT(get_error("data.task_shares={vqa: -0.5}"), HasSubstr("numbers from 0 to"));
  EXPECT_THAT(get_error("data.task_shares={vqa: 1e308, caption: 1e308}"), HasSubstr("numbers from 0 to 1e+15"));
  EXPECT_THAT(get_error("data.train=[{path: a.json, weight: 1e308}]"), HasSubstr("at most 1e+15"));
  EXPECT_THAT(get_error("data.task_shares={vqa: 0}"), HasSubstr("no task has a share above 0"));
  EXPECT_THAT(get_error("data.task_shares=[vqa=1, vqa=2]"), HasSubstr("stands twice"));
  EXPECT_THAT(get_error("data.task_shares=[{step: 3, shares: {vqa: 1}}]"), HasSubstr("the first is 0"));
  EXPECT_THAT(get_error("data.pack_max_tokens=0"), HasSubstr("at least 1"));
  EXPECT_THAT(get_error("data.eval=5%"), HasSubstr("such as 0.05"));
  EXPECT_THAT(get_error("data.max_length=0"), HasSubstr("at least 1"));
  EXPECT_THAT(get_error("data.num_workers=0"), HasSubstr("from 1 to 1024"));
  EXPECT_THAT(get_error("data.image_max_pixels=0"), HasSubstr("auto, or at least 1"));
  EXPECT_THAT(get_error("data.max_images_per_sample=-1"), HasSubstr("auto, or at least 1"));
  EXPECT_THAT(get_error("data.video_fps=0"), HasSubstr("greater than 0"));
  EXPECT_THAT(get_error("data.video_max_frames=1"), HasSubstr("at least 2"));
  EXPECT_THAT(get_error("data.on_bad_sample=replace"), HasSubstr("one of fail, skip"));
}

}  // namespace
}  // namespace vlmtrain::data
