#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "image/nifti_file.h"
#include "models/family.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::parity {

/// Random checkpoint of a preset named …-tiny, one per family, and records of all media of the
/// family, as its Family says. Record ids start with the content: words, one (image or volume),
/// several, video, mask.
class TinyPreset {
 public:
  static std::vector<std::string> names() {
    std::vector<std::string> result;
    for (const auto& name : models::list_presets()) {
      if (name.ends_with("-tiny")) result.push_back(name);
    }
    return result;
  }

  /// Returns the preset's name with the characters that GoogleTest accepts.
  static std::string make_test_name(std::string preset) {
    std::ranges::replace_if(
        preset, [](char character) { return character == '-' || character == '.'; }, '_');
    return preset;
  }

  explicit TinyPreset(const std::string& name) { models::write_preset_checkpoint(name, {}, /*seed=*/3, checkpoint()); }

  std::filesystem::path checkpoint() const { return folder_.path() / "model"; }

  /// Returns the frames of the record `video` in reverse order. REQUIRES: records() was called and
  /// has a video.
  io::MediaRef get_reversed_video() const { return folder_.path() / "ball_backwards"; }

  const models::Family& family() const {
    return models::find_family(io::read_json(checkpoint() / "config.json"), checkpoint());
  }

  /// Returns whether the family takes images or volumes.
  bool takes_media() const {
    return family().compute_image_sample_shape != nullptr || family().compute_volume_sample_shape != nullptr;
  }

  std::vector<io::Record> records() const {
    auto records = nlohmann::json::array({make_record("words", "", "Is there a fracture?", "No, there is none.")});
    if (takes_media()) add_media(records);
    if (family().compute_video_sample_shape != nullptr) {
      const auto video = make_record("video", "<video>\n", "What moves?", "A ball, from left to right.");
      records.push_back(set_field(video, "video", write_frames("ball", 0.4)));
      write_frames("ball_backwards", -0.4);
    }
    if (family().get_mask_side != nullptr) {
      auto record = make_record("mask", "<image>\n", "Segment the liver.", "It is here <SEG>");
      record["mask"] = write_mask("liver", 48, 64);
      records.push_back(set_field(std::move(record), "image", write_image("abdomen", 48, 64)));
    }
    records.push_back(
        make_record("words again", "", "Say it once more, with all that you know.", "The outline is smooth."));
    return read(records);
  }

  /// Reads a dataset file. Media are found by the names in records().
  std::vector<io::Record> read(const nlohmann::json& records) const {
    io::write_file(folder_.path() / "records.json", records.dump());
    return io::read_dataset(folder_.path() / "records.json", folder_.path());
  }

 private:
  static nlohmann::json make_record(const std::string& id, const std::string& marks, const std::string& question,
                                    const std::string& answer) {
    return {
        {"id", id},
        {"conversations", {{{"from", "human"}, {"value", marks + question}}, {{"from", "gpt"}, {"value", answer}}}}};
  }
  static nlohmann::json set_field(nlohmann::json record, const std::string& key, const nlohmann::json& value) {
    record[key] = value;
    return record;
  }

  /// Adds images, or volumes for a family without images.
  void add_media(nlohmann::json& records) const {
    const bool takes_images = family().compute_image_sample_shape != nullptr;
    const std::string key = takes_images ? "image" : "volume";
    const auto write_medium = [&](const std::string& name, int64_t height, int64_t width) {
      return takes_images ? write_image(name, height, width) : write_scan(name, height / 4, width / 4);
    };
    const auto wide_file = write_medium("wide", 40, 100), tall_file = write_medium("tall", 96, 52),
               square_file = write_medium("square", 64, 64);
    records.push_back(set_field(make_record("one", "<image>\n", "What is shown?", "A left lung."), key, {wide_file}));
    records.push_back(set_field(
        make_record("several", "<image>\n<image>\n", "Compare the two.", "The first is wider, and it is brighter."),
        key, {tall_file, wide_file}));
    records.push_back(set_field(make_record("one more", "<image>\n", "How many?", "3"), key, {square_file}));
  }

  /// Returns waves whose lengths depend on the name's length.
  static at::Tensor make_waves(const std::string& name, int64_t height, int64_t width, double phase) {
    const double wavelength = 3.0 + static_cast<double>(name.size());
    const at::Tensor rows = at::sin(at::arange(height) / wavelength + phase).unsqueeze(1);
    const at::Tensor columns = at::sin(at::arange(width) / (1.7 * wavelength) - phase).unsqueeze(0);
    return (rows + columns) * 50 + 120;
  }

  std::string write_image(const std::string& name, int64_t height, int64_t width, double phase = 0) const {
    const at::Tensor gray = make_waves(name, height, width, phase);
    const at::Tensor pixels = at::stack({gray, gray * 0.8 + 20, 230 - gray}).to(at::kByte);
    return write(name + ".png", image::encode_png(pixels));
  }
  /// Writes six frames, each shifted by `phase`; a negative phase writes them in reverse order.
  std::string write_frames(const std::string& name, double phase) const {
    constexpr int kFrames = 6;
    std::filesystem::create_directory(folder_.path() / name);
    for (int i = 0; i < kFrames; ++i) {
      const int phase_index = phase > 0 ? i : kFrames - 1 - i;
      write_image(fmt::format("{}/{}", name, i), 56, 84, std::abs(phase) * phase_index);
    }
    return name;
  }
  std::string write_mask(const std::string& name, int64_t height, int64_t width) const {
    at::Tensor mask = at::zeros({height, width}, at::kByte);
    mask.narrow(0, 8, 20).narrow(1, 10, 30).fill_(1);
    return write(name + "_mask.png", image::encode_mask_png(mask));
  }
  /// Writes 12 slices of float32.
  std::string write_scan(const std::string& name, int64_t height, int64_t width) const {
    constexpr int64_t kSlices = 12;
    constexpr int16_t kFloat32 = 16;
    NiftiFile file(NiftiFile::k1, {width, height, kSlices}, kFloat32);
    for (int64_t slice = 0; slice < kSlices; ++slice) {
      const at::Tensor values =
          make_waves(name, height, width, 0.3 * static_cast<double>(slice)).to(at::kFloat).contiguous();
      for (int64_t i = 0; i < values.numel(); ++i) file.add_voxel(values.const_data_ptr<float>()[i]);
    }
    return write(name + ".nii", file.bytes());
  }
  std::string write(const std::string& name, const std::string& content) const {
    io::write_file(folder_.path() / name, content);
    return name;
  }

  TemporaryFolder folder_;
};

}  // namespace vlmtrain::parity
