#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "image/nifti_file.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/volume.h"

namespace vlmtrain::image {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const double kNan = std::nan("");
constexpr double kInfinity = std::numeric_limits<double>::infinity();

auto refuses(const char* what, const char* more = "") {
  return ThrowsMessage<UserError>(AllOf(HasSubstr("scan.nii: "), HasSubstr(what), HasSubstr(more)));
}

NiftiFile honest(NiftiFile::Version version = NiftiFile::k1, std::vector<int64_t> dim = {3, 4, 5}, int16_t type = 4) {
  NiftiFile file(version, dim, type);
  file.set_sform(1, {1, 0, 0, 0, 1, 0, 0, 0, 1});
  return file;
}

NiftiFile filled(NiftiFile file) {
  for (int i = 0; i < 60; ++i) file.add_voxel(static_cast<int16_t>(i));
  return file;
}

void read_bytes(const std::string& bytes, const VolumeSettings& settings = {}) {
  read_volume(scan_of(bytes), settings);
}

/// The file with one thing done to it, plain and compressed.
template <class Change>
void expect_refused(const char* what, const char* more, const Change& change) {
  NiftiFile file = honest();
  change(file);
  const std::string bytes = filled(file).bytes();
  EXPECT_THAT([&] { read_bytes(bytes); }, refuses(what, more));
  EXPECT_THAT([&] { read_bytes(gzipped(bytes)); }, refuses(what, more));
  EXPECT_THAT([&] { read_volume_info(scan_of(bytes)); }, refuses(what, more));
}

TEST(VolumeRefusals, WhatIsNoNifti) {
  EXPECT_THAT([] { read_bytes(""); }, refuses("not a NIfTI file", "too short"));
  EXPECT_THAT([] { read_bytes(std::string(5000, 'a')); }, refuses("not a NIfTI file"));
  EXPECT_THAT([] { read_bytes(gzipped(std::string(5000, 'a'))); }, refuses("not a NIfTI file"));
  EXPECT_THAT([] { read_bytes(std::string(128, '\0') + "DICM" + std::string(900, 'x')); },
              refuses("DICOM", "dcm2niix"));
  EXPECT_THAT([] { read_volume_info("no/such/scan.nii"); }, ThrowsMessage<UserError>(HasSubstr("cannot be opened")));
  EXPECT_THAT([] { read_volume_info("/tmp"); }, ThrowsMessage<UserError>(HasSubstr("folder")));
}

TEST(VolumeRefusals, PairsOfFilesAndAnalyze) {
  expect_refused("a pair of files", "nibabel.save", [](NiftiFile& file) { file.put_text(344, "ni1"); });
  expect_refused("Analyze 7.5", "", [](NiftiFile& file) { file.put_text(344, std::string_view("\0\0\0\0", 4)); });
  NiftiFile second = honest(NiftiFile::k2);
  second.put_text(4, "ni2");
  EXPECT_THAT([&] { read_bytes(filled(second).bytes()); }, refuses("a pair of files"));
}

TEST(VolumeRefusals, DimensionsThatCannotBe) {
  expect_refused("0 axes", "1 to 7", [](NiftiFile& file) { file.set_dim(0, 0); });
  expect_refused("8 axes", "", [](NiftiFile& file) { file.set_dim(0, 8); });
  expect_refused("-1 axes", "", [](NiftiFile& file) { file.set_dim(0, -1); });
  expect_refused("2 axes", "save it as PNG", [](NiftiFile& file) { file.set_dim(0, 2); });
  expect_refused("0 voxels along axis 2", "", [](NiftiFile& file) { file.set_dim(2, 0); });
  expect_refused("-7 voxels along axis 3", "", [](NiftiFile& file) { file.set_dim(3, -7); });
  expect_refused("3 values along axis 5", "a file of its own", [](NiftiFile& file) {
    file.set_dim(0, 5);
    file.set_dim(4, 1);
    file.set_dim(5, 3);
  });
}

TEST(VolumeRefusals, DimensionsThatLie) {
  expect_refused("20000 voxels along axis 1", "", [](NiftiFile& file) { file.set_dim(1, 20'000); });
  expect_refused("16384 × 16384 × 16384", "", [](NiftiFile& file) {
    for (size_t axis = 1; axis < 4; ++axis) file.set_dim(axis, 16'384);
  });
  expect_refused("promises", "cut off or damaged", [](NiftiFile& file) {
    for (size_t axis = 1; axis < 4; ++axis) file.set_dim(axis, 1600);
  });
  const std::string large = filled(honest(NiftiFile::k2, {100'000, 100'000, 100'000})).bytes();
  EXPECT_THAT([&] { read_bytes(large); }, refuses("100000 voxels along axis 1"));
  const std::string small_lie = filled(honest(NiftiFile::k1, {3, 4, 6})).bytes();
  EXPECT_THAT([&] { read_bytes(small_lie); }, refuses("promises 496 bytes", "has 472"));
  EXPECT_THAT([&] { read_bytes(gzipped(small_lie)); }, refuses("cut off"));
}

TEST(VolumeRefusals, VoxelsThatBeginNowhere) {
  for (const double place : {0.0, 100.0, 351.0, -5.0, 352.5, 1e30, kNan, kInfinity}) {
    expect_refused("vox_offset", "", [&](NiftiFile& file) { file.set_voxels_begin(place); });
  }
  expect_refused("from byte 4000000 on", "", [](NiftiFile& file) { file.set_voxels_begin(4e6); });
}

TEST(VolumeRefusals, NumbersThatAreNone) {
  for (const double value : {kNan, kInfinity}) {
    expect_refused("sform", "where its axes point", [&](NiftiFile& file) {
      file.set_sform(1, {1, 0, 0, 0, value, 0, 0, 0, 1});
    });
    expect_refused("qform", "", [&](NiftiFile& file) {
      file.set_sform(0, {});
      file.set_qform(1, {0, value, 0});
    });
    expect_refused("spacing (pixdim)", "", [&](NiftiFile& file) {
      file.set_sform(0, {});
      file.set_pixdim(2, value);
    });
    expect_refused("scl_inter", "", [&](NiftiFile& file) { file.set_scaling(2, value); });
  }
  expect_refused("two axes are one", "", [](NiftiFile& file) { file.set_sform(1, {1, 1, 0, 0, 0, 0, 0, 0, 1}); });
  expect_refused("two axes are one", "", [](NiftiFile& file) { file.set_sform(1, {}); });
  expect_refused("no rotation", "", [](NiftiFile& file) {
    file.set_sform(0, {});
    file.set_qform(1, {0.9, 0.9, 0});
  });
}

TEST(VolumeRefusals, TypesThatAreNoRealNumber) {
  const auto refused_type = [](int16_t type, const char* name) {
    const std::string bytes = filled(honest(NiftiFile::k1, {3, 4, 5}, type)).bytes();
    EXPECT_THAT([&] { read_bytes(bytes); }, refuses("datatype", name));
  };
  refused_type(32, "COMPLEX64");
  refused_type(1792, "COMPLEX128");
  refused_type(128, "RGB24");
  refused_type(2304, "RGBA32");
  refused_type(1536, "FLOAT128");
  refused_type(1, "BINARY");
  refused_type(77, "77");
}

TEST(VolumeRefusals, VoxelsThatAreNoNumberAreCounted) {
  NiftiFile file = honest(NiftiFile::k1, {3, 4, 5}, 16);
  for (int i = 0; i < 60; ++i) file.add_voxel(i % 20 == 7 ? static_cast<float>(i == 7 ? kInfinity : kNan) : 1.0F * i);
  VolumeSettings settings;
  settings.size = {1, 1, 1};  // of which none of them is a part
  settings.normalization = VolumeNormalization::kNone;
  EXPECT_THAT([&] { read_bytes(file.bytes(), settings); }, refuses("3 of the scan's 60 voxels", "nan_to_num"));
  NiftiFile large = honest(NiftiFile::k1, {1, 1, 2}, 64);
  large.add_voxel(1.0);
  large.add_voxel(1e300);
  EXPECT_THAT([&] { read_bytes(large.bytes()); }, refuses("1 of the scan's 2 voxels", "too large for fp32"));
}

TEST(VolumeRefusals, NothingToNormalise) {
  const auto constant = [](int16_t value) {
    NiftiFile file = honest();
    for (int i = 0; i < 60; ++i) file.add_voxel(value);
    return file.bytes();
  };
  VolumeSettings settings;
  EXPECT_THAT([&] { read_bytes(constant(7), settings); }, refuses("all voxels of the scan have the value 7"));
  settings.spacing = Axes<double>{0.7, 0.7, 0.7};
  EXPECT_THAT([&] { read_bytes(constant(7), settings); }, refuses("all voxels of the scan have the value 7"));
  settings.normalization = VolumeNormalization::kPercentile;
  EXPECT_THAT([&] { read_bytes(constant(7), settings); }, refuses("percentile 0.5 to 99.5", "the value 7"));
  settings.normalization = VolumeNormalization::kZScoreForeground;
  EXPECT_THAT([&] { read_bytes(constant(7), settings); }, refuses("that are not 0", "the value 7"));
  EXPECT_THAT([&] { read_bytes(constant(0), settings); }, refuses("no foreground"));
}

TEST(VolumeRefusals, SpacingsThatMakeTooMuch) {
  VolumeSettings settings;
  settings.spacing = Axes<double>{1e-4, 1e-4, 1e-4};
  EXPECT_THAT([&] { read_bytes(filled(honest()).bytes(), settings); }, refuses("larger spacing"));
  EXPECT_GT(reading_bytes({{3, 4, 5}, {1, 1, 1}, "RAS", 1}, settings), 0);
  NiftiFile far = honest();
  far.set_sform(1, {1e30, 0, 0, 0, 1e30, 0, 0, 0, 1e30});
  settings.spacing = Axes<double>{1, 1, 1};
  EXPECT_THAT([&] { read_bytes(filled(far).bytes(), settings); }, refuses("larger spacing"));
}

TEST(VolumeRefusals, AxesThatLeanWhereASpacingIsWanted) {
  NiftiFile file = honest();
  file.set_sform(1, {1, 0, 0, 0, 1, 0.3, 0, 0, 1});
  VolumeSettings settings;
  settings.size = {4, 4, 4};
  EXPECT_NO_THROW(read_bytes(filled(file).bytes(), settings));
  settings.spacing = Axes<double>{1, 1, 1};
  EXPECT_THAT([&] { read_bytes(filled(file).bytes(), settings); }, refuses("right angles", "resample_to_output"));
}

TEST(VolumeRefusals, WhereverAFileIsCutOff) {
  const std::string whole = filled(honest()).bytes();
  VolumeSettings settings;
  settings.size = {3, 4, 5};
  for (const std::string& bytes : {whole, gzipped(whole), gzipped(whole.substr(0, 90)) + gzipped(whole.substr(90))}) {
    EXPECT_NO_THROW(read_bytes(bytes, settings));
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THAT([&] { read_bytes(bytes.substr(0, size), settings); }, refuses("")) << size;
    }
  }
}

TEST(VolumeRefusals, DamageNeverBringsItDown) {
  const std::string whole = filled(honest()).bytes();
  VolumeSettings settings;
  settings.size = {3, 4, 5};
  settings.spacing = Axes<double>{2, 2, 2};
  for (const std::string& bytes : {whole, gzipped(whole)}) {
    for (size_t place = 0; place < bytes.size(); ++place) {
      for (const int flip : {0x01, 0x80, 0xFF}) {
        std::string damaged = bytes;
        damaged[place] = static_cast<char>(damaged[place] ^ flip);
        try {
          read_bytes(damaged, settings);
        } catch (const UserError&) {
        }
      }
    }
  }
  std::string damaged = gzipped(whole);
  damaged[damaged.size() - 6] ^= 1;  // the checksum
  EXPECT_THAT([&] { read_bytes(damaged, settings); }, refuses("damaged", "incorrect data check"));
}

TEST(VolumeRefusals, WhatInflatesWithoutEndIsNotInflated) {
  std::string bytes = filled(honest()).bytes();
  bytes.resize(256 << 20);
  const std::string bomb = gzipped(bytes);
  ASSERT_LT(bomb.size(), size_t{1} << 20);
  VolumeSettings settings;
  settings.size = {3, 4, 5};
  EXPECT_NO_THROW(read_bytes(bomb, settings));
}

}  // namespace
}  // namespace vlmtrain::image
