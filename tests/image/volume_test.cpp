#include "vlmtrain/image/volume.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "image/nifti_file.h"
#include "image/reference_files.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int16_t kUint8 = 2, kInt16 = 4, kInt32 = 8, kFloat32 = 16, kFloat64 = 64, kUint16 = 512, kUint64 = 1280;

constexpr auto kNifti1 = NiftiFile::k1;
constexpr auto kNifti2 = NiftiFile::k2;

/// Settings that keep the voxels of a scan of this size.
VolumeSettings make_identity_settings(PerAxis<int64_t> size) {
  VolumeSettings result;
  result.size = size;
  result.normalization = VolumeNormalization::kNone;
  return result;
}

/// A file of 3 × 4 × 5 voxels, numbered in file order.
template <class T = int16_t>
NiftiFile number_voxels(NiftiFile file, int64_t frames = 1) {
  for (int64_t i = 0; i < 60 * frames; ++i) file.add_voxel(static_cast<T>(i));
  return file;
}

NiftiFile make_small_file() {
  NiftiFile file(kNifti1, {3, 4, 5}, kInt16);
  file.set_sform(1, {1, 0, 0, 0, 1, 0, 0, 0, 1});
  return file;
}

/// Returns the value of a voxel of the result.
float get_voxel(const at::Tensor& volume, int64_t right, int64_t front, int64_t top) {
  return volume[0][0][right][front][top].item<float>();
}

TEST(Volume, HasRasAxes) {
  const at::Tensor volume =
      read_volume(make_scan(number_voxels(make_small_file()).bytes()), make_identity_settings({3, 4, 5}));
  ASSERT_EQ(volume.sizes(), (at::IntArrayRef{1, 1, 3, 4, 5}));
  EXPECT_EQ(volume.scalar_type(), at::kFloat);
  for (int64_t i = 0; i < 60; ++i) EXPECT_EQ(get_voxel(volume, i % 3, i / 3 % 4, i / 12), static_cast<float>(i));
}

TEST(Volume, PrefersSformOverQformOverSpacing) {
  NiftiFile file(kNifti1, {3, 4, 5}, kInt16);
  // Half a turn around the axis that points to the top.
  file.set_qform(1, {0, 0, 1});
  EXPECT_EQ(read_volume_info(make_scan(number_voxels(file).bytes())).orientation, "LPS");
  file.set_qform(1, {0, 0, 1}, /*qfac=*/-1);
  EXPECT_EQ(read_volume_info(make_scan(number_voxels(file).bytes())).orientation, "LPI");
  file.set_sform(3, {0, 2, 0, 0, 0, -1.5, 1, 0, 0});
  const VolumeInfo info = read_volume_info(make_scan(number_voxels(file).bytes()));
  EXPECT_EQ(info.orientation, "SRP");
  EXPECT_EQ(info.spacing, (std::array<double, 3>{1, 2, 1.5}));
  EXPECT_EQ(info.size, (std::array<int64_t, 3>{3, 4, 5}));

  // A code that does not exist counts as none, as for nibabel.
  file.set_sform(99, {0, 2, 0, 0, 0, -1.5, 1, 0, 0});
  EXPECT_EQ(read_volume_info(make_scan(number_voxels(file).bytes())).orientation, "LPI");
  file.set_qform(0, {0, 0, 1});
  file.set_pixdim(2, -2);
  file.set_pixdim(3, 0);
  const VolumeInfo base = read_volume_info(make_scan(number_voxels(file).bytes()));
  EXPECT_EQ(base.orientation, "LAS");
  EXPECT_EQ(base.spacing, (std::array<double, 3>{1, 2, 1}));
}

TEST(Volume, ReordersAndFlipsAxes) {
  NiftiFile file(kNifti1, {3, 4, 5}, kInt16);
  file.set_sform(1, {0, 0, -2, 1, 0, 0, 0, -1, 0});  // the first axis to the front, the second down, the third left
  const at::Tensor volume = read_volume(make_scan(number_voxels(file).bytes()), make_identity_settings({5, 3, 4}));
  for (int64_t i = 0; i < 60; ++i)
    EXPECT_EQ(get_voxel(volume, 4 - i / 12, i % 3, 3 - i / 3 % 4), static_cast<float>(i));
}

