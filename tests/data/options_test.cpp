#include "vlmtrain/data/options.h"

#include <c10/core/ScalarType.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/data/media_options.h"

namespace vlmtrain::data {

namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

class DataOptionsTest : public io::TemporaryFolderTest {
 protected:
  DataOptionsTest() { declare_options(table_, options_); }

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
  EXPECT_TRUE(options_.train.has_weights_or_repeats());
  const auto yaml = table_.to_yaml();
  DataOptions restored;
  OptionTable table;
  declare_options(table, restored);
  table.read(put("config.yaml", yaml), {});
  EXPECT_EQ(restored.train.sources(), options_.train.sources());
  EXPECT_EQ(restored.task_shares.changes(), options_.task_shares.changes());
  ASSERT_EQ(restored.train.sources().size(), 2U);
  EXPECT_EQ(restored.train.sources()[0],
            (Source{.path = "a, b.json", .weight = 0.25, .task = "vqa", .image_root = {}}));
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
  EXPECT_THAT(get_error("data.train=[{path: a.json, weight: 1}, b.json]"),
              HasSubstr("only some sources have a weight"));
  EXPECT_THAT(get_error("data.train=[[a.json]]"), HasSubstr("a source is a path"));
  EXPECT_THAT(get_error("data.task_shares={vqa: -0.5}"), HasSubstr("numbers from 0 to"));
  EXPECT_THAT(get_error("data.task_shares={vqa: 1e308, caption: 1e308}"), HasSubstr("numbers from 0 to 1e+15"));
  EXPECT_THAT(get_error("data.train=[{path: a.json, weight: 1e308}]"), HasSubstr("at most 1e+15"));
  EXPECT_THAT(get_error("data.task_shares={vqa: 0}"), HasSubstr("no task has a share above 0"));
  EXPECT_THAT(get_error("data.task_shares=[vqa=1, vqa=2]"), HasSubstr("is given twice"));
  EXPECT_THAT(get_error("data.task_shares=[{step: 3, shares: {vqa: 1}}]"), HasSubstr("the first must be 0"));
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

using Sizes = image::PerAxis<int64_t>;
using Spacings = image::PerAxis<double>;

class VolumeOptionsTest : public io::TemporaryFolderTest {
 protected:
  VolumeOptionsTest() { declare_options(table_, options_); }

  std::string get_error(const std::string& setting) {
    return get_error_message([&] { table_.read("", {setting}); }, ExitCode::kUsage);
  }

