#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <utility>
#include <vector>

#include "parity/temporary_folder.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/mask.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

/// Folder with a random checkpoint of the preset prs-med-tiny and small images.
class MaskSamples {
 public:
  MaskSamples() { write_preset_checkpoint("prs-med-tiny", {}, /*seed=*/3, checkpoint()); }

  std::filesystem::path checkpoint() const { return folder_.path() / "model"; }
  const std::filesystem::path& folder() const { return folder_.path(); }

  /// Returns uint8 [height, width] with ones in a rectangle.
  static at::Tensor make_rectangle(int64_t height, int64_t width, int64_t top, int64_t left, int64_t rows,
                                   int64_t columns) {
    at::Tensor mask = at::zeros({height, width}, at::kByte);
    mask.narrow(0, top, rows).narrow(1, left, columns).fill_(1);
    return mask;
  }

  /// Writes a gray image of that size with bright rectangles.
  io::MediaRef write_image(const std::string& name, int64_t height, int64_t width,
                           const std::vector<at::Tensor>& bright_masks = {}) const {
    at::Tensor pixels = at::empty({3, height, width}, at::kByte).fill_(60);
    for (const at::Tensor& mask : bright_masks) pixels.add_(mask, 120);
    const auto file = folder_.path() / (name + ".png");
    io::write_file(file, image::encode_png(pixels));
    return file;
  }

  io::MediaRef write_mask(const std::string& name, const at::Tensor& mask) const {
    const auto file = folder_.path() / (name + ".png");
    io::write_file(file, image::encode_mask_png(mask));
    return file;
  }

  static io::Record make_record(std::string id, std::vector<io::MediaRef> images, const std::string& question,
                                const std::string& answer, std::vector<io::MaskSource> masks = {}) {
    io::Record record;
    record.id = std::move(id);
    std::string marks;
    for (size_t i = 0; i < images.size(); ++i) marks += io::kImagePlaceholder;
    record.images = std::move(images);
    record.turns = {{io::Role::kUser, marks + question}, {io::Role::kAssistant, answer}};
    record.masks = std::move(masks);
    return record;
  }

  /// Returns six records: with one mask and with two, in images of several sizes, without a mask,
  /// and text only.
  std::vector<io::Record> records() const {
    const auto upper_mask = make_rectangle(96, 128, 10, 20, 30, 40),
               lower_mask = make_rectangle(96, 128, 60, 70, 30, 50);
    const auto tall_mask = make_rectangle(160, 90, 20, 10, 70, 60);
    const auto wide_image = write_image("wide", 96, 128, {upper_mask, lower_mask});
    return {
        make_record("one", {wide_image}, "Segment the liver.", "upper left <SEG>",
                    {{.file = write_mask("upper", upper_mask), .structure = "liver"}}),
        make_record("words", {}, "Is it there?", "yes, of course"),
        make_record("two", {wide_image}, "Segment the liver and the bone.", "upper left <SEG> and lower right <SEG>",
                    {{.rle = image::encode_rle(upper_mask), .structure = "liver"},
                     {.file = write_mask("lower", lower_mask), .structure = "bone"}}),
        make_record("no mask", {wide_image}, "On which side is the liver?", "left"),
        make_record("tall", {write_image("tall", 160, 90, {tall_mask})}, "Show the kidney.", "<SEG>",
                    {{.rle = image::encode_rle(tall_mask), .structure = "kidney"}}),
        make_record("empty", {write_image("nothing", 50, 50)}, "Show the tumour.", "nowhere <SEG>",
                    {{.rle = image::encode_rle(at::zeros({50, 50}, at::kByte)), .structure = "tumour"}}),
    };
  }

  std::unique_ptr<Processor> processor(const ProcessorSettings& settings = {}) const {
    return load_processor(checkpoint(), settings);
  }

  std::vector<data::Sample> samples() const {
    const auto sample_processor = processor();
    std::vector<data::Sample> samples;
    for (const auto& record : records()) {
      samples.push_back(data::make_sample(*sample_processor, record, std::ssize(samples)));
    }
    return samples;
  }

 private:
  parity::TemporaryFolder folder_;
};

}  // namespace vlmtrain::models
