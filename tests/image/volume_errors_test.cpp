#include <ATen/core/Tensor.h>
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

auto reports_scan(const char* message, const char* detail = "") {
  return ThrowsMessage<UserError>(AllOf(HasSubstr("scan.nii: "), HasSubstr(message), HasSubstr(detail)));
}

NiftiFile make_file(NiftiFile::Version version = NiftiFile::k1, std::vector<int64_t> dim = {3, 4, 5},
                    int16_t type = 4) {
  NiftiFile file(version, dim, type);
  file.set_sform(1, {1, 0, 0, 0, 1, 0, 0, 0, 1});
  return file;
}

NiftiFile fill(NiftiFile file) {
  for (int i = 0; i < 60; ++i) file.add_voxel(static_cast<int16_t>(i));
  return file;
}

void read_bytes(const std::string& bytes, const VolumeSettings& settings = {}) {
  read_volume(make_scan(bytes), settings);
}

/// Returns a file with one edit, plain and compressed.
template <class Edit>
void expect_rejected(const char* message, const char* detail, const Edit& edit) {
  NiftiFile file = make_file();
  edit(file);
  const std::string bytes = fill(file).bytes();
  EXPECT_THAT([&] { read_bytes(bytes); }, reports_scan(message, detail));
  EXPECT_THAT([&] { read_bytes(gzip(bytes)); }, reports_scan(message, detail));
  EXPECT_THAT([&] { read_volume_info(make_scan(bytes)); }, reports_scan(message, detail));
}

TEST(VolumeErrors, RejectsOtherFormats) {
  EXPECT_THAT([] { read_bytes(""); }, reports_scan("not a NIfTI file", "shorter than a header"));
  EXPECT_THAT([] { read_bytes(std::string(5000, 'a')); }, reports_scan("not a NIfTI file"));
  EXPECT_THAT([] { read_bytes(gzip(std::string(5000, 'a'))); }, reports_scan("not a NIfTI file"));
  EXPECT_THAT([] { read_bytes(std::string(128, '\0') + "DICM" + std::string(900, 'x')); },
              reports_scan("DICOM", "dcm2niix"));
  EXPECT_THAT([] { read_volume_info("no/such/scan.nii"); },
              ThrowsMessage<UserError>(HasSubstr("cannot open the scan")));
  EXPECT_THAT([] { read_volume_info("/tmp"); }, ThrowsMessage<UserError>(HasSubstr("folder")));
}

TEST(VolumeErrors, RejectsFilePairsAndAnalyze) {
  expect_rejected("a file pair", "nibabel.save", [](NiftiFile& file) { file.put_text(344, "ni1"); });
  expect_rejected("Analyze 7.5", "", [](NiftiFile& file) { file.put_text(344, std::string_view("\0\0\0\0", 4)); });
  NiftiFile nifti2 = make_file(NiftiFile::k2);
  nifti2.put_text(4, "ni2");
  EXPECT_THAT([&] { read_bytes(fill(nifti2).bytes()); }, reports_scan("a file pair"));
}

TEST(VolumeErrors, RejectsInvalidDimensions) {
  expect_rejected("0 axes", "1 to 7", [](NiftiFile& file) { file.set_dim(0, 0); });
  expect_rejected("8 axes", "", [](NiftiFile& file) { file.set_dim(0, 8); });
  expect_rejected("-1 axes", "", [](NiftiFile& file) { file.set_dim(0, -1); });
  expect_rejected("2 axes", "save a single slice as a PNG image", [](NiftiFile& file) { file.set_dim(0, 2); });
  expect_rejected("0 voxels along axis 2", "", [](NiftiFile& file) { file.set_dim(2, 0); });
  expect_rejected("-7 voxels along axis 3", "", [](NiftiFile& file) { file.set_dim(3, -7); });
  expect_rejected("3 values along axis 5", "a separate file", [](NiftiFile& file) {
    file.set_dim(0, 5);
    file.set_dim(4, 1);
    file.set_dim(5, 3);
  });
}

