#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <utility>
#include <vector>

#include "parity/temporary_folder.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/image/encode.h"
#include "vlmtrain/image/mask.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

/// A folder with the checkpoint of the preset prs-med-tiny, random, and small pictures.
class MaskSamples {
 public:
  MaskSamples() { write_preset("prs-med-tiny", {}, /*seed=*/3, checkpoint()); }

  std::filesystem::path checkpoint() const { return folder_.path() / "model"; }
  const std::filesystem::path& folder() const { return folder_.path(); }

  /// uint8 [height, width]: 1 in a rectangle.
  static at::Tensor rectangle(int64_t height, int64_t width, int64_t top, int64_t left, int64_t rows, int64_t columns) {
    at::Tensor mask = at::zeros({height, width}, at::kByte);
    mask.narrow(0, top, rows).narrow(1, left, columns).fill_(1);
    return mask;
  }

  /// A grey picture of that size with bright rectangles, as a file.
  io::Medium picture(const std::string& name, int64_t height, int64_t width,
                     const std::vector<at::Tensor>& bright = {}) const {
    at::Tensor pixels = at::empty({3, height, width}, at::kByte).fill_(60);
    for (const at::Tensor& mask : bright) pixels.add_(mask, 120);
    const auto file = folder_.path() / (name + ".png");
    io::write_file(file, image::encode_png(pixels));
    return file;
  }

  io::Medium mask_file(const std::string& name, const at::Tensor& mask) const {
    const auto file = folder_.path() / (name + ".png");
    io::write_file(file, image::encode_mask_png(mask));
    return file;
  }

  static io::Record record(std::string id, std::vector<io::Medium> images, const std::string& question,
                           const std::string& answer, std::vector<io::MaskSource> masks = {}) {
    io::Record made;
    made.id = std::move(id);
    std::string marks;
    for (size_t i = 0; i < images.size(); ++i) marks += io::kImageMark;
    made.images = std::move(images);
    made.turns = {{io::Role::kUser, marks + question}, {io::Role::kAssistant, answer}};
    made.masks = std::move(masks);
    return made;
  }

  /// Six records: with one mask and with two, in pictures of several sizes, without a mask, and of words alone.
  std::vector<io::Record> records() const {
    const auto upper = rectangle(96, 128, 10, 20, 30, 40), lower = rectangle(96, 128, 60, 70, 30, 50);
    const auto tall = rectangle(160, 90, 20, 10, 70, 60);
    const auto wide = picture("wide", 96, 128, {upper, lower});
    return {
        record("one", {wide}, "Segment the liver.", "upper left <SEG>",
               {{.file = mask_file("upper", upper), .structure = "liver"}}),
        record("words", {}, "Is it there?", "yes, of course"),
        record("two", {wide}, "Segment the liver and the bone.", "upper left <SEG> and lower right <SEG>",
               {{.rle = image::encode_rle(upper), .structure = "liver"},
                {.file = mask_file("lower", lower), .structure = "bone"}}),
        record("no mask", {wide}, "On which side is the liver?", "left"),
        record("tall", {picture("tall", 160, 90, {tall})}, "Show the kidney.", "<SEG>",
               {{.rle = image::encode_rle(tall), .structure = "kidney"}}),
        record("empty", {picture("nothing", 50, 50)}, "Show the tumour.", "nowhere <SEG>",
               {{.rle = image::encode_rle(at::zeros({50, 50}, at::kByte)), .structure = "tumour"}}),
    };
  }

  std::unique_ptr<Processor> processor(const ProcessorSettings& settings = {}) const {
    return load_processor(checkpoint(), settings);
  }

  std::vector<data::Sample> samples() const {
    const auto made_by = processor();
    std::vector<data::Sample> samples;
    for (const auto& one : records()) {
      samples.push_back(data::make_sample(*made_by, one, std::ssize(samples)));
    }
    return samples;
  }

 private:
  parity::TemporaryFolder folder_;
};

}  // namespace vlmtrain::models
