#include "models/processing/pixel_notices.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/mask_samples.h"
#include "parity/tiny_preset.h"

namespace vlmtrain::models {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

/// A ramp from `low` to `high`.
at::Tensor ramp(int64_t low, int64_t high) {
  return (at::arange(64 * 64) % (high - low + 1) + low)
      .view({1, 64, 64})
      .expand({3, 64, 64})
      .to(at::kByte)
      .contiguous();
}

TEST(PixelNotices, AnImageOfOneColorOrOfFewValuesIsNoticed) {
  EXPECT_FALSE(notice_of_image(ramp(0, 255), "a.png"));
  EXPECT_FALSE(notice_of_image(ramp(100, 116), "a.png")) << "pale, but no mistake of bits";
  const auto dark = notice_of_image(ramp(0, 15), "x12.png");
  ASSERT_TRUE(dark) << "12 bits in a file of 16";
  EXPECT_THAT(dark->kind, HasSubstr("scale its values"));
  EXPECT_EQ(dark->example, "x12.png (values 0 to 15 of 255)");
  EXPECT_TRUE(notice_of_image(ramp(240, 250), "a.png")) << "white";
  for (const int64_t value : {0, 128, 255}) {
    const auto blank = notice_of_image(at::full({3, 8, 8}, value, at::kByte), "blank.png");
    ASSERT_TRUE(blank) << value;
    EXPECT_THAT(blank->kind, HasSubstr("one color"));
  }
  at::Tensor red = at::zeros({3, 8, 8}, at::kByte);
  red[0].fill_(200);
  EXPECT_THAT(notice_of_image(red, "red.png")->kind, HasSubstr("one color"));
  red[1][7][7] = 100;
  EXPECT_FALSE(notice_of_image(red, "red.png"));
}

TEST(PixelNotices, AScanOfOneValueIsNoticed) {
  for (const auto type : {at::kFloat, at::kHalf, at::kByte}) {
    at::Tensor scan = at::full({1, 4, 4, 4}, 1, type);
    const auto notice = notice_of_scan(scan, "s.nii");
    ASSERT_TRUE(notice) << type;
    EXPECT_THAT(notice->kind, HasSubstr("data.volume.window"));
    EXPECT_EQ(notice->example, "s.nii");
    scan[0][3][3][3] = 0;
    EXPECT_FALSE(notice_of_scan(scan, "s.nii")) << type;
  }
  const at::Tensor black = at::zeros({3, 5, 5}, at::kByte), white = at::full({3, 5, 5}, 255, at::kByte);
  EXPECT_TRUE(notice_of_slices({black, black}, "s.nii"));
  EXPECT_FALSE(notice_of_slices({black, white}, "s.nii")) << "it differs from slice to slice";
  EXPECT_FALSE(notice_of_slices({black, ramp(0, 255)}, "s.nii"));
}

/// In the samples of each family: once of a kind, whatever it has of it.
TEST(PixelNotices, StandInTheSample) {
  const MaskSamples data;
  const auto processor = data.processor();
  auto record =
      MaskSamples::record("r", {data.picture("blank", 40, 40), data.picture("blank too", 40, 40)}, "What?", "Nothing.");
  EXPECT_THAT(processor->process(record, 0).notices, ElementsAre(Field(&io::Notice::example, HasSubstr("blank.png"))));
  EXPECT_THAT(processor->outline(record, 0).notices, IsEmpty()) << "headers do not show it";
  record.images = {data.picture("seen", 40, 40, {MaskSamples::rectangle(40, 40, 5, 5, 10, 10)})};
  record.turns[0].text = "<image>What?";
  EXPECT_THAT(processor->process(record, 0).notices, IsEmpty());
}

/// A windowed scan of air, as volumes and as slices.
TEST(PixelNotices, ScansOutsideOfTheWindowAreNoticed) {
  const parity::TinyPreset brain("brain-llava-tiny"), pictures("smolvlm-tiny");
  ProcessorSettings windowed;
  windowed.volume.normalization = image::VolumeNormalization::kWindow;
  windowed.volume.windows = {{1000, 2000}};
  const auto noticed = [](const parity::TinyPreset& preset, const ProcessorSettings& settings,
                          const io::Record& record) {
    return load_processor(preset.checkpoint(), settings)->process(record, 0).notices;
  };
  const auto records = brain.records();
  const auto one = std::ranges::find(records, "one", &io::Record::id);
  ASSERT_NE(one, records.end());
  EXPECT_THAT(noticed(brain, windowed, *one), ElementsAre(Field(&io::Notice::kind, HasSubstr("a scan has one value"))));
  ProcessorSettings slices = windowed;
  slices.volume.use = data::VolumeUse::kSlices;
  EXPECT_THAT(noticed(pictures, slices, *one),
              ElementsAre(Field(&io::Notice::kind, HasSubstr("a scan has one value"))));
  slices.volume.windows = {{0, 255}};
  EXPECT_THAT(noticed(pictures, slices, *one), IsEmpty());
}

}  // namespace
}  // namespace vlmtrain::models
