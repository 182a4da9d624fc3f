#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>

#include "image/reference_files.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/mask.h"

namespace vlmtrain::image {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::filesystem::path kFolder = kImageData / "tiff_heif";

bool is_tiff(const std::string& file) {
  return file.ends_with(".tif");
}

/// Returns the absolute differences between two byte strings of the same length.
std::vector<int> compute_differences(const std::vector<std::byte>& a, const std::byte* b) {
  std::vector<int> differences;
  for (size_t i = 0; i < a.size(); ++i) {
    differences.push_back(std::abs(std::to_integer<int>(a[i]) - std::to_integer<int>(b[i])));
  }
  return differences;
}

/// Returns the file with the value of a tag of its first directory replaced. REQUIRES: a
/// little-endian TIFF whose tag has one SHORT.
std::vector<std::byte> replace_tag(std::vector<std::byte> tiff, uint16_t tag, uint16_t value) {
  const auto get_byte = [&](size_t offset) { return std::to_integer<uint32_t>(tiff[offset]); };
  const size_t directory = get_byte(4) | get_byte(5) << 8;
  const size_t num_entries = get_byte(directory);
  for (size_t i = 0; i < num_entries; ++i) {
    const size_t entry = directory + 2 + 12 * i;
    if ((get_byte(entry) | get_byte(entry + 1) << 8) != tag) continue;
    tiff[entry + 8] = static_cast<std::byte>(value);
    tiff[entry + 9] = static_cast<std::byte>(value >> 8);
    return tiff;
  }
  ADD_FAILURE() << "no tag " << tag;
  return tiff;
}

/// Expects that decoding fails with a message that contains the name and `reason`.
void expect_refusal(const std::vector<std::byte>& content, const std::string& name, const std::string& reason) {
  EXPECT_THAT([&] { decode_image(content, name); },
              ThrowsMessage<UserError>(AllOf(HasSubstr(name), HasSubstr(reason))));
}

std::vector<std::byte> to_content(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// TIFF is bit-equal. HEIC and AVIF differ by rounding, since libheif and Pillow's AVIF library
/// convert YCbCr differently. Of subsampled AVIF, Pillow interpolates the chroma and libheif 1.15
/// repeats it, which differs at the sharp edges of this image.
TEST(TiffHeif, MatchesPillow) {
  const std::vector<std::byte> expected = read_test_bytes(kFolder / "decoded.bin");
  const nlohmann::json cases = read_test_json(kFolder / "cases.json");
  ASSERT_GT(cases.size(), 60U);
  for (const auto& entry : cases) {
    const auto file = entry.at("file").get<std::string>();
    SCOPED_TRACE(file);
    const at::Tensor image = decode_image(kFolder / file);
    ASSERT_EQ(image.sizes().vec(), (std::vector<int64_t>{3, entry.at("height"), entry.at("width")}));
    const std::vector<int> differences =
        compute_differences(to_bytes(image), expected.data() + entry.at("offset").get<size_t>());
    const double mean =
        std::accumulate(differences.begin(), differences.end(), 0.0) / static_cast<double>(differences.size());
    if (file == "subsampled.avif") {
      EXPECT_LT(mean, 10.0);
    } else {
      EXPECT_LE(std::ranges::max(differences), is_tiff(file) ? 0 : 1);
    }
  }
}

TEST(TiffHeif, HeaderGivesTheSizeOfTheUprightImage) {
  for (const auto& entry : read_test_json(kFolder / "cases.json")) {
    SCOPED_TRACE(entry.at("file").get<std::string>());
    const ImageSize size = read_image_size(kFolder / entry.at("file").get<std::string>());
    EXPECT_EQ(size, (ImageSize{entry.at("height"), entry.at("width")}));
  }
}

TEST(TiffHeif, HeaderCountsThePages) {
  EXPECT_EQ(read_image_info(kFolder / "two_pages.tif").num_pages, 2);
  for (const char* file : {"rgb.tif", "big.tif", "rgb.heic"}) EXPECT_EQ(read_image_info(kFolder / file).num_pages, 1);
}

TEST(TiffHeif, SixteenBitGrayKeepsTheUpperByte) {
  const at::Tensor image = decode_image(kFolder / "gray_16_bit.tif");
  ASSERT_EQ(image.numel(), 3 * 64);
  const uint8_t* values = image.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < image.numel(); ++i) EXPECT_EQ(values[i], i % 64 * 4) << i;
}

TEST(TiffHeif, ReadsBigEndianBigTiff) {
  EXPECT_TRUE(at::equal(decode_image(kFolder / "big_big_endian.tif"), decode_image(kFolder / "big.tif")));
}

TEST(TiffHeif, ContentDecidesTheFormat) {
  for (const char* file : {"rgb.tif", "big.tif", "rgb.heic", "rgb.avif"}) {
    EXPECT_TRUE(at::equal(decode_image(read_test_bytes(kFolder / file), "scan.jpg"), decode_image(kFolder / file)));
  }
}

TEST(TiffHeif, ErrorsNameTheFormatAndACommand) {
  expect_refusal(read_test_bytes(kFolder / "float.tif"), "scan.tif", "32-bit floating-point samples");
  expect_refusal(read_test_bytes(kFolder / "float.tif"), "scan.tif", "magick image.tif");
  expect_refusal(read_test_bytes(kFolder / "ten_bands.tif"), "scan.tif", "10 samples per pixel");
  const std::vector<std::byte> rgb = read_test_bytes(kFolder / "rgb.tif");
  constexpr uint16_t kCompressionTag = 259, kLerc = 34887, kPhotometricTag = 262, kLab = 8;
  expect_refusal(replace_tag(rgb, kCompressionTag, kLerc), "scan.tif", "LERC compression");
  expect_refusal(replace_tag(rgb, kPhotometricTag, kLab), "scan.tif", "color model 8");
  for (const auto& [content, reason] : std::to_array<std::pair<std::string_view, const char*>>(
           {{"GIF89a and so on", "but GIF; convert the frame that you need, for example: magick"},
            {"BM6000 and so on", "but BMP; convert it, for example: magick"},
            {std::string_view("\0\0\0\x0CjP  \r\n", 10), "but JPEG 2000; convert it, for example: opj_decompress"},
            {std::string_view("\0\0\0\x18"
                              "ftypisom\0\0\2\0isomiso2",
                              24),
             "but a video; convert the frame"},
            {std::string_view("\0\0\0\x1C"
                              "ftypavis\0\0\0\0avifavismif1",
                              28),
             "an animated HEIC or AVIF"},
            {std::string_view("\0\0\0\x18"
                              "ftypheic\0\0\0\0mif1heic",
                              24),
             "damaged or truncated HEIC"},
            {std::string_view("\0\0\0\x18"
                              "ftypmif1\0\0\0\0mif1avif",
                              24),
             "damaged or truncated AVIF"}})) {
    expect_refusal(to_content(content), "scan.jpg", reason);
  }
  for (const char* file : {"rgb.tif", "rgb.heic"}) {
    EXPECT_THAT([&] { decode_mask(kFolder / file, {}); },
                ThrowsMessage<UserError>(HasSubstr("convert the mask to PNG")));
  }
}

TEST(TiffHeif, RejectsDecompressionBombs) {
  constexpr uint16_t kWidthTag = 256, kHeightTag = 257, kSamplesTag = 277, kTileWidthTag = 322, kTileHeightTag = 323;
  constexpr uint16_t kHuge = 65520;
  const std::vector<std::byte> rgb = read_test_bytes(kFolder / "rgb.tif");
  expect_refusal(replace_tag(replace_tag(rgb, kWidthTag, kHuge), kHeightTag, kHuge), "bomb.tif", "65520 x 65520");
  const std::vector<std::byte> bands = read_test_bytes(kFolder / "rgb_three_bands_more.tif");
  expect_refusal(replace_tag(bands, kSamplesTag, kHuge), "bomb.tif", "damaged or truncated TIFF");
  const std::vector<std::byte> tiled = read_test_bytes(kFolder / "tiled.tif");
  expect_refusal(replace_tag(replace_tag(tiled, kTileWidthTag, kHuge), kTileHeightTag, kHuge), "bomb.tif",
                 "tiles of 65520 x 65520");
  for (const char* file : {"rgb.heic", "rgb.avif"}) {
    std::vector<std::byte> content = read_test_bytes(kFolder / file);
    constexpr std::string_view kSizeBox = "ispe";
    const std::vector<std::byte> size_box = to_content(kSizeBox);
    const auto box = std::ranges::search(content, size_box).begin();
    ASSERT_NE(box, content.end());
    // Four bytes each: type, flags, width, height.
    for (const int offset : {9, 13}) box[offset] = std::byte{1};
    EXPECT_THROW(decode_image(content, file), UserError);
  }
}

TEST(TiffHeif, IsThreadSafe) {
  for (const char* file : {"jpeg.tif", "rgb.heic", "rgb.avif"}) {
    const std::vector<std::byte> valid = read_test_bytes(kFolder / file);
    std::vector<std::byte> truncated = valid;
    truncated.resize(truncated.size() / 2);
    const std::vector<std::byte> pixels = to_bytes(decode_image(valid, "good"));
    std::vector<std::jthread> threads;
    threads.reserve(4);
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int round = 0; round < 10; ++round) {
          EXPECT_THROW(decode_image(truncated, "bad"), UserError);
          EXPECT_EQ(to_bytes(decode_image(valid, "good")), pixels);
        }
      });
    }
  }
}

}  // namespace
}  // namespace vlmtrain::image
