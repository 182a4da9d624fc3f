#include "vlmtrain/data/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::data {
namespace {

using testing::HasSubstr;

class DataOptionsTest : public testing::Test {
 protected:
  DataOptionsTest() { declare(table_, options_); }

  std::string error_of(const std::string& value) {
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
  EXPECT_EQ(options_.train, "a.json");
  EXPECT_EQ(options_.on_bad_sample, BadSamplePolicy::kSkip);
  EXPECT_EQ(options_.image_max_pixels, 1000);
  EXPECT_EQ(options_.video_fps, 0.5);
  EXPECT_EQ(options_.video_max_frames, 16);
  EXPECT_FALSE(options_.max_images_per_sample.has_value());
}

TEST_F(DataOptionsTest, RefusesWhatCannotBe) {
  EXPECT_THAT(error_of("data.packing=false"), HasSubstr("samples always lie end to end"));
  EXPECT_THAT(error_of("data.max_length=0"), HasSubstr("at least 1"));
  EXPECT_THAT(error_of("data.num_workers=0"), HasSubstr("from 1 to 1024"));
  EXPECT_THAT(error_of("data.image_max_pixels=0"), HasSubstr("auto, or at least 1"));
  EXPECT_THAT(error_of("data.max_images_per_sample=-1"), HasSubstr("auto, or at least 1"));
  EXPECT_THAT(error_of("data.video_fps=0"), HasSubstr("greater than 0"));
  EXPECT_THAT(error_of("data.video_max_frames=1"), HasSubstr("at least 2"));
  EXPECT_THAT(error_of("data.on_bad_sample=replace"), HasSubstr("one of fail, skip"));
}

}  // namespace
}  // namespace vlmtrain::data
