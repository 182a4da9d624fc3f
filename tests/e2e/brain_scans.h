#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "e2e/command.h"
#include "image/nifti_file.h"

namespace vlmtrain::e2e {

/// Parameters of a small synthetic head: an ellipsoid that is brighter on one side, by an amount
/// that depends on `number`.
struct ScanSettings {
  std::vector<int64_t> size{14, 18, 16};  ///< a fourth number makes a series
  int number = 0;
  double first_voxel = 0;  ///< value of the voxel in the corner
  bool is_flat = false;    ///< all voxels are equal
};

inline std::string scan_bytes(const ScanSettings& settings) {
  constexpr int16_t kFloat32 = 16;
  NiftiFile file(NiftiFile::k1, settings.size, kFloat32);
  for (size_t axis = 1; axis <= 3; ++axis) file.set_pixdim(axis, 1.5);
  file.set_sform(1, {1.5, 0, 0, 0, 1.5, 0, 0, 0, 1.5});
  const int64_t frames = settings.size.size() > 3 ? settings.size[3] : 1;
  int64_t voxel = 0;
  for (int64_t frame = 0; frame < frames; ++frame) {
    for (int64_t z = 0; z < settings.size[2]; ++z) {
      for (int64_t y = 0; y < settings.size[1]; ++y) {
        for (int64_t x = 0; x < settings.size[0]; ++x, ++voxel) {
          const auto from_middle = [&](int64_t position, size_t axis) {
            return 2 * (static_cast<double>(position) + 0.5) / static_cast<double>(settings.size[axis]) - 1;
          };
          const double right = from_middle(x, 0), front = from_middle(y, 1), top = from_middle(z, 2);
          const bool is_inside = right * right + front * front + top * top < 0.9;
          const double side = settings.number % 2 == 0 ? right : front;
          double value = is_inside ? 100 + 10 * settings.number + 30 * side + static_cast<double>(frame) : 0;
          if (voxel == 0 && settings.first_voxel != 0) value = settings.first_voxel;
          file.add_voxel(static_cast<float>(settings.is_flat ? 7 : value));
        }
      }
    }
  }
  return file.bytes();
}

/// Scans of six subjects and a small model for volumes. Each subject has three tasks: T1 with one
/// scan, T2 with two, T3 with one without a modality.
class BrainScansTest : public CommandTest {
 protected:
  static constexpr int kSubjects = 6;

  void SetUp() override {
    CommandTest::SetUp();
    std::filesystem::create_directory(folder() / "scans");
    for (int subject = 0; subject < kSubjects; ++subject) {
      write_scan(make_scan_name(subject, "T1w"), {.number = subject});
      write_scan(make_scan_name(subject, "T2w"), {.size = {12, 12, 10}, .number = subject + 1});
    }
    ASSERT_EQ(run({"init", "--preset", "brain-llava-tiny", "--out", "model"}).exit_code, 0);
    write_text(folder() / "train.yaml",
               "model: {path: model}\n"
               "data: {train: brains.json, image_root: scans, max_length: 256}\n"
               "training: {global_batch_size: 6, max_steps: 4, learning_rate: 1.0e-3, precision: fp32}\n"
               "output: {dir: run, log_samples: true}\n");
    write_brains(brains());
  }

  static std::string make_scan_name(int subject, const std::string& modality) {
    return "sub-" + std::to_string(subject) + "_" + modality + ".nii.gz";
  }
  /// Writes a scan into scans/, compressed if its name ends with .gz.
  void write_scan(const std::string& name, const ScanSettings& settings) const {
    const std::string bytes = scan_bytes(settings);
    write_text(folder() / "scans" / name, name.ends_with(".gz") ? gzip(bytes) : bytes);
  }

  static nlohmann::json make_record(const std::string& id, const std::string& task, const std::string& question,
                                    const std::string& answer, const nlohmann::json& volumes) {
    std::string marks;
    for (size_t i = 0; i < volumes.size(); ++i) marks += "<image>\n";
    return {
        {"id", id},
        {"task", task},
        {"volume", volumes},
        {"conversations", {{{"from", "human"}, {"value", marks + question}}, {{"from", "gpt"}, {"value", answer}}}}};
  }
  static nlohmann::json brains() {
    auto all = nlohmann::json::array();
    for (int subject = 0; subject < kSubjects; ++subject) {
      const std::string name = "sub-" + std::to_string(subject);
      const std::string side = subject % 2 == 0 ? "right" : "front";
      all.push_back(make_record(name + "-T1", "T1", "Where is it brightest?", side, {make_scan_name(subject, "T1w")}));
      all.back()["modality"] = "T1w";
      all.push_back(make_record(name + "-T2", "T2", "Are both of one subject?", "Yes, they are.",
                                {make_scan_name(subject, "T1w"), make_scan_name(subject, "T2w")}));
      all.back()["modality"] = {"t1-w", "T2w"};
      all.push_back(make_record(name + "-T3", "T3", "Describe the scan.", "A head, brighter at the " + side + ".",
                                {make_scan_name(subject, "T2w")}));
      for (size_t i = all.size() - 3; i < all.size(); ++i) all[i]["subject_id"] = name;
    }
    return all;
  }
  void write_brains(const nlohmann::json& records) const { write_text(folder() / "brains.json", records.dump(1)); }
};

}  // namespace vlmtrain::e2e
