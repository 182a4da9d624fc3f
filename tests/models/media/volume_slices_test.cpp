#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/nifti_file.h"
#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/image/volume.h"
#include "vlmtrain/models/media_preview.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

/// Writes a scan of `slices` slices that become brighter toward the top, starting at `darkest`.
io::MediaRef make_sliced_scan(int64_t slices, int darkest) {
  NiftiFile file(NiftiFile::k1, {12, 10, slices}, 4);
  for (int64_t top = 0; top < slices; ++top) {
    for (int i = 0; i < 120; ++i) file.add_voxel(static_cast<int16_t>(darkest + 10 * top + i % 12));
  }
  io::MediaRef scan = make_scan(file.bytes());
  scan.is_volume = true;
  return scan;
}

/// Scans as input of a family with an image tower.
class VolumeSlices : public testing::Test {
 protected:
  VolumeSlices() {
    settings_.max_length = 8192;
    settings_.volume.input_form = data::VolumeInputForm::kSlices;
    settings_.volume.max_slices = 4;
  }
  std::unique_ptr<Processor> processor() const { return load_processor(case_.checkpoint(), settings_); }

  static io::Record make_record(const std::string& text, std::vector<io::MediaRef> media) {
    io::Record result;
    result.id = "scan";
    result.turns = {{io::Role::kUser, text}, {io::Role::kAssistant, "Yes."}};
    result.images = std::move(media);
    return result;
  }

  const parity::Case case_{"mixed_batch"};
  ProcessorSettings settings_ = case_.processor_settings();
};

TEST_F(VolumeSlices, MarkIsReplacedByAllSlices) {
  const auto processor = this->processor();
  const auto count_marks = [](const std::string& text, size_t& longest_run) {
    size_t marks = 0, run_length = 0, previous_end = 0;
    for (size_t position = text.find(io::kImagePlaceholder); position != std::string::npos;
         position = text.find(io::kImagePlaceholder, position + 1)) {
      run_length = position == previous_end ? run_length + 1 : 1;
      previous_end = position + io::kImagePlaceholder.size();
      longest_run = std::max(longest_run, run_length);
      ++marks;
    }
    return marks;
  };
  const io::Record scan_record =
      make_record("Is <image> as <image> was?", {make_sliced_scan(9, 0), make_sliced_scan(3, 500)});
  const auto chat = processor->render(scan_record, /*as_prompt=*/false);
  size_t longest_run = 0;
  EXPECT_EQ(chat.media.size(), 4U + 3U) << "at most the slices of the scan";
  EXPECT_EQ(count_marks(chat.text, longest_run), 7U);
  EXPECT_EQ(longest_run, 4U);
  EXPECT_LT(chat.text.find("Is <image>"), chat.text.find("<image> as <image>")) << chat.text;
  const data::Sample sample = processor->process(scan_record, 0), outline = processor->process_headers(scan_record, 0);
  EXPECT_EQ(sample.num_media(), 7);
  EXPECT_EQ(sample.num_volumes, 0) << "the model receives images";
  EXPECT_EQ(data::get_sample_shape(sample), data::get_sample_shape(outline));
  EXPECT_EQ(sample.token_ids, outline.token_ids);
}

TEST_F(VolumeSlices, KeepTheirOrderBetweenImages) {
  const auto processor = this->processor();
  const auto records = case_.records();
  const auto image_record =
      std::ranges::find_if(records, [](const io::Record& candidate) { return candidate.images.size() == 1; });
  ASSERT_NE(image_record, records.end());
  const io::MediaRef image = image_record->images[0];
  const io::MediaRef scan = make_sliced_scan(9, 0);
  const io::Record mixed_record = make_record("<image> and <image>, then <image>", {image, scan, image});
  const data::Sample sample = processor->process(mixed_record, 0);
  EXPECT_EQ(sample.num_media(), 6);
  // Each slice has the pixels of the same image on its own.
  const auto previews = processor->preview_media(mixed_record, sample);
  std::vector<at::Tensor> slices;
  for (const MediaPreview& preview : previews) {
    if (preview.media_index >= 1 && preview.media_index <= 4 && !preview.is_overview) slices.push_back(preview.pixels);
  }
  ASSERT_EQ(slices.size(), 4U);
  for (size_t i = 1; i < slices.size(); ++i) {
    EXPECT_LT(slices[i - 1].to(at::kFloat).mean().item<float>(), slices[i].to(at::kFloat).mean().item<float>());
  }
}

TEST_F(VolumeSlices, CountAsImagesForTheLimits) {
  const io::Record scan_record = make_record("<image>Where?", {make_sliced_scan(9, 0)});
  settings_.max_images_per_sample = 4;
  EXPECT_NO_THROW(processor()->process(scan_record, 0));
  settings_.max_images_per_sample = 3;
  EXPECT_THAT(get_error_message([&] { processor()->process(scan_record, 0); }),
              HasSubstr("has 4 images, more than data.max_images_per_sample=3"));
  settings_.max_images_per_sample = std::nullopt;
  settings_.max_length = 100;
  settings_.on_too_long = data::LongSamplePolicy::kFail;
  EXPECT_THAT(get_error_message([&] { this->processor()->process(scan_record, 0); }), HasSubstr("data.max_length"));
}

TEST_F(VolumeSlices, ScanIsRefusedWithoutTheSetting) {
  settings_.volume.input_form = data::VolumeInputForm::kVolume;
  const auto error =
      get_error_message([&] { processor()->process(make_record("<image>Where?", {make_sliced_scan(9, 0)}), 0); });
  EXPECT_THAT(error, AllOf(HasSubstr("sample scan"), HasSubstr("data.volume.as=slices")));
}

}  // namespace
}  // namespace vlmtrain::models
