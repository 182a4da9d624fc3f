// What nibabel and MONAI make of scans: tests/parity/reference/make_volume_reference.py.
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "image/reference_files.h"
#include "image/volume/axis_directions.h"
#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {
namespace {

using nlohmann::json;

const std::filesystem::path kVolumes = kImageData / "volumes";

const json& volume_goldens() {
  static const json kGoldens = file_json(kVolumes / "volumes.json");
  return kGoldens;
}

VolumeSettings settings_of(const json& stored) {
  VolumeSettings result;
  result.size = stored.at("size").get<Axes<int64_t>>();
  if (!stored.at("spacing").is_null()) result.spacing = stored.at("spacing").get<Axes<double>>();
  const std::string kind = stored.at("normalization");
  result.normalization = kind == "zscore"              ? VolumeNormalization::kZScore
                         : kind == "zscore_foreground" ? VolumeNormalization::kZScoreForeground
                         : kind == "percentile"        ? VolumeNormalization::kPercentile
                         : kind == "window"            ? VolumeNormalization::kWindow
                                                       : VolumeNormalization::kNone;
  result.percentiles = stored.at("percentiles").get<std::array<double, 2>>();
  result.window = stored.at("window").get<std::array<double, 2>>();
  const std::string series = stored.at("series");
  result.series = series == "mean" ? SeriesUse::kMean : series == "frames" ? SeriesUse::kFrames : SeriesUse::kRefused;
  result.max_frames = stored.at("max_frames");
  return result;
}

TEST(VolumeParity, AxesPointWhereNibabelSaysTheyDo) {
  ASSERT_GT(volume_goldens().at("orientations").size(), 300U);
  for (const json& entry : volume_goldens().at("orientations")) {
    AffineMatrix affine;
    for (int i = 0; i < 9; ++i) affine[i / 3][i % 3] = entry.at(0).at(i);
    const AxisDirections directions = axis_directions(affine);
    EXPECT_EQ(axis_letters(directions), entry.at(1)) << entry.at(0);
    EXPECT_EQ(directions_of_letters(axis_letters(directions)), directions);
  }
}

TEST(VolumeParity, HeadersSayWhatNibabelReads) {
  for (const json& entry : volume_goldens().at("cases")) {
    SCOPED_TRACE(entry.at("file"));
    const VolumeInfo info = read_volume_info(kVolumes / entry.at("file").get<std::string>());
    const json& expected = entry.at("info");
    EXPECT_EQ(json(info.size), expected.at("size"));
    EXPECT_EQ(info.orientation, expected.at("orientation"));
    EXPECT_EQ(info.frames, expected.at("frames"));
    for (int axis = 0; axis < 3; ++axis) {
      EXPECT_NEAR(info.spacing[axis], expected.at("spacing").at(axis).get<double>(), 1e-6);
    }
  }
}

TEST(VolumeParity, VolumesAreThoseOfMonai) {
  const std::vector<std::byte> bytes = file_bytes(kVolumes / "volumes.bin");
  std::vector<float> kept(bytes.size() / sizeof(float));
  std::memcpy(kept.data(), bytes.data(), bytes.size());
  double furthest_of_range = 0;
  for (const json& entry : volume_goldens().at("cases")) {
    SCOPED_TRACE(entry.at("file").dump() + entry.at("settings").dump());
    const VolumeSettings settings = settings_of(entry.at("settings"));
    const std::filesystem::path path = kVolumes / entry.at("file").get<std::string>();
    const at::Tensor volume = read_volume(path, settings);
    ASSERT_EQ(json(volume.sizes().vec()), entry.at("shape"));
    const double least = entry.at("least"), most = entry.at("most");
    // Some 40 roundings of fp32, and places of samples that are as many off, at 1e-7 of the largest value each.
    const double tolerance = 1e-5 * (most - least);
    EXPECT_NEAR(volume.min().item<double>(), least, tolerance);
    EXPECT_NEAR(volume.max().item<double>(), most, tolerance);
    EXPECT_NEAR(volume.to(at::kDouble).mean().item<double>(), entry.at("mean").get<double>(), tolerance);
    const auto* const values = volume.const_data_ptr<float>();
    double furthest = 0;
    auto expected = kept.begin() + entry.at("first").get<int64_t>();
    for (int64_t i = 0; i < volume.numel(); i += entry.at("stride").get<int64_t>()) {
      furthest = std::max(furthest, std::abs(double{values[i]} - *expected++));
    }
    EXPECT_LE(furthest, tolerance) << "of a range of " << most - least;
    if (most > least) furthest_of_range = std::max(furthest_of_range, furthest / (most - least));
  }
  RecordProperty("furthest_of_range", fmt::format("{:.2e}", furthest_of_range));
}

}  // namespace
}  // namespace vlmtrain::image
