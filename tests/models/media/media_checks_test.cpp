#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/mask_samples.h"
#include "models/media/media_opener.h"
#include "parity/tiny_preset.h"

namespace vlmtrain::models {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

/// Returns a ramp from `low` to `high`.
at::Tensor make_ramp(int64_t low, int64_t high) {
  return (at::arange(64 * 64) % (high - low + 1) + low)
      .view({1, 64, 64})
      .expand({3, 64, 64})
      .to(at::kByte)
      .contiguous();
}

TEST(PixelNotices, UniformOrNarrowImagesAreNoticed) {
  EXPECT_FALSE(check_image_pixels(make_ramp(0, 255), "a.png"));
  EXPECT_FALSE(check_image_pixels(make_ramp(100, 116), "a.png")) << "low contrast, but not a wrong bit depth";
  const auto dark_notice = check_image_pixels(make_ramp(0, 15), "x12.png");
  ASSERT_TRUE(dark_notice) << "12 bits in a 16-bit file";
  EXPECT_THAT(dark_notice->kind, HasSubstr("scale its values"));
  EXPECT_EQ(dark_notice->example, "x12.png (values 0 to 15 of 255)");
  EXPECT_TRUE(check_image_pixels(make_ramp(240, 250), "a.png")) << "white";
  for (const int64_t value : {0, 128, 255}) {
    const auto blank_notice = check_image_pixels(at::full({3, 8, 8}, value, at::kByte), "blank.png");
    ASSERT_TRUE(blank_notice) << value;
    EXPECT_THAT(blank_notice->kind, HasSubstr("a single color"));
  }
  at::Tensor red_image = at::zeros({3, 8, 8}, at::kByte);
  red_image[0].fill_(200);
  EXPECT_THAT(check_image_pixels(red_image, "red.png")->kind, HasSubstr("a single color"));
  red_image[1][7][7] = 100;
  EXPECT_FALSE(check_image_pixels(red_image, "red.png"));
}

TEST(PixelNotices, UniformScanIsNoticed) {
  for (const auto type : {at::kFloat, at::kHalf, at::kByte}) {
    at::Tensor scan = at::full({1, 4, 4, 4}, 1, type);
    const auto notice = check_scan_values(scan, "s.nii");
    ASSERT_TRUE(notice) << type;
    EXPECT_THAT(notice->kind, HasSubstr("data.volume.window"));
    EXPECT_EQ(notice->example, "s.nii");
    scan[0][3][3][3] = 0;
    EXPECT_FALSE(check_scan_values(scan, "s.nii")) << type;
  }
  const at::Tensor black_slice = at::zeros({3, 5, 5}, at::kByte), white_slice = at::full({3, 5, 5}, 255, at::kByte);
  EXPECT_TRUE(check_volume_slices({black_slice, black_slice}, "s.nii"));
  EXPECT_FALSE(check_volume_slices({black_slice, white_slice}, "s.nii")) << "it differs from slice to slice";
  EXPECT_FALSE(check_volume_slices({black_slice, make_ramp(0, 255)}, "s.nii"));
}

/// A sample has at most one notice of each kind.
TEST(PixelNotices, AreInTheSample) {
  const MaskSamples data;
  const auto processor = data.processor();
  auto record = MaskSamples::make_record(
      "r", {data.write_image("blank", 40, 40), data.write_image("blank too", 40, 40)}, "What?", "Nothing.");
  EXPECT_THAT(processor->process(record, 0).notices, ElementsAre(Field(&io::Notice::example, HasSubstr("blank.png"))));
  EXPECT_THAT(processor->process_headers(record, 0).notices, IsEmpty()) << "headers do not show it";
  record.images = {data.write_image("seen", 40, 40, {MaskSamples::make_rectangle(40, 40, 5, 5, 10, 10)})};
  record.turns[0].text = "<image>What?";
  EXPECT_THAT(processor->process(record, 0).notices, IsEmpty());
}

TEST(PageNotices, FurtherPagesOfATiffAreNoticed) {
  const MaskSamples data;
  const auto processor = data.processor();
  const std::string folder = VLMTRAIN_SOURCE_DIR "/tests/image/data/tiff_heif/";
  auto record = MaskSamples::make_record("r", {folder + "two_pages.tif"}, "What?", "A page.");
  const io::Notice expected{.kind = "a TIFF with several pages, of which only the first is used",
                            .example = folder + "two_pages.tif (2 pages)"};
  EXPECT_THAT(processor->process_headers(record, 0).notices, ElementsAre(expected));
  EXPECT_THAT(processor->process(record, 0).notices, Contains(expected));
  record.images = {folder + "rgb.tif"};
  EXPECT_THAT(processor->process_headers(record, 0).notices, IsEmpty());
}

/// A windowed scan of air, as volumes and as slices.
TEST(PixelNotices, ScansOutsideTheWindowAreNoticed) {
  const parity::TinyPreset volume_preset("brain-llava-tiny"), image_preset("smolvlm-tiny");
  ProcessorSettings window_settings;
  window_settings.volume.normalization = image::VolumeNormalization::kWindow;
  window_settings.volume.windows = {{1000, 2000}};
  const auto get_notices = [](const parity::TinyPreset& preset, const ProcessorSettings& settings,
                              const io::Record& record) {
    return load_processor(preset.checkpoint(), settings)->process(record, 0).notices;
  };
  const auto records = volume_preset.records();
  const auto record = std::ranges::find(records, "one", &io::Record::id);
  ASSERT_NE(record, records.end());
  EXPECT_THAT(get_notices(volume_preset, window_settings, *record),
              ElementsAre(Field(&io::Notice::kind, HasSubstr("a scan has a single value"))));
  ProcessorSettings slice_settings = window_settings;
  slice_settings.volume.input_form = data::VolumeInputForm::kSlices;
  EXPECT_THAT(get_notices(image_preset, slice_settings, *record),
              ElementsAre(Field(&io::Notice::kind, HasSubstr("a scan has a single value"))));
  slice_settings.volume.windows = {{0, 255}};
  EXPECT_THAT(get_notices(image_preset, slice_settings, *record), IsEmpty());
}

}  // namespace
}  // namespace vlmtrain::models