template <class T>
void expect_read(int16_t datatype, std::vector<T> values, std::vector<float> expected, bool is_scaled = false) {
  for (const bool big_endian : {false, true}) {
    for (const NiftiFile::Version version : {kNifti1, kNifti2}) {
      NiftiFile file(version, {static_cast<int64_t>(values.size()), 1, 1}, datatype, big_endian);
      file.set_sform(1, {1, 0, 0, 0, 1, 0, 0, 0, 1});
      if (is_scaled) file.set_scaling(0.5, -1000);
      for (const T value : values) file.add_voxel(value);
      const at::Tensor volume =
          read_volume(make_scan(file.bytes()), make_identity_settings({std::ssize(values), 1, 1}));
      const auto* const data = volume.const_data_ptr<float>();
      EXPECT_THAT(std::vector<float>(data, data + volume.numel()), testing::ElementsAreArray(expected)) << datatype;
    }
  }
}

TEST(Volume, ReadsEveryTypeInBothByteOrders) {
  expect_read<uint8_t>(kUint8, {0, 255}, {0, 255});
  expect_read<int8_t>(256, {-128, 127}, {-128, 127});
  expect_read<uint16_t>(kUint16, {1, 65535}, {1, 65535});
  expect_read<int16_t>(kInt16, {-32768, 513}, {-32768, 513});
  expect_read<uint32_t>(768, {1, 4294967295U}, {1, 4294967296.0F});
  expect_read<int32_t>(kInt32, {-70000, 3}, {-70000, 3});
  expect_read<uint64_t>(kUint64, {7, uint64_t{1} << 63}, {7, 0x1p63F});
  expect_read<int64_t>(1024, {-5, int64_t{1} << 40}, {-5, 0x1p40F});
  expect_read<float>(kFloat32, {-1.5F, 3e30F}, {-1.5F, 3e30F});
  expect_read<double>(kFloat64, {0.1, -7}, {0.1F, -7});
}

TEST(Volume, ScalesValues) {
  expect_read<int16_t>(kInt16, {-3, 2048}, {-1001.5F, 24}, /*scaled=*/true);
  expect_read<float>(kFloat32, {0.25F, 4}, {-999.875F, -998}, /*scaled=*/true);
  // With a slope of 0 or NaN, the intercept is ignored.
  for (const double slope : {0.0, std::nan("")}) {
    NiftiFile file = make_small_file();
    file.set_scaling(slope, 1000);
    EXPECT_EQ(
        read_volume(make_scan(number_voxels(file).bytes()), make_identity_settings({3, 4, 5})).max().item<float>(), 59);
  }
}