TEST(VolumeErrors, RejectsDimensionsBeyondTheFile) {
  expect_rejected("20000 voxels along axis 1", "", [](NiftiFile& file) { file.set_dim(1, 20'000); });
  expect_rejected("16384 × 16384 × 16384", "", [](NiftiFile& file) {
    for (size_t axis = 1; axis < 4; ++axis) file.set_dim(axis, 16'384);
  });
  expect_rejected("requires", "truncated or damaged", [](NiftiFile& file) {
    for (size_t axis = 1; axis < 4; ++axis) file.set_dim(axis, 1600);
  });
  const std::string large_file = fill(make_file(NiftiFile::k2, {100'000, 100'000, 100'000})).bytes();
  EXPECT_THAT([&] { read_bytes(large_file); }, reports_scan("100000 voxels along axis 1"));
  const std::string short_file = fill(make_file(NiftiFile::k1, {3, 4, 6})).bytes();
  EXPECT_THAT([&] { read_bytes(short_file); }, reports_scan("requires 496 bytes", "has 472"));
  EXPECT_THAT([&] { read_bytes(gzip(short_file)); }, reports_scan("truncated"));
}

TEST(VolumeErrors, RejectsInvalidVoxelOffsets) {
  for (const double position : {0.0, 100.0, 351.0, -5.0, 352.5, 1e30, kNan, kInfinity}) {
    expect_rejected("vox_offset", "", [&](NiftiFile& file) { file.set_voxel_offset(position); });
  }
  expect_rejected("from byte 4000000 on", "", [](NiftiFile& file) { file.set_voxel_offset(4e6); });
}

TEST(VolumeErrors, RejectsNonfiniteHeaderFields) {
  for (const double value : {kNan, kInfinity}) {
    expect_rejected("sform", "does not define its axes", [&](NiftiFile& file) {
      file.set_sform(1, {1, 0, 0, 0, value, 0, 0, 0, 1});
    });
    expect_rejected("qform", "", [&](NiftiFile& file) {
      file.set_sform(0, {});
      file.set_qform(1, {0, value, 0});
    });
    expect_rejected("spacing (pixdim)", "", [&](NiftiFile& file) {
      file.set_sform(0, {});
      file.set_pixdim(2, value);
    });
    expect_rejected("scl_inter", "", [&](NiftiFile& file) { file.set_scaling(2, value); });
  }
  expect_rejected("two axes coincide", "", [](NiftiFile& file) { file.set_sform(1, {1, 1, 0, 0, 0, 0, 0, 0, 1}); });
  expect_rejected("two axes coincide", "", [](NiftiFile& file) { file.set_sform(1, {}); });
  expect_rejected("not a rotation", "", [](NiftiFile& file) {
    file.set_sform(0, {});
    file.set_qform(1, {0.9, 0.9, 0});
  });
}

TEST(VolumeErrors, RejectsOtherVoxelTypes) {
  const auto expect_type_rejected = [](int16_t type, const char* name) {
    const std::string bytes = fill(make_file(NiftiFile::k1, {3, 4, 5}, type)).bytes();
    EXPECT_THAT([&] { read_bytes(bytes); }, reports_scan("data type", name));
  };
  expect_type_rejected(32, "COMPLEX64");
  expect_type_rejected(1792, "COMPLEX128");
  expect_type_rejected(128, "RGB24");
  expect_type_rejected(2304, "RGBA32");
  expect_type_rejected(1536, "FLOAT128");
  expect_type_rejected(1, "BINARY");
  expect_type_rejected(77, "77");
}

TEST(VolumeErrors, CountsNonfiniteVoxels) {
  NiftiFile file = make_file(NiftiFile::k1, {3, 4, 5}, 16);
  for (int i = 0; i < 60; ++i) file.add_voxel(i % 20 == 7 ? static_cast<float>(i == 7 ? kInfinity : kNan) : 1.0F * i);
  VolumeSettings settings;
  settings.size = {1, 1, 1};  // of which none of them is a part
  settings.normalization = VolumeNormalization::kNone;
  EXPECT_THAT([&] { read_bytes(file.bytes(), settings); }, reports_scan("3 of the scan's 60 voxels", "nan_to_num"));
  NiftiFile large_file = make_file(NiftiFile::k1, {1, 1, 2}, 64);
  large_file.add_voxel(1.0);
  large_file.add_voxel(1e300);
  EXPECT_THAT([&] { read_bytes(large_file.bytes()); }, reports_scan("1 of the scan's 2 voxels", "too large for fp32"));
}

TEST(VolumeErrors, RejectsConstantValues) {
  const auto make_constant = [](int16_t value) {
    NiftiFile file = make_file();
    for (int i = 0; i < 60; ++i) file.add_voxel(value);
    return file.bytes();
  };
  VolumeSettings settings;
  EXPECT_THAT([&] { read_bytes(make_constant(7), settings); },
              reports_scan("cannot normalize the scan: all voxels have the value 7"));
  settings.spacing = PerAxis<double>{0.7, 0.7, 0.7};
  EXPECT_THAT([&] { read_bytes(make_constant(7), settings); },
              reports_scan("cannot normalize the scan: all voxels have the value 7"));
  settings.normalization = VolumeNormalization::kPercentile;
  EXPECT_THAT([&] { read_bytes(make_constant(7), settings); }, reports_scan("percentile 0.5 to 99.5", "the value 7"));
  settings.normalization = VolumeNormalization::kZScoreForeground;
  EXPECT_THAT([&] { read_bytes(make_constant(7), settings); }, reports_scan("that are not 0", "the value 7"));
  EXPECT_THAT([&] { read_bytes(make_constant(0), settings); }, reports_scan("no foreground"));
}

TEST(VolumeErrors, RejectsSpacingsThatAreTooFine) {
  VolumeSettings settings;
  settings.spacing = PerAxis<double>{1e-4, 1e-4, 1e-4};
  EXPECT_THAT([&] { read_bytes(fill(make_file()).bytes(), settings); }, reports_scan("raise data.volume.spacing"));
  EXPECT_GT(estimate_volume_reading_memory({{3, 4, 5}, {1, 1, 1}, "RAS", 1}, settings), 0);
  NiftiFile far_file = make_file();
  far_file.set_sform(1, {1e30, 0, 0, 0, 1e30, 0, 0, 0, 1e30});
  settings.spacing = PerAxis<double>{1, 1, 1};
  EXPECT_THAT([&] { read_bytes(fill(far_file).bytes(), settings); }, reports_scan("raise data.volume.spacing"));
}

TEST(VolumeErrors, RejectsObliqueAxesWithASpacing) {
  NiftiFile file = make_file();
  file.set_sform(1, {1, 0, 0, 0, 1, 0.3, 0, 0, 1});
  VolumeSettings settings;
  settings.size = {4, 4, 4};
  EXPECT_NO_THROW(read_bytes(fill(file).bytes(), settings));
  settings.spacing = PerAxis<double>{1, 1, 1};
  EXPECT_THAT([&] { read_bytes(fill(file).bytes(), settings); }, reports_scan("not orthogonal", "resample_to_output"));
}

TEST(VolumeErrors, RejectsTruncatedFiles) {
  const std::string content = fill(make_file()).bytes();
  VolumeSettings settings;
  settings.size = {3, 4, 5};
  for (const std::string& bytes : {content, gzip(content), gzip(content.substr(0, 90)) + gzip(content.substr(90))}) {
    EXPECT_NO_THROW(read_bytes(bytes, settings));
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THAT([&] { read_bytes(bytes.substr(0, size), settings); }, reports_scan("")) << size;
    }
  }
}

TEST(VolumeErrors, DamagedFilesGiveAVolumeOrADataError) {
  const std::string content = fill(make_file()).bytes();
  VolumeSettings settings;
  settings.size = {3, 4, 5};
  settings.spacing = PerAxis<double>{2, 2, 2};
  for (const std::string& bytes : {content, gzip(content)}) {
    for (size_t position = 0; position < bytes.size(); ++position) {
      for (const int bits : {0x01, 0x80, 0xFF}) {
        std::string damaged = bytes;
        damaged[position] = static_cast<char>(damaged[position] ^ bits);
        try {
          read_bytes(damaged, settings);
        } catch (const UserError&) {
        }
      }
    }
  }
  std::string damaged = gzip(content);
  damaged[damaged.size() - 6] ^= 1;  // the checksum
  EXPECT_THAT([&] { read_bytes(damaged, settings); }, reports_scan("damaged", "incorrect data check"));
}

TEST(VolumeErrors, DoesNotInflateDecompressionBombs) {
  std::string bytes = fill(make_file()).bytes();
  bytes.resize(256 << 20);
  const std::string bomb = gzip(bytes);
  ASSERT_LT(bomb.size(), size_t{1} << 20);
  VolumeSettings settings;
  settings.size = {3, 4, 5};
  EXPECT_NO_THROW(read_bytes(bomb, settings));
}

}  // namespace
}  // namespace vlmtrain::image
