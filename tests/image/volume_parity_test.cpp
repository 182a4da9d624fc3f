// Scans as read by nibabel and MONAI: tests/parity/reference/modules/volumes.py.
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "image/reference_files.h"
#include "image/volume/affine.h"
#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {
namespace {

using nlohmann::json;

const std::filesystem::path kVolumes = kImageData / "volumes";

const json& volume_goldens() {
  static const json kGoldens = read_test_json(kVolumes / "volumes.json");
  return kGoldens;
}

VolumeSettings parse_settings(const json& stored) {
  VolumeSettings result;
  result.size = stored.at("size").get<PerAxis<int64_t>>();
  if (!stored.at("spacing").is_null()) result.spacing = stored.at("spacing").get<PerAxis<double>>();
  const std::string kind = stored.at("normalization");
  result.normalization = kind == "zscore"              ? VolumeNormalization::kZScore
                         : kind == "zscore_foreground" ? VolumeNormalization::kZScoreForeground
                         : kind == "percentile"        ? VolumeNormalization::kPercentile
                         : kind == "window"            ? VolumeNormalization::kWindow
                                                       : VolumeNormalization::kNone;
  result.percentiles = stored.at("percentiles").get<std::array<double, 2>>();
  result.window = stored.at("window").get<std::array<double, 2>>();
  const std::string series = stored.at("series");
  result.time_series_mode = series == "mean"     ? TimeSeriesMode::kMean
                            : series == "frames" ? TimeSeriesMode::kSampledFrames
                                                 : TimeSeriesMode::kRejected;
  result.max_frames = stored.at("max_frames");
  return result;
}

TEST(VolumeParity, AxisCodesMatchNibabel) {
  ASSERT_GT(volume_goldens().at("orientations").size(), 300U);
  for (const json& entry : volume_goldens().at("orientations")) {
    AffineMatrix affine;
    for (int i = 0; i < 9; ++i) affine[i / 3][i % 3] = entry.at(0).at(i);
    const AxisDirections directions = compute_axis_directions(affine);
    EXPECT_EQ(to_axis_codes(directions), entry.at(1)) << entry.at(0);
    EXPECT_EQ(parse_axis_codes(to_axis_codes(directions)), directions);
  }
}

TEST(VolumeParity, HeadersMatchNibabel) {
  for (const json& entry : volume_goldens().at("cases")) {
    SCOPED_TRACE(entry.at("file"));
    const VolumeInfo info = read_volume_info(kVolumes / entry.at("file").get<std::string>());
    const json& expected = entry.at("info");
    EXPECT_EQ(json(info.size), expected.at("size"));
    EXPECT_EQ(info.orientation, expected.at("orientation"));
    EXPECT_EQ(info.num_frames, expected.at("frames"));
    for (int axis = 0; axis < 3; ++axis) {
      EXPECT_NEAR(info.spacing[axis], expected.at("spacing").at(axis).get<double>(), 1e-6);
    }
  }
}

TEST(VolumeParity, VolumesMatchMonai) {
  const std::vector<std::byte> bytes = read_test_bytes(kVolumes / "volumes.bin");
  std::vector<float> expected_values(bytes.size() / sizeof(float));
  std::memcpy(expected_values.data(), bytes.data(), bytes.size());
  double max_relative_difference = 0;
  for (const json& entry : volume_goldens().at("cases")) {
    SCOPED_TRACE(entry.at("file").dump() + entry.at("settings").dump());
    const VolumeSettings settings = parse_settings(entry.at("settings"));
    const std::filesystem::path path = kVolumes / entry.at("file").get<std::string>();
    const at::Tensor volume = read_volume(path, settings);
    ASSERT_EQ(json(volume.sizes().vec()), entry.at("shape"));
    const double min_value = entry.at("least"), max_value = entry.at("most");
    // Some 40 roundings of fp32, and places of samples that are as many off, at 1e-7 of the largest
    // value each.
    const double tolerance = 1e-5 * (max_value - min_value);
    EXPECT_NEAR(volume.min().item<double>(), min_value, tolerance);
    EXPECT_NEAR(volume.max().item<double>(), max_value, tolerance);
    EXPECT_NEAR(volume.to(at::kDouble).mean().item<double>(), entry.at("mean").get<double>(), tolerance);
    const auto* const values = volume.const_data_ptr<float>();
    double max_difference = 0;
    auto expected = expected_values.begin() + entry.at("first").get<int64_t>();
    for (int64_t i = 0; i < volume.numel(); i += entry.at("stride").get<int64_t>()) {
      max_difference = std::max(max_difference, std::abs(double{values[i]} - *expected++));
    }
    EXPECT_LE(max_difference, tolerance) << "of a range of " << max_value - min_value;
    if (max_value > min_value)
      max_relative_difference = std::max(max_relative_difference, max_difference / (max_value - min_value));
  }
  RecordProperty("furthest_of_range", fmt::format("{:.2e}", max_relative_difference));
}

}  // namespace
}  // namespace vlmtrain::image