TEST(Volume, ReadsGzipMembers) {
  const std::string plain_bytes = number_voxels(make_small_file()).bytes();
  const at::Tensor expected = read_volume(make_scan(plain_bytes), make_identity_settings({3, 4, 5}));
  const auto matches_expected = [&](const std::string& bytes) {
    return at::equal(read_volume(make_scan(bytes, "scan.nii"), make_identity_settings({3, 4, 5})), expected);
  };
  EXPECT_TRUE(matches_expected(gzip(plain_bytes)));
  const std::string gzip_members = gzip(plain_bytes.substr(0, 100)) + gzip("") + std::string(20, '\0') +
                                   gzip(plain_bytes.substr(100, 270)) + gzip(plain_bytes.substr(370));
  EXPECT_TRUE(matches_expected(gzip_members));
  EXPECT_TRUE(matches_expected(gzip(plain_bytes) + "trailing bytes that are no gzip"));
  EXPECT_TRUE(matches_expected(gzip(plain_bytes + std::string(10'000, 'x'))));
  EXPECT_TRUE(matches_expected(plain_bytes + "trailing bytes"));
}

TEST(Volume, SkipsExtensions) {
  std::string bytes = number_voxels(make_small_file()).bytes();
  bytes.insert(352, std::string(64, 'e'));
  NiftiFile header = make_small_file();
  header.set_voxel_offset(352 + 64);
  bytes.replace(0, 348, header.bytes().substr(0, 348));
  EXPECT_EQ(get_voxel(read_volume(make_scan(gzip(bytes)), make_identity_settings({3, 4, 5})), 1, 1, 1), 16);
}

TEST(Volume, CropsAndPads) {
  VolumeSettings settings = make_identity_settings({1, 7, 2});
  settings.spacing = PerAxis<double>{1, 1, 1};
  const at::Tensor volume = read_volume(make_scan(number_voxels(make_small_file()).bytes()), settings);
  ASSERT_EQ(volume.sizes(), (at::IntArrayRef{1, 1, 1, 7, 2}));
  for (int64_t front = 0; front < 7; ++front) {
    const bool is_padding = front < 1 || front > 4;
    EXPECT_EQ(get_voxel(volume, 0, front, 0), is_padding ? 0 : static_cast<float>(1 + 3 * (front - 1) + 12));
  }
}

TEST(Volume, StatisticsIgnorePadding) {
  VolumeSettings settings = make_identity_settings({9, 9, 9});
  settings.spacing = PerAxis<double>{1, 1, 1};
  settings.normalization = VolumeNormalization::kZScore;
  const at::Tensor volume = read_volume(make_scan(number_voxels(make_small_file()).bytes()), settings)[0][0];
  const at::Tensor unpadded = volume.slice(0, 3, 6).slice(1, 2, 6).slice(2, 2, 7).to(at::kDouble);
  EXPECT_NEAR(unpadded.mean().item<double>(), 0, 1e-6);
  EXPECT_NEAR(unpadded.pow(2).mean().item<double>(), 1, 1e-6);
  EXPECT_EQ(volume.ne(0).sum().item<int64_t>(), 60);
}

TEST(Volume, NormalizesTheForeground) {
  NiftiFile file = make_small_file();
  for (int i = 0; i < 60; ++i) file.add_voxel(static_cast<int16_t>(i < 40 ? 0 : i));
  VolumeSettings settings = make_identity_settings({3, 4, 5});
  settings.normalization = VolumeNormalization::kZScoreForeground;
  const at::Tensor volume = read_volume(make_scan(file.bytes()), settings);
  EXPECT_EQ(volume.ne(0).sum().item<int64_t>(), 20);
  EXPECT_NEAR(volume.sum().item<double>(), 0, 1e-5);
  EXPECT_NEAR(volume.pow(2).sum().item<double>(), 20, 1e-4);
}

TEST(Volume, ClipsWindows) {
  VolumeSettings settings = make_identity_settings({3, 4, 5});
  settings.normalization = VolumeNormalization::kWindow;
  settings.window = {10, 30};
  const at::Tensor volume = read_volume(make_scan(number_voxels(make_small_file()).bytes()), settings).flatten();
  EXPECT_EQ(volume.min().item<float>(), 0);
  EXPECT_EQ(volume.max().item<float>(), 1);
  EXPECT_EQ(get_voxel(volume.view({1, 1, 3, 4, 5}), 0, 1, 1), 0.25F);
}

TEST(Volume, HalfIsTheRoundedFloat) {
  VolumeSettings settings = make_identity_settings({4, 4, 4});
  settings.normalization = VolumeNormalization::kZScore;
  const io::MediaRef scan = make_scan(number_voxels(make_small_file()).bytes());
  const at::Tensor as_float = read_volume(scan, settings);
  settings.dtype = at::kHalf;
  EXPECT_TRUE(at::equal(read_volume(scan, settings), as_float.to(at::kHalf)));
  settings.normalization = VolumeNormalization::kNone;
  NiftiFile file(kNifti1, {2, 1, 1}, kInt32);
  file.add_voxel<int32_t>(0);
  file.add_voxel<int32_t>(70'000);
  EXPECT_THAT([&] { read_volume(make_scan(file.bytes()), settings); },
              ThrowsMessage<UserError>(HasSubstr("data.volume.dtype=float32")));
}

NiftiFile make_series(int64_t frames, std::vector<int64_t> dim = {}) {
  if (dim.empty()) dim = {3, 4, 5, frames};
  NiftiFile file(kNifti1, dim, kInt16);
  file.set_sform(1, {1, 0, 0, 0, 1, 0, 0, 0, 1});
  return number_voxels(file, frames);
}

TEST(Volume, AppliesTheSeriesSetting) {
  const io::MediaRef scan = make_scan(gzip(make_series(7).bytes()));
  VolumeSettings settings = make_identity_settings({3, 4, 5});
  const VolumeInfo info = read_volume_info(scan);
  EXPECT_EQ(info.num_frames, 7);
  const auto throws_series_error = ThrowsMessage<UserError>(HasSubstr("a series of 7 volumes"));
  EXPECT_THAT([&] { count_volumes(info, settings); }, throws_series_error);
  EXPECT_THAT([&] { read_volume(scan, settings); }, throws_series_error);

  settings.time_series_mode = TimeSeriesMode::kMean;
  EXPECT_EQ(count_volumes(info, settings), 1);
  EXPECT_EQ(get_voxel(read_volume(scan, settings), 1, 0, 0), 1 + 3 * 60);

  settings.time_series_mode = TimeSeriesMode::kSampledFrames;
  settings.max_frames = 3;
  EXPECT_EQ(count_volumes(info, settings), 3);
  const at::Tensor frames = read_volume(scan, settings);
  ASSERT_EQ(frames.size(0), 3);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(frames[i][0][2][0][0].item<float>(), static_cast<float>(2 + 3 * i * 60));
  settings.max_frames = 30;
  EXPECT_EQ(read_volume(scan, settings).size(0), 7);
}

TEST(Volume, IgnoresTrailingAxesOfSizeOne) {
  for (const auto& dim : {std::vector<int64_t>{3, 4, 5, 1}, {3, 4, 5, 1, 1, 1, 1}}) {
    const io::MediaRef scan = make_scan(make_series(1, dim).bytes());
    EXPECT_EQ(read_volume_info(scan).num_frames, 1);
    EXPECT_EQ(count_volumes(read_volume_info(scan), VolumeSettings{}), 1);
    EXPECT_EQ(read_volume(scan, make_identity_settings({3, 4, 5})).size(0), 1);
  }
}

TEST(Volume, IsThreadSafe) {
  const io::MediaRef scan = kImageData / "volumes/someones_epi.nii.gz";
  VolumeSettings settings;
  settings.size = {20, 20, 20};
  const at::Tensor expected = read_volume(scan, settings);
  std::array<at::Tensor, 3> volumes;
  std::vector<std::thread> threads;
  for (at::Tensor& volume : volumes) threads.emplace_back([&] { volume = read_volume(scan, settings); });
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& volume : volumes) EXPECT_TRUE(at::equal(volume, expected));
}

TEST(Volume, MemoryDependsOnTheResultNotOnTheScan) {
  const VolumeInfo info{{512, 512, 1000}, {0.7, 0.7, 0.7}, "LPS", 400};
  VolumeSettings settings;
  settings.time_series_mode = TimeSeriesMode::kSampledFrames;
  EXPECT_LT(estimate_volume_reading_memory(info, settings), 8 << 20);
  settings.time_series_mode = TimeSeriesMode::kMean;
  EXPECT_LT(estimate_volume_reading_memory(info, settings), 16 << 20);
  settings.spacing = PerAxis<double>{1.4, 1.4, 1.4};
  EXPECT_GT(estimate_volume_reading_memory(info, settings), int64_t{12} * 256 * 256 * 500);
}

}  // namespace
}  // namespace vlmtrain::image
