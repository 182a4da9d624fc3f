#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/nifti_file.h"
#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/data/shape.h"
#include "vlmtrain/image/volume_slices.h"

namespace vlmtrain::models {
namespace {

using io::message_of;
using testing::AllOf;
using testing::HasSubstr;

/// A scan of so many slices, brighter towards the top, from `darkest`.
io::Medium scan_with(int64_t slices, int darkest) {
  NiftiFile file(NiftiFile::k1, {12, 10, slices}, 4);
  for (int64_t top = 0; top < slices; ++top) {
    for (int i = 0; i < 120; ++i) file.add_voxel(static_cast<int16_t>(darkest + 10 * top + i % 12));
  }
  io::Medium scan = scan_of(file.bytes());
  scan.is_volume = true;
  return scan;
}

/// A family of pictures that is given scans.
class SlicesOfSamples : public testing::Test {
 protected:
  SlicesOfSamples() {
    settings_.max_length = 8192;
    settings_.volume.use = data::VolumeUse::kSlices;
    settings_.volume.slices = 4;
  }
  std::unique_ptr<Processor> processor() const { return load_processor(case_.checkpoint(), settings_); }

  static io::Record record(const std::string& text, std::vector<io::Medium> media) {
    io::Record record;
    record.id = "scan";
    record.turns = {{io::Role::kUser, text}, {io::Role::kAssistant, "Yes."}};
    record.images = std::move(media);
    return record;
  }

  const parity::Case case_{"mixed_batch"};
  ProcessorSettings settings_ = case_.processor_settings();
};

TEST_F(SlicesOfSamples, AMarkStandsForAllSlicesOfItsScan) {
  const auto processor = this->processor();
  const auto marks_in = [](const std::string& text, size_t& longest) {
    size_t marks = 0, row = 0, behind = 0;
    for (size_t at = text.find(io::kImageMark); at != std::string::npos; at = text.find(io::kImageMark, at + 1)) {
      row = at == behind ? row + 1 : 1;
      behind = at + io::kImageMark.size();
      longest = std::max(longest, row);
      ++marks;
    }
    return marks;
  };
  const io::Record two = record("Is <image> as <image> was?", {scan_with(9, 0), scan_with(3, 500)});
  const auto chat = processor->render(two, /*as_prompt=*/false);
  size_t longest = 0;
  EXPECT_EQ(chat.media.size(), 4U + 3U) << "no more than a scan has";
  EXPECT_EQ(marks_in(chat.text, longest), 7U);
  EXPECT_EQ(longest, 4U);
  EXPECT_LT(chat.text.find("Is <image>"), chat.text.find("<image> as <image>")) << chat.text;
  const data::Sample sample = processor->process(two, 0), outline = processor->outline(two, 0);
  EXPECT_EQ(sample.images, 7);
  EXPECT_EQ(sample.volumes, 0) << "they are pictures to the model";
  EXPECT_EQ(data::shape_of(sample), data::shape_of(outline));
  EXPECT_EQ(sample.token_ids, outline.token_ids);
}

TEST_F(SlicesOfSamples, AreInTheirOrderBesidePictures) {
  const auto processor = this->processor();
  const auto records = case_.records();
  const auto with_picture = std::ranges::find_if(records, [](const io::Record& one) { return one.images.size() == 1; });
  ASSERT_NE(with_picture, records.end());
  const io::Medium picture = with_picture->images[0];
  const io::Medium scan = scan_with(9, 0);
  const io::Record mixed = record("<image> and <image>, then <image>", {picture, scan, picture});
  const data::Sample sample = processor->process(mixed, 0);
  EXPECT_EQ(sample.images, 6);
  // Each slice has the pixels that it has as a picture alone.
  const auto seen = processor->seen(mixed, sample);
  std::vector<at::Tensor> slices;
  for (const SeenPicture& one : seen) {
    if (one.medium >= 1 && one.medium <= 4 && !one.is_overview) slices.push_back(one.pixels);
  }
  ASSERT_EQ(slices.size(), 4U);
  for (size_t i = 1; i < slices.size(); ++i) {
    EXPECT_LT(slices[i - 1].to(at::kFloat).mean().item<float>(), slices[i].to(at::kFloat).mean().item<float>());
  }
}

TEST_F(SlicesOfSamples, AreImagesForTheLimitAndAllOfThemHaveTokens) {
  const io::Record one = record("<image>Where?", {scan_with(9, 0)});
  settings_.max_images_per_sample = 4;
  EXPECT_NO_THROW(processor()->process(one, 0));
  settings_.max_images_per_sample = 3;
  EXPECT_THAT(message_of([&] { processor()->process(one, 0); }),
              HasSubstr("has 4 images, more than data.max_images_per_sample=3"));
  settings_.max_images_per_sample = std::nullopt;
  settings_.max_length = 100;
  settings_.on_too_long = data::LongSamplePolicy::kFail;
  EXPECT_THAT(message_of([&] { this->processor()->process(one, 0); }), HasSubstr("data.max_length"));
}

TEST_F(SlicesOfSamples, WithoutTheSettingAScanIsRefused) {
  settings_.volume.use = data::VolumeUse::kVolume;
  const auto error = message_of([&] { processor()->process(record("<image>Where?", {scan_with(9, 0)}), 0); });
  EXPECT_THAT(error, AllOf(HasSubstr("sample scan"), HasSubstr("data.volume.as=slices")));
}

}  // namespace
}  // namespace vlmtrain::models