  VolumeOptions options_;
  OptionTable table_;
};

TEST_F(VolumeOptionsTest, ReadsItsSection) {
  table_.read(
      put("config.yaml",
          "data:\n  volume: {as: slices, size: 96, spacing: [1, 1, 1.5], normalization: percentile,\n"
          "    percentiles: [1, 99], window: [[0, 80], [-160, 240], [300, 2000]], series: frames, max_frames: 4,\n"
          "    dtype: float16, slices: 12, plane: coronal}\n"),
      {});
  EXPECT_EQ(options_.input_form, VolumeInputForm::kSlices);
  EXPECT_EQ(options_.size, (Sizes{96, 96, 96}));
  EXPECT_EQ(options_.spacing, (Spacings{1, 1, 1.5}));
  EXPECT_EQ(options_.normalization, image::VolumeNormalization::kPercentile);
  EXPECT_EQ(options_.percentiles, (std::array{1.0, 99.0}));
  ASSERT_EQ(options_.windows.size(), 3U);
  EXPECT_EQ(options_.windows[1], (std::array{-160.0, 240.0}));
  EXPECT_EQ(options_.time_series_mode, image::TimeSeriesMode::kSampledFrames);
  EXPECT_EQ(options_.max_frames, 4);
  EXPECT_EQ(options_.dtype, at::kHalf);
  const auto slices = options_.make_slice_settings();
  EXPECT_EQ(slices.max_slices, 12);
  EXPECT_EQ(slices.plane, image::SlicePlane::kCoronal);
  EXPECT_EQ(slices.windows, options_.windows);
}

TEST_F(VolumeOptionsTest, RoundTripsThroughYaml) {
  table_.read("", {"data.volume.size=[48,48,32]", "data.volume.spacing=1.5", "data.volume.window=[-160, 240]",
                   "data.volume.normalization=window"});
  EXPECT_EQ(options_.size, (Sizes{48, 48, 32}));
  EXPECT_EQ(options_.spacing, (Spacings{1.5, 1.5, 1.5}));
  EXPECT_EQ(options_.make_volume_settings({8, 8, 8}).window, (std::array{-160.0, 240.0}));
  VolumeOptions restored;
  OptionTable table;
  declare_options(table, restored);
  table.read(put("config.yaml", table_.to_yaml()), {});
  EXPECT_EQ(restored.size, options_.size);
  EXPECT_EQ(restored.spacing, options_.spacing);
  EXPECT_EQ(restored.windows, options_.windows);
  EXPECT_EQ(table.to_yaml(), table_.to_yaml());
  table_.read("", {"data.volume.size=auto", "data.volume.spacing=auto", "data.volume.window=[]"});
  EXPECT_FALSE(options_.size || options_.spacing);
  EXPECT_TRUE(options_.windows.empty());
}

TEST_F(VolumeOptionsTest, UsesTheModelsSizeByDefault) {
  const auto settings = options_.make_volume_settings({32, 40, 48});
  EXPECT_EQ(settings.size, (Sizes{32, 40, 48}));
  EXPECT_FALSE(settings.spacing);
  EXPECT_EQ(settings.time_series_mode, image::TimeSeriesMode::kRejected);
  EXPECT_EQ(settings.dtype, at::kFloat);
}

TEST_F(VolumeOptionsTest, RejectsInvalidValuesAndNamesValidOnes) {
  for (const char* value : {"0", "7", "1025", "12.5", "[48, 48]", "[48, 48, x]", "big"}) {
    EXPECT_THAT(get_error(std::string("data.volume.size=") + value),
                AllOf(HasSubstr("data.volume.size"), HasSubstr("8 to 1024"), HasSubstr("three")))
        << value;
  }
  for (const char* value : {"0", "-1", "51", "[1, 1]", ".nan", "thick"}) {
    EXPECT_THAT(get_error(std::string("data.volume.spacing=") + value),
                AllOf(HasSubstr("data.volume.spacing"), HasSubstr("mm")))
        << value;
  }
  for (const char* value : {"[1]", "[99, 1]", "[-1, 99]", "[0, 101]", "5"}) {
    EXPECT_THAT(get_error(std::string("data.volume.percentiles=") + value), HasSubstr("[0.5, 99.5]")) << value;
  }
  for (const char* value : {"[240, -160]", "[[0, 80], [0, 90]]", "[1, .inf]", "bone"}) {
    EXPECT_THAT(get_error(std::string("data.volume.window=") + value), HasSubstr("[-160, 240]")) << value;
  }
  EXPECT_THAT(get_error("data.volume.normalization=minmax"),
              AllOf(HasSubstr("zscore_foreground"), HasSubstr("window")));
  EXPECT_THAT(get_error("data.volume.series=4d"), AllOf(HasSubstr("refuse"), HasSubstr("mean"), HasSubstr("frames")));
  EXPECT_THAT(get_error("data.volume.as=pictures"), HasSubstr("slices"));
  EXPECT_THAT(get_error("data.volume.dtype=bfloat16"), HasSubstr("float16"));
  EXPECT_THAT(get_error("data.volume.plane=oblique"), HasSubstr("sagittal"));
  EXPECT_THAT(get_error("data.volume.max_frames=0"), HasSubstr("1"));
  EXPECT_THAT(get_error("data.volume.slices=5000"), HasSubstr("4096"));
}

TEST_F(VolumeOptionsTest, WindowWithoutValuesIsAUsageError) {
  table_.read("", {"data.volume.normalization=window"});
  EXPECT_THAT(get_error_message(
                  [&] {
                    options_.make_volume_settings({8, 8, 8});
                  },
                  ExitCode::kUsage),
              HasSubstr("data.volume.window=[-160,240]"));
}

}  // namespace

}  // namespace vlmtrain::data
